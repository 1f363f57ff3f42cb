"""Commands as a person types them, in bash, where `regard` answers at once.

Each call of `regard` is a process of its own, forked from one that has imported everything: what a shell sees of it,
pipes, files and exit codes, is as always, without the seconds that an import takes.

    with shell() as run:
        run("regard data phrasebook -n 5 | head -n 1", folder)

As a script it is that process: `python typed.py SOCKET`.
"""

import array
import contextlib
import importlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

IMPORTED = ("regard.cli.main", "regard.training.progress", "regard.training.train", "regard.tasks.load", "sacrebleu",
            "torch._dynamo")
CLIENT = """
import array, json, os, socket, sys
with socket.socket(socket.AF_UNIX) as link:
    link.connect(sys.argv[1])
    told = json.dumps({"arguments": sys.argv[2:], "folder": os.getcwd()}).encode()
    handles = array.array("i", [0, 1, 2])
    link.sendmsg([len(told).to_bytes(4, "big") + told], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, handles)])
    sys.exit(int(link.recv(8) or b"70"))
"""


@contextlib.contextmanager
def shell():
    """A function that runs lines in a folder and gives what bash gave."""
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "socket"
        process = subprocess.Popen([sys.executable, __file__, str(path)], env={**os.environ, "OMP_NUM_THREADS": "1"})
        try:
            until = time.monotonic() + 120
            while not path.exists():
                assert process.poll() is None, "the process that answers has ended"
                assert time.monotonic() < until, "the process that answers does not begin"
                time.sleep(0.05)
            yield lambda lines, folder, timeout=120: _typed(path, lines, folder, timeout)
        finally:
            process.terminate()
            process.wait()


def _typed(path, lines, folder, timeout):
    client = shlex.join([sys.executable, "-I", "-S", "-c", CLIENT, str(path)])
    script = f"regard() {{ {client} \"$@\"; }}\n{lines}"
    return subprocess.run(["bash", "-euo", "pipefail", "-c", script], cwd=folder, capture_output=True, text=True,
                          timeout=timeout, stdin=subprocess.DEVNULL)


def _serve(path):
    for name in IMPORTED:
        importlib.import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that answer
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()
        while True:
            link, _ = listening.accept()
            if not os.fork():
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                listening.close()
                _answer(link)
            link.close()


def _answer(link):
    """Run one call in a child, with the streams of whoever typed it, and tell its exit code."""
    handles = array.array("i")
    data, extra, _, _ = link.recvmsg(2**16, socket.CMSG_SPACE(3 * handles.itemsize))
    handles.frombytes(extra[0][2])
    while len(data) < 4 + int.from_bytes(data[:4], "big"):
        data += link.recv(2**16)
    asked = json.loads(data[4:])
    child = os.fork()
    if child:
        for handle in handles:
            os.close(handle)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        link.sendall(str(code if code >= 0 else 128 - code).encode())
        os._exit(0)
    link.close()
    for number, handle in enumerate(handles):
        os.dup2(handle, number)
        os.close(handle)
    os.chdir(asked["folder"])
    sys.argv = ["regard", *asked["arguments"]]
    from regard.cli import main

    try:
        main.run()
        code = 0
    except SystemExit as end:
        code = end.code or 0
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _serve(sys.argv[1])
