"""Serving measured: requests a second and waiting times of `regard serve`, with many clients, beside other servers.

    python benchmarks/serving.py                                       load, with the demo's model and a small one
    python benchmarks/serving.py --model FOLDER --seconds 20           with a model of your own
    python benchmarks/serving.py --parts latency --seconds 60          one client, in turns with the plain call
    python benchmarks/serving.py --parts overload --seconds 60         ten times more clients than fit
    python benchmarks/serving.py --parts soak --seconds 600            mixed load, vanishing clients, bad input, SIGHUP

Clients are coroutines of this process that send the next request when they have the answer to the last, over
connections that stay open. The server is a process of its own. What the clients take of the processor is in the table:
on few cores they take it from the server. Beside `regard serve`:

    one at a time     the same model and the same text processing in one thread, which all clients wait for
    CTranslate2       the same routes, and an engine that gives CTranslate2 all requests that wait as one batch
    plain call        `Translator.search` in this process, without HTTP
"""

import argparse
import asyncio
import json
import os
import queue
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import CancelledError, ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import sized
from timing import hardware, table

import regard
from regard.data import phrasebook
from regard.data.tokenizer.interface import PairTokenizer
from regard.data.tokenizer.training import UnigramConfig, train_tokenizer
from regard.tasks.placeholder_translation import translate_with_placeholders
from regard.tasks.search import Beam, DecodingStrategy

CLIENTS = (1, 8, 32, 128)
ROUNDS = 20
"""Turns of the plain call and of the server, of which medians are compared."""
OURS, ALONE, CTRANSLATE2 = "regard serve", "one at a time", "CTranslate2"
SMALL_VOCABULARY = 2000
TEXTS = [pair.source for pair in phrasebook.pairs(400, seed=3, split="test")]
BAD_BODIES = (b"{", b'{"q": 1}', b'{"q": "a", "source": "xx", "target": "fr"}', b"[" * 1000)


# Models

def demo_model(folder: Path) -> str:
    """The model of `regard demo`, trained in a minute."""
    subprocess.run([sys.executable, "-m", "regard", "demo", "-o", str(folder)], check=True, capture_output=True)
    return str(folder)


def small_model(folder: Path) -> str:
    """A model of the recipe transformer-small that writes as many tokens as it reads."""
    texts = [text for pair in phrasebook.pairs(3000, seed=5) for text in (pair.source, pair.target)]
    tokenizer = train_tokenizer(texts, UnigramConfig(vocab_size=SMALL_VOCABULARY)).tokenizer
    task = sized.translator("transformer-small", tokenizer.size, tokenizer=PairTokenizer(tokenizer, tokenizer))
    task.source_lang, task.target_lang = "en", "fr"
    task.save(folder)
    return str(folder)


# Clients

class Load:
    """What some clients saw: the codes of all answers, and the seconds of those with 200."""

    def __init__(self) -> None:
        self.codes, self.seconds = Counter[int](), list[float]()
        self.processor = self.wall = self.rate = 0.0
        """The seconds of the processor that the clients took, the seconds that passed, and answers 200 a second.

        Answers to the last requests, when fewer and fewer clients wait, do not count for the rate.
        """

    def quantile(self, share: float) -> float:
        """The milliseconds within which this share of the requests was answered."""
        ordered = sorted(self.seconds)
        return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")

    def row(self, name: str, clients: int) -> list[str]:
        """A row of the table."""
        return [name, str(clients), f"{self.rate:.1f}",
                *(f"{self.quantile(share):.0f}" for share in (0.5, 0.95, 0.99)),
                f"{100 * self.processor / self.wall:.0f} %"]


class Client:
    """A connection that stays open, and is opened again when the server closes it."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, path: str, body: bytes) -> int:
        """Send JSON, read the whole answer, and return its code."""
        if self.streams is None:
            self.streams = await asyncio.open_connection("127.0.0.1", self.port)
        reader, writer = self.streams
        writer.write(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                     f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        length = int(head.partition("content-length:")[2].partition("\r\n")[0])
        await reader.readexactly(length)
        if "connection: close" in head or head.startswith("http/1.0"):
            self.close()
        return int(head.split()[1])

    def close(self) -> None:
        """Close the connection, whatever is on its way."""
        if self.streams is not None:
            self.streams[1].close()
            self.streams = None


def translate_body(draw: random.Random) -> bytes:
    return json.dumps({"q": draw.choice(TEXTS), "source": "en", "target": "fr"}).encode()


async def _run_clients(port: int, count: int, seconds: float, mixed: bool, patient: bool, seed: int) -> Load:
    load, end = Load(), time.perf_counter() + seconds

    async def work(number: int) -> None:
        draw, client = random.Random(seed + number), Client(port)
        while time.perf_counter() < end:
            began, kind = time.perf_counter(), draw.random() if mixed else 1.0
            try:
                if kind < 0.1:  # leaves before the answer
                    async with asyncio.timeout(0.005):
                        await client.post("/translate", translate_body(draw))
                    continue
                body = draw.choice(BAD_BODIES) if kind < 0.2 else translate_body(draw)
                code = await client.post("/translate", body)
            except TimeoutError:
                client.close()
                continue
            except (ConnectionError, asyncio.IncompleteReadError):
                load.codes[0] += 1
                client.close()
                continue
            load.codes[code] += 1
            if code == 200:
                now = time.perf_counter()
                load.seconds.append(now - began)
                load.rate += (now < end) / seconds
            elif code == 429 and patient:
                await asyncio.sleep(0.2)
        client.close()

    began, before = time.perf_counter(), time.process_time()
    await asyncio.gather(*(work(number) for number in range(count)))
    load.wall, load.processor = time.perf_counter() - began, time.process_time() - before
    return load


def run_clients(port: int, count: int, seconds: float, *, mixed: bool = False, patient: bool = False,
                seed: int = 0) -> Load:
    """What clients see in some seconds."""
    return asyncio.run(_run_clients(port, count, seconds, mixed, patient, seed))


# Servers

class ServerProcess:
    """A server in a process of its own."""

    def __init__(self, *command: str) -> None:
        self.process = subprocess.Popen([sys.executable, *command], stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        self.port = 0
        for line in self.process.stderr:
            if '"address"' in line:
                self.port = int(json.loads(line)["address"].rpartition(":")[2])
                break
        if not self.port:
            raise RuntimeError("The server did not start.")
        threading.Thread(target=self._drain, daemon=True).start()

    def _drain(self) -> None:
        assert self.process.stderr is not None
        for _ in self.process.stderr:
            pass

    @property
    def memory(self) -> int:
        """Its resident memory in bytes."""
        return psutil.Process(self.process.pid).memory_info().rss

    def __enter__(self) -> "ServerProcess":
        return self

    def __exit__(self, *details: object) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)


def start(kind: str, model: str, *more: str) -> ServerProcess:
    """A server of this kind."""
    if kind == OURS:
        return ServerProcess("-m", "regard", "serve", model, "--port", "0", "--log", "json", *more)
    return ServerProcess(__file__, "--serve", kind, "--model", model)


def serve_alone(model: str) -> None:
    """One request at a time: a thread for each client, and one for the model.

    All of the model's work is done in one thread, as in an engine: with a pool of OpenMP for each thread that ever
    computed, a search takes twice as long.
    """
    worker = ThreadPoolExecutor(1)
    task = worker.submit(regard.load, model).result()
    align = task.align if task.attends else None  # type: ignore[attr-defined]

    class Handler(BaseHTTPRequestHandler):
        protocol_version, disable_nagle_algorithm = "HTTP/1.1", True

        def do_POST(self) -> None:
            text = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["q"]
            [found] = worker.submit(translate_with_placeholders, [text],
                                    lambda some: task.search(some, Beam(beams=5)), align).result()
            body = json.dumps({"translatedText": found.text}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *details: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        request_queue_size, daemon_threads = 256, True

    with Server(("127.0.0.1", 0), Handler) as server:
        print(json.dumps({"address": f"http://127.0.0.1:{server.server_address[1]}"}), file=sys.stderr, flush=True)
        signal.signal(signal.SIGTERM, lambda *details: os._exit(0))
        server.serve_forever()


class CTranslate2Engine:
    """The interface of `ServingEngine` around CTranslate2: all requests that wait become one batch."""

    def __init__(self, translator: Any) -> None:
        from regard.serving.engine import EngineLoad

        self.translator, self.load = translator, EngineLoad(0, 0, 0, 0, 0, 0.0, 0)
        self.queue: queue.SimpleQueue[tuple[Any, list[str], DecodingStrategy]] = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def submit(self, texts: Any, strategy: DecodingStrategy, **options: Any) -> Any:
        ticket = _SimpleTicket()
        self.queue.put((ticket, list(texts), strategy))
        return ticket

    def _run(self) -> None:
        while True:
            waiting = [self.queue.get()]
            while not self.queue.empty():
                waiting.append(self.queue.get())
            for strategy in {one[2] for one in waiting}:
                some = [one for one in waiting if one[2] == strategy and not one[0].done]
                found = iter(self.translator.search([text for one in some for text in one[1]], strategy))
                for ticket, texts, _ in some:
                    ticket.finish([next(found) for _ in texts])

    def close(self, **options: Any) -> None:
        pass


class _SimpleTicket:
    queued_seconds = first_token_seconds = total_seconds = None
    tokens = 0

    def __init__(self) -> None:
        self.found: list[Any] | None = None
        self.functions, self.lock, self.done = list[Any](), threading.Lock(), False

    def finish(self, found: list[Any] | None) -> None:
        with self.lock:
            if self.done:
                return
            self.found, self.done = found, True
        for function in self.functions:
            function(self)

    def result(self, timeout: float | None = None) -> list[Any]:
        if self.found is None:
            raise CancelledError
        return self.found

    def cancel(self) -> None:
        self.finish(None)

    def add_done_callback(self, function: Any) -> None:
        with self.lock:
            if not self.done:
                self.functions.append(function)
                return
        function(self)


def serve_ctranslate2(model: str) -> None:
    """The routes of `regard serve` with CTranslate2 behind them."""
    from regard.serving.context import ServerContext
    from regard.serving.models import ModelCatalog, parse_model
    from regard.serving.server import open_socket, run_server, socket_address
    from regard.serving.settings import ServerSettings
    from regard.tasks.ctranslate2_engine import open_ctranslate2

    engine = CTranslate2Engine(open_ctranslate2(model))
    catalog = ModelCatalog.load([parse_model(model)], lambda task: engine)  # type: ignore[arg-type,return-value]
    listening = open_socket("127.0.0.1", 0)
    run_server(ServerContext(ServerSettings(port=0), catalog), listening, lambda: print(
        json.dumps({"address": socket_address(listening)}), file=sys.stderr, flush=True))


# What is measured

def plain_call(task: Any, seconds: float, seed: int = 0) -> Load:
    """`Translator.search`, one text after another."""
    load, draw = Load(), random.Random(seed)
    task.search([TEXTS[0]], Beam(beams=5))
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        before = time.perf_counter()
        task.search([draw.choice(TEXTS)], Beam(beams=5))
        load.seconds.append(time.perf_counter() - before)
    load.wall = time.perf_counter() - began
    load.rate = len(load.seconds) / load.wall
    return load


def measure_load(model: str, seconds: float, kinds: list[str]) -> str:
    """Requests a second and waiting times for each number of clients and each server."""
    rows = [plain_call(regard.load(model), seconds).row("plain call", 1)]
    for kind in kinds:
        try:
            started = start(kind, model)
        except RuntimeError:  # CTranslate2 cannot run every model
            rows.append([kind, "", "does not run this model", "", "", "", ""])
            continue
        with started as server:
            run_clients(server.port, 4, min(2.0, seconds))  # warm
            for count in CLIENTS:
                load = run_clients(server.port, count, seconds)
                rows.append(load.row(kind, count))
                if set(load.codes) != {200}:
                    rows[-1][2] += f" {dict(load.codes)}"
    return table(["server", "clients", "requests/s", "p50 ms", "p95 ms", "p99 ms", "processor of the clients"], rows)


def measure_latency(model: str, seconds: float) -> str:
    """One client and the plain call in turns: on a machine with other work, only their ratio means something."""
    task, each = regard.load(model), seconds / 2 / ROUNDS
    with start(OURS, model) as server:
        turns = list[tuple[Load, Load]]()
        for turn in range(-1, ROUNDS):  # the first one warms up
            found = plain_call(task, each, turn), run_clients(server.port, 1, each, seed=turn)
            turns += [found] if turn >= 0 else []
    ratios = sorted(ours.quantile(0.5) / plain.quantile(0.5) for plain, ours in turns)
    rows = [[name, f"{median(load.quantile(0.5) for load in loads):.1f}"]
            for name, loads in zip(("plain call", OURS), zip(*turns, strict=True), strict=True)]
    quartiles = f"{ratios[ROUNDS // 4]:.2f}, {ratios[3 * ROUNDS // 4]:.2f}"
    rows.append([f"ratio (quartiles {quartiles})", f"{median(ratios):.2f}"])
    return table([f"one client, medians of {ROUNDS} turns", "p50 ms"], rows)


class MemoryCurve:
    """The memory of a server, sampled by a thread."""

    def __init__(self, server: ServerProcess, seconds: float) -> None:
        self.server, self.pause, self.sizes = server, max(0.5, seconds / 60), list[int]()
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self.stopped.wait(self.pause):
            self.sizes.append(self.server.memory >> 20)

    def __enter__(self) -> "MemoryCurve":
        self.thread.start()
        return self

    def __exit__(self, *details: object) -> None:
        self.stopped.set()
        self.thread.join()

    def rows(self) -> list[list[str]]:
        """The medians of the ten parts of the time, and the highest."""
        size = max(1, len(self.sizes) // 10)
        parts = [median(self.sizes[first:first + size]) for first in range(0, len(self.sizes), size)]
        return [["MiB in the course of time", " ".join(f"{one:.0f}" for one in parts)],
                ["MiB at most", str(max(self.sizes, default=0))]]


def measure_overload(model: str, seconds: float) -> str:
    """Ten times more clients than the queue holds, and what the server answers; then one client again."""
    with start(OURS, model, "--max-queue", "32", "--max-batch", "32") as server:
        before = run_clients(server.port, 1, min(5.0, seconds))
        run_clients(server.port, 320, min(5.0, seconds), patient=True)
        with MemoryCurve(server, seconds) as memory:
            load = run_clients(server.port, 320, seconds, patient=True)
        after = run_clients(server.port, 1, min(5.0, seconds))
    rows = [["answers", ", ".join(f"{code}: {count:,}" for code, count in sorted(load.codes.items()))],
            ["p50, p95 ms of those with 200", f"{load.quantile(0.5):.0f}, {load.quantile(0.95):.0f}"],
            *memory.rows(),
            ["p50 ms of one client before, after", f"{before.quantile(0.5):.0f}, {after.quantile(0.5):.0f}"]]
    return table(["320 clients, a queue of 32", ""], rows)


def measure_soak(model: str, seconds: float) -> str:
    """Mixed load with clients that vanish, bad input and reloads."""
    stop, reloads = threading.Event(), 0
    with start(OURS, model) as server:
        def disturb() -> None:
            nonlocal reloads
            while not stop.wait(max(2.0, seconds / 20)):
                server.process.send_signal(signal.SIGHUP)
                reloads += 1

        run_clients(server.port, 32, min(10.0, seconds), mixed=True)
        thread = threading.Thread(target=disturb)
        thread.start()
        with MemoryCurve(server, seconds) as memory:
            load = run_clients(server.port, 32, seconds, mixed=True)
        stop.set()
        thread.join()
        after = run_clients(server.port, 1, 3.0)
    rows = [["answers (0 is a lost connection)", ", ".join(f"{code}: {n:,}" for code, n in sorted(load.codes.items()))],
            ["reloads", str(reloads)], *memory.rows(),
            ["p50 ms of one client afterwards", f"{after.quantile(0.5):.0f}"]]
    return table([f"32 clients for {seconds:g} s", ""], rows)


def main() -> None:
    """Measure what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=("load", "latency", "overload", "soak"), default=["load"])
    parser.add_argument("--model", action="append", help="a folder; by default the demo's model and a small one")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    parser.add_argument("--servers", nargs="+", choices=(OURS, ALONE, CTRANSLATE2), default=[OURS, ALONE, CTRANSLATE2])
    parser.add_argument("--serve", choices=(ALONE, CTRANSLATE2), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve is not None:
        (serve_alone if asked.serve == ALONE else serve_ctranslate2)(asked.model[0])
        return
    with tempfile.TemporaryDirectory() as folder:
        models = {one: one for one in asked.model or ()} or {
            "the demo's model": demo_model(Path(folder) / "demo"),
            "transformer-small": small_model(Path(folder) / "small")}
        print(hardware("cpu"))
        for name, model in models.items():
            for part in asked.parts:
                print(f"\n{part}, {name}\n", flush=True)
                measured = {"load": lambda path: measure_load(path, asked.seconds, asked.servers),
                            "latency": lambda path: measure_latency(path, asked.seconds),
                            "overload": lambda path: measure_overload(path, asked.seconds),
                            "soak": lambda path: measure_soak(path, asked.seconds)}[part](model)
                print(measured, flush=True)


if __name__ == "__main__":
    main()
