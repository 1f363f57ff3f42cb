"""`regard serve` as a process: how it starts, ends, reloads, and what it refuses."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.parse

import pytest
import texting
from calling import call
from served import ask, save_completer, save_translator

FIELDS = {"q": "a cat.", "source": "en", "target": "fr"}
LONG = {"text": "the dog " * 10, "source": "en", "target": "fr", "keep_placeholders": False, "beams": 8}
pytestmark = [pytest.mark.thorough, pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_translator(tmp_path_factory.mktemp("served") / "model")


class Process:
    """A running `regard serve`."""

    def __init__(self, *arguments):
        self.process = subprocess.Popen([sys.executable, "-m", "regard", "serve", *arguments, "--port", "0", "--log",
                                         "json"], stderr=subprocess.PIPE, text=True,
                                        env={**os.environ, "OMP_NUM_THREADS": "1"})
        self.lines, self.told = [], threading.Condition()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        self.address = self.wait("serving")["address"]

    def _read(self):
        for line in self.process.stderr:
            with self.told:
                self.lines.append(json.loads(line) if line.startswith("{") else {"message": line})
                self.told.notify_all()
        with self.told:
            self.lines.append({"message": "end"})
            self.told.notify_all()

    def wait(self, message, seconds=120):
        """The first line with this message."""
        def found():
            return next((line for line in self.lines if line["message"] in (message, "end")), None)

        with self.told:
            assert self.told.wait_for(found, seconds), self.lines
            assert found()["message"] == message, self.lines
            return found()

    def end(self, seconds=120):
        code = self.process.wait(seconds)
        self.reader.join(5)
        self.process.stderr.close()
        return code


def start_long(address, answers, length):
    """A request that takes a while, in a thread; returns when it runs."""
    def send():
        try:
            fields = {**LONG, "max_length": length, "min_length": length - 1}
            answers.append(ask(address, "/api/v1/translate", fields).status)
        except OSError as error:
            answers.append(type(error).__name__)

    thread = threading.Thread(target=send)
    thread.start()
    begun = time.monotonic()
    while time.monotonic() - begun < 120:
        running = re.search(r"regard_running_texts\{[^}]*\} ([0-9.]+)", ask(address, "/metrics").body.decode())
        if running and float(running[1]):
            return thread
        time.sleep(0.02)
    pytest.fail("it does not run")


def test_sigterm_finishes_what_is_in_flight_and_sighup_loads_the_model_again(folder, tmp_path):
    """Three models; a reload under requests loses none; a broken folder keeps the old model; the end, with 0."""
    other, writer = save_translator(tmp_path / "other", "fr", "en"), save_completer(tmp_path / "writer")
    server, answers = Process(folder, f"de-en={other}", writer), []
    codes = [(one["code"], one["targets"]) for one in ask(server.address, "/languages").json]
    assert codes == [("en", ["fr"]), ("fr", []), ("de", ["en"])]
    assert [one["id"] for one in ask(server.address, "/v1/models").json["data"]] == ["writer"]
    text = ask(server.address, "/translate", FIELDS).json["translatedText"]
    stop = threading.Event()

    def keep_asking():
        while not stop.is_set():
            answers.append(ask(server.address, "/translate", FIELDS))

    thread = threading.Thread(target=keep_asking)
    thread.start()
    server.process.send_signal(signal.SIGHUP)
    server.wait("reloaded")
    config = os.path.join(folder, "config.toml")
    with open(config, "rb") as file:
        kept = file.read()
    with open(config, "ab") as file:
        file.write(b"\nbroken")
    server.lines.clear()
    server.process.send_signal(signal.SIGHUP)
    assert "config.toml" in server.wait("reload failed")["problem"]
    with open(config, "wb") as file:
        file.write(kept)
    stop.set()
    thread.join()
    assert answers
    assert {(one.status, one.json["translatedText"]) for one in answers} == {(200, text)}
    done = []
    thread = start_long(server.address, done, 300)
    server.process.send_signal(signal.SIGTERM)
    assert server.end() == 0
    thread.join()
    assert done == [200]
    assert server.lines[-2]["message"] == "stopped"
    with pytest.raises(OSError):  # noqa: PT011 (refused, or reset)
        ask(server.address, "/health", timeout=2)


def test_a_second_sigterm_ends_at_once_and_a_drain_has_a_limit(folder):
    server, done = Process(folder), []
    thread = start_long(server.address, done, 6000)
    server.process.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    assert server.process.poll() is None
    begun = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    assert server.end() == 1
    assert time.monotonic() - begun < 20
    thread.join()
    assert done != [200]
    server, done = Process(folder, "--drain-timeout", "0.5"), []
    thread = start_long(server.address, done, 6000)
    begun = time.monotonic()
    server.process.send_signal(signal.SIGINT)
    assert server.end() == 0
    assert time.monotonic() - begun < 30
    thread.join()


# What is refused before anything is served

def test_a_folder_without_languages_is_refused_with_the_hint(tmp_path):
    texting.translator().save(tmp_path / "model")
    code, out, said = call("serve", tmp_path / "model", "--port", "0")
    assert (code, out) == (2, "")
    assert f"regard serve en-fr={tmp_path / 'model'}" in said


def test_wrong_calls(tmp_path, folder, server):
    port = urllib.parse.urlsplit(server.address).port
    texting.filler().save(tmp_path / "filler")
    for arguments, said in (([], "MODEL"), ([tmp_path / "none"], "none"), ([folder, "--port", str(port)], str(port)),
                            ([f"xxxxxxx={folder}"], "MODEL"), ([folder, "--key-file", tmp_path / "keys"], "keys"),
                            ([tmp_path / "none", "--key-file", tmp_path / "keys"], "keys"),  # before models are loaded
                            ([folder, "--log", "xml"], "log"), ([tmp_path / "filler"], "Filler"),
                            ([folder, "--host", "256.1.1.1"], "256.1.1.1"),
                            ([folder, "--max-batch", "1000"], "max_batch")):
        port_given = [] if "--port" in arguments else ["--port", "0"]
        code, out, text = call("serve", *arguments, *port_given)
        assert (code, out) == (2, ""), arguments
        assert said in text, arguments


def test_a_key_is_shown_once_and_its_line_goes_to_the_file():
    code, out, said = call("serve", "--make-key", "alice")
    assert code == 0
    assert re.fullmatch(r"alice sha256:[0-9a-f]{64}\n", out)
    assert re.search(r"rg-[\w-]{40,}", said)
    assert call("serve", "--make-key", "a b")[0] == 2


def test_missing_packages_are_named(monkeypatch):
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "uvicorn" else real(name))
    code, _, said = call("serve", "model")
    assert code == 2
    assert "uvicorn" in said
    assert "pip install 'regard[serve]'" in said


@pytest.mark.parametrize("module", ["regard.cli.main", "regard.cli.serve"])
def test_the_command_imports_no_web_framework_before_it_runs(module):
    code = f"import sys, {module}; sys.exit(any(name in sys.modules for name in ('fastapi', 'uvicorn', 'torch')))"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
