"""Short trainings of tiny translators, from a few pairs of the phrasebook; and some that end before their time.

As a script it makes calls of `regard train`, each in a process of its own, forked when everything is imported:

    python trained.py FOLDER < calls.json      prints the exit code of each; what it says is in FOLDER/NUMBER.err
    python trained.py call CALL                one call in this process, as JSON; so torchrun can start it

A call may have a `moment`, at which a signal is sent to the process: when it is told of an event of a step, or before
its n-th touch of the file system after that, until another event; without an event, from the beginning.
"""

import hashlib
import importlib
import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from regard.data import phrasebook

TINY = {
    "model.width": 16, "model.encoder.layers": 1, "model.decoder.layers": 1, "model.encoder.mixer.heads": 2,
    "model.decoder.mixer.heads": 2, "model.decoder.cross.heads": 2, "model.encoder.feed_forward.ffn_width": 32,
    "model.decoder.feed_forward.ffn_width": 32, "tokenizer.vocab_size": 330, "training.batches.max_tokens": 300,
    "training.schedule.max_steps": 6, "training.validation.every": 3, "training.validation.max_examples": 2,
    "training.validation.metric": "loss",
    "training.checkpoints.every": 2, "training.checkpoints.keep": 1, "training.log_every": 1,
}
TOUCHES = {"os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.chmod", "os.chown", "fcntl.flock"}
TIMES = ("time", "seconds", "tokens_per_second", "memory")
"""What differs from one training to the next."""


def pairs(path, count=60, seed=0, split="train"):
    """A file of pairs."""
    found = phrasebook.pairs(count, seed=seed, split=split, max_words=6)
    Path(path).write_text("".join(f"{pair.source}\t{pair.target}\n" for pair in found), encoding="utf-8")
    return str(path)


def arguments(data, output, *more, **changes):
    """Those of a call of a tiny training."""
    given = {**TINY, **{key.replace("__", "."): value for key, value in changes.items()}}
    return ["train", str(data), "-o", str(output), "--device", "cpu",
            *(part for key, value in given.items() for part in ("--set", f"{key}={value}")), *map(str, more)]


def request(data, output, changes=(), **options):
    """A request of a tiny training, to be made in this process."""
    from regard.training.tasks.interface import TrainingRequest

    given = {"task": "seq2seq", "device": "cpu"} | options
    data = (data,) if isinstance(data, str | os.PathLike) else data
    return TrainingRequest(data=tuple(map(str, data)), output=Path(output), changes={**TINY, **dict(changes)}, **given)


class Recorder:
    """A logger that keeps all events, and may end the training."""

    name = "recorder"

    def __init__(self, stop=None):
        self.told, self.stop, self.closed = [], stop, 0

    def __call__(self, event):
        self.told.append(event)
        if self.stop == (type(event).__name__, getattr(event, "step", None)):
            raise KeyboardInterrupt

    def close(self):
        self.closed += 1

    def notes(self):
        return [event.text for event in self.told if type(event).__name__ == "Note"]

    def of(self, kind):
        return [event for event in self.told if type(event).__name__ == kind]


def called(folder, calls, patches=None):
    """The exit codes of calls, made one after another: (arguments, moment) of each.

    Args:
        patches: values of module attributes by their dotted names.
    """
    asked = [{"arguments": given, "moment": moment, "patches": patches or {}} for given, moment in calls]
    done = subprocess.run([sys.executable, __file__, str(folder)], input=json.dumps(asked), capture_output=True,
                          text=True, timeout=100 + 20 * len(calls), env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def metrics(folder):
    """The lines of metrics, without times."""
    lines = (Path(folder) / "metrics.jsonl").read_text().splitlines()
    return [{key: value for key, value in json.loads(line).items() if key not in TIMES} for line in lines]


def contents(folder):
    """All files of a training by their names, without times."""
    found = {}
    for path in sorted(Path(folder).rglob("*")):
        name, data = str(path.relative_to(folder)), path.read_bytes() if path.is_file() else None
        if path.name == "values.json":
            data = {**json.loads(data)}
            data["values"]["standing"].pop("seconds")
        elif path.suffix == ".safetensors":
            data = tensors(data)
        elif path.name == "metrics.jsonl":
            data = metrics(path.parent)
        elif path.name == "manifest.json" and path.parent.parent.name == "checkpoints":
            data = None  # it has the sha256 of values.json
        found[name] = data
    return found


def tensors(data):
    """The header and the bytes of a safetensors file. Its metadata is in no order."""
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8:8 + length]), hashlib.sha256(data[8 + length:]).hexdigest()


class Signals:
    """A logger that sends signals to its own process at a moment."""

    name = "signals"

    def __init__(self, event, step, name="SIGKILL", times=1, touch=None, until=None):
        self.event, self.step, self.times, self.touch, self.until = event, step, times, touch, until
        self.signal = signal.Signals[name]
        self.reached, self.counted = event is None, itertools.count()
        if touch is not None:
            sys.addaudithook(self._hook)
            self._sync, os.fsync = os.fsync, self._touched

    def __call__(self, event):
        what = [type(event).__name__, getattr(event, "step", None)]
        if what == [self.event, self.step]:
            self.reached = True
            if self.touch is None:
                self._send()
        elif what == self.until:
            self.reached = False

    def close(self):
        pass

    def _hook(self, event, given):
        if event in TOUCHES or (event == "open" and isinstance(given[2], int) and given[2] & (os.O_WRONLY | os.O_RDWR)):
            self._touched()

    def _touched(self, handle=None):
        if self.reached and next(self.counted) == self.touch:
            self._send()

    def _send(self):
        for _ in range(self.times):
            os.kill(os.getpid(), self.signal)


def _child(folder, number, call):
    """One call, as a process of its own would make it."""
    for stream, name in ((sys.stdout, "out"), (sys.stderr, "err")):
        stream.flush()
        os.dup2(os.open(f"{folder}/{number}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream.fileno())
    if call["moment"] is None:
        os.fsync = lambda handle: None
    try:
        _call(call)
    except SystemExit as end:
        sys.stderr.flush()
        os._exit(end.code or 0)


def _call(call):
    """Run the command line, which sends itself signals where it is told to."""
    from regard.cli import main
    from regard.training import progress

    for name, value in call.get("patches", {}).items():
        module, _, attribute = name.rpartition(".")
        setattr(importlib.import_module(module), attribute, value)
    if call["moment"] is not None:
        signals, shown = Signals(**call["moment"]), progress.progress_logger
        progress.progress_logger = lambda stream, **options: _Both(signals, shown(stream, **options))
    sys.argv = ["regard", *call["arguments"]]
    main.run()


class _Both:
    """Two loggers, the first of which is told first."""

    name = "progress"

    def __init__(self, *loggers):
        self.loggers = loggers

    def __call__(self, event):
        for logger in self.loggers:
            logger(event)

    def close(self):
        for logger in self.loggers:
            logger.close()


def _main(folder):
    for name in ("regard.cli.main", "regard.training.progress", "regard.training.train", "torch._dynamo", "sacrebleu"):
        importlib.import_module(name)  # once for all; the last two are imported by what a training uses
    codes = []
    for number, call in enumerate(json.load(sys.stdin)):
        child = os.fork()
        if not child:
            _child(folder, number, call)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    print(json.dumps(codes))


if __name__ == "__main__":
    if sys.argv[1] == "call":
        _call(json.loads(sys.argv[2]))
    else:
        _main(sys.argv[1])
