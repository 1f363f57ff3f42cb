"""`regard serve`: models as an HTTP service, with a web page, for clients of LibreTranslate and OpenAI."""

import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.options import (
    AUTO_DEVICE,
    DATA_PANEL,
    ENGINE_PANEL,
    LIMITS_PANEL,
    NETWORK_PANEL,
    OUTPUT_PANEL,
    DeviceOption,
    choose_device,
    complete_names,
    expand_options,
    with_examples,
)
from regard.cli.output import fail, say, write_line

if TYPE_CHECKING:
    from regard.serving.context import ServerContext
    from regard.serving.settings import ServerSettings

PACKAGES = {"fastapi": "fastapi", "uvicorn": "uvicorn", "python_multipart": "python-multipart",
            "prometheus_client": "prometheus-client", "py3langid": "py3langid"}
"""Modules of the extra `serve`, and their packages."""


@dataclass(frozen=True)
class NetworkOptions:
    """Options about who may connect."""

    host: Annotated[str, typer.Option(
        "--host", metavar="ADDRESS", rich_help_panel=NETWORK_PANEL,
        help="Address to listen on. 0.0.0.0 lets other machines connect.")] = "127.0.0.1"
    port: Annotated[int, typer.Option(
        "-p", "--port", metavar="N", min=0, max=65535, rich_help_panel=NETWORK_PANEL,
        help="Port; 0 is any free one.")] = 5000
    allowed_host: Annotated[list[str] | None, typer.Option(
        "--allowed-host", metavar="NAME", rich_help_panel=NETWORK_PANEL, show_default="localhost, IP addresses",
        help="Host name under which the server is reached; repeat it for several. * allows all.")] = None
    cors_origin: Annotated[list[str] | None, typer.Option(
        "--cors-origin", metavar="ORIGIN", rich_help_panel=NETWORK_PANEL, show_default="none",
        help="Origin of web pages that may use the server, such as https://example.org; repeat it for "
        "several.")] = None


@dataclass(frozen=True)
class LimitOptions:
    """Options about how much a client may ask for; the fields of `ServerSettings` with these names."""

    rate_limit: Annotated[int | None, typer.Option(
        "--rate-limit", metavar="N", min=1, rich_help_panel=LIMITS_PANEL, show_default="unlimited",
        help="Maximum requests per minute for each key or, without keys, for each client address.")] = None
    max_queue: Annotated[int, typer.Option(
        "--max-queue", metavar="N", min=1, rich_help_panel=LIMITS_PANEL,
        help="Maximum number of texts that wait for a model; further requests are answered 429.")] = 512
    timeout: Annotated[float, typer.Option(
        "--timeout", metavar="SECONDS", min=0.001, rich_help_panel=LIMITS_PANEL, show_default="60",
        help="Time limit of a request (504 after it); a file may take ten times as long.")] = 60.0
    drain_timeout: Annotated[float, typer.Option(
        "--drain-timeout", metavar="SECONDS", min=0.001, rich_help_panel=LIMITS_PANEL, show_default="30",
        help="Time that requests in flight get after SIGTERM.")] = 30.0
    max_characters: Annotated[int, typer.Option(
        "--max-characters", metavar="N", min=1, rich_help_panel=LIMITS_PANEL,
        help="Maximum number of characters in a request, all texts together.")] = 10_000
    max_batch: Annotated[int, typer.Option(
        "--max-batch", metavar="N", min=1, rich_help_panel=LIMITS_PANEL,
        help="Maximum number of texts in a request.")] = 128
    max_file_size: Annotated[int, typer.Option(
        "--max-file-size", metavar="BYTES", min=1, rich_help_panel=LIMITS_PANEL, show_default="10485760, 10 MiB",
        help="Maximum size of a file.")] = 10 << 20


@with_examples("""
    regard serve model                            # http://127.0.0.1:5000
    regard serve en-fr=model --port 8080          # a folder without languages
    regard serve model other-model --threads 2    # routed by language
    regard serve --make-key alice >> keys.txt     # an API key for alice
    regard serve model --key-file keys.txt --rate-limit 60 --log json
""")
@expand_options
def serve(
    models: Annotated[list[str] | None, typer.Argument(
        metavar="MODEL", show_default=False,
        help="Folders of trained models. en-fr=FOLDER names the languages of a model whose folder does not, or one of "
        "the directions of a model for several languages.")] = None,
    key_file: Annotated[str | None, typer.Option(
        "--key-file", metavar="FILE", rich_help_panel=DATA_PANEL, show_default="no key is needed",
        help="File of API keys, hashed: one line per key, as --make-key prints it.")] = None,
    make_key: Annotated[str | None, typer.Option(
        "--make-key", metavar="NAME", rich_help_panel=DATA_PANEL, show_default=False,
        help="Make an API key: print its line for the key file, and the key itself on stderr. Then exit.")] = None,
    *,
    network: NetworkOptions,
    limits: LimitOptions,
    device: DeviceOption = AUTO_DEVICE,
    threads: Annotated[int | None, typer.Option(
        "--threads", metavar="N", min=1, rich_help_panel=ENGINE_PANEL, show_default="all cores, shared by the models",
        help="CPU threads of each model.")] = None,
    log: Annotated[str, typer.Option(
        "--log", metavar="NAME", rich_help_panel=OUTPUT_PANEL, autocompletion=complete_names("text", "json"),
        help="Log on stderr: text, or json (an object on each line). It has no texts, addresses or keys.")] = "text",
) -> None:
    """Serve models over HTTP: a web page, and the interfaces of LibreTranslate and OpenAI.

    Translators answer /translate, /detect, /languages and /translate_file; language models /v1/completions. /docs lists
    all routes, /metrics has numbers for Prometheus. Only this machine can connect unless --host says otherwise. SIGTERM
    finishes what is in flight and exits with 0; SIGHUP loads the models and keys again without an interruption.
    """
    missing = [package for module, package in PACKAGES.items() if importlib.util.find_spec(module) is None]
    if missing:
        fail(f"regard serve needs {', '.join(missing)}: pip install 'regard[serve]'")
    try:
        if make_key is not None:
            _print_key(make_key)
            return
        if not models:
            fail("No MODEL was given. Name the folder of a trained model: regard serve MODEL")
        from regard.serving.settings import ServerSettings

        settings = ServerSettings(
            host=network.host, port=network.port, allowed_hosts=tuple(network.allowed_host or ()),
            cors_origins=tuple(network.cors_origin or ()), key_file=key_file, log=log, device=choose_device(device),
            threads=threads, **vars(limits))
        _serve(models, settings)
    except ValueError as error:
        fail(str(error))


def _print_key(name: str) -> None:
    from regard.serving.keys import make_key

    key, line = make_key(name)
    say(f"Key of {name}, shown only now: {key}")
    write_line(line)


def _serve(models: list[str], settings: "ServerSettings") -> None:
    """Open the port, check the keys, load the models, and serve. Loading may take minutes, so it comes after both."""
    from regard.serving.server import load_catalog, open_socket, run_server, socket_address

    try:
        listening = open_socket(settings.host, settings.port)
    except OSError as error:
        fail(f"{settings.host}:{settings.port} cannot be used: {error.strerror}. Choose another --port or --host.")
    from regard.serving.context import ServerContext
    from regard.serving.keys import ApiKeys
    from regard.serving.metrics import set_up_logging

    with listening:
        if settings.key_file is not None:
            ApiKeys.read(settings.key_file)  # a wrong file is refused before the models are loaded
        set_up_logging(settings.log)
        if settings.log == "text":
            say(f"Loading {', '.join(models)} ...")
        context = ServerContext(settings, load_catalog(models, settings))
        run_server(context, listening, lambda: _say_ready(context, socket_address(listening)))


def _say_ready(context: "ServerContext", address: str) -> None:
    """Log what is served and where."""
    from regard.serving.metrics import LOGGER

    served = [name for model in context.catalog.models for name in [*map(str, model.pairs)] or [model.name]]
    LOGGER.info("serving", extra={"address": address, "models": ", ".join(served), "device": context.settings.device,
                                  "keys": context.keys is not None})
    if context.settings.log == "text":
        say(f"Open {address}/ in a browser. Ctrl+C stops the server.")
