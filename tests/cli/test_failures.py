"""A full disk, a file-size limit, too little memory, closed pipes: one sentence, exit code 1, and no half file."""

import os
import resource
import subprocess
import sys

import calling
import pytest
from tests.cli.test_main import ENVIRONMENT, REGARD, extra

from regard.data import phrasebook


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with data and a model of a few steps."""
    folder = tmp_path_factory.mktemp("limits")
    pairs = [(pair.source, pair.target) for pair in phrasebook.pairs(200, split="train")]
    (folder / "pairs.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
    (folder / "texts.txt").write_text("".join(f"{source}\n" for source, _ in pairs[:20]))
    trained = call(folder, "train", "pairs.tsv", "-o", "model", "--steps", "2", "--width", "32", "--layers", "1")
    assert trained.returncode == 0, trained.stderr
    return folder


def call(folder, *arguments, limit=None, **options):
    """Run the command; `limit` is the size of the largest file that it may write."""
    def restrict():
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    environment = {**ENVIRONMENT, "OMP_NUM_THREADS": "1", **options.pop("environment", {})}
    return subprocess.run([*REGARD, *arguments], cwd=folder, capture_output=True, text=True, timeout=300,
                          env=environment, preexec_fn=restrict, **options)


def assert_one_sentence(result, *words):
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    last = result.stderr.splitlines()[-1]
    assert last.startswith("Error: ")
    assert all(word in last for word in words), last


@pytest.mark.parametrize(("arguments", "limit", "name"), [
    (("look", "model", "A cat sleeps.", "-o", "look.html"), 5000, "look.html"),
    (("look", "model", "A cat sleeps.", "-o", "look.svg"), 1000, "look.svg"),
    (("look", "model", "A cat sleeps.", "-o", "look.safetensors"), 1000, "look.safetensors"),
    (("evaluate", "model", "pairs.tsv", "-o", "made.txt", "--beam", "1"), 10, "made.txt"),
    (("train", "pairs.tsv", "-o", "new", "--steps", "2"), 100_000, "new"),
])
def test_a_file_size_limit(place, arguments, limit, name):
    before = {path.name for path in place.iterdir()}
    assert_one_sentence(call(place, *arguments, limit=limit), name, "File too large", "ulimit -f")
    after = {path.name for path in place.iterdir()} - before
    assert after <= {"new"}  # a training that has begun keeps its folder
    assert not list((place / "new").glob("*.safetensors"))


def test_an_interrupted_translation_resumes_after_the_limit(place):
    arguments = ("translate", "model", "texts.txt", "-o", "made.txt", "--beam", "1", "--max-length", "8")
    assert_one_sentence(call(place, *arguments, limit=600), "made.txt.progress", "File too large")
    assert not (place / "made.txt").exists()
    assert call(place, *arguments).returncode == 0
    assert len((place / "made.txt").read_text().splitlines()) == 20


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
@pytest.mark.parametrize("arguments", [("translate", "model", "A cat sleeps."), ("info", "model"),
                                       ("look", "model", "A cat sleeps.", "--terminal"), ("config",)])
def test_a_full_stdout(place, arguments):
    with open("/dev/full", "w") as full:
        result = subprocess.run([*REGARD, *arguments], cwd=place, stdout=full, stderr=subprocess.PIPE, text=True,
                                env=ENVIRONMENT, timeout=300)
    assert_one_sentence(result, "No space left on device")


@pytest.mark.parametrize("closed", ["stdout", "stderr"])
def test_a_reader_that_has_gone(place, closed):
    reading, writing = os.pipe()
    os.close(reading)
    other = {"stdout": "stderr", "stderr": "stdout"}[closed]
    result = subprocess.run([*REGARD, "translate", "model", "texts.txt", "--mbr", "3", "--beam", "1"], cwd=place,
                            env=ENVIRONMENT, timeout=300, **{closed: writing, other: subprocess.PIPE})
    os.close(writing)
    assert result.returncode in (1, 2)
    assert b"Traceback" not in (result.stdout or b"") + (result.stderr or b"")


@pytest.mark.parametrize(("error", "words"), [
    ("OSError(28, 'No space left on device', 'a b\\\\x1b[31m')", ("a b\\x1b[31m", "No space", "Free some space")),
    ("OSError(122, 'Disk quota exceeded', 'file')", ("file", "quota")),
    ("MemoryError()", ("Not enough memory", "GiB")),
    ("RuntimeError('DefaultCPUAllocator: not enough memory: you tried to allocate 5368709120 bytes.')",
     ("5.0 GiB were requested",)),
])
def test_errors_of_the_machine_are_one_sentence(error, words):
    result = subprocess.run(extra(f"raise {error}"), capture_output=True, text=True, timeout=60, env=ENVIRONMENT)
    assert_one_sentence(result, *words)
    assert result.stderr.count("\n") == 1


def test_the_message_names_settings_of_the_command(place):
    program = ("import regard.tasks.load as load\n"
               "def fail(*a, **k): raise MemoryError\n"
               "load.load = fail\n"
               "import sys\nsys.argv = ['regard', 'translate', 'model', 'a']\n"
               "from regard.cli.main import run\nrun()\n")
    result = subprocess.run([sys.executable, "-c", program], cwd=place, capture_output=True, text=True, timeout=60,
                            env=ENVIRONMENT)
    assert_one_sentence(result, "--beam", "shorter texts")


@pytest.mark.parametrize("options", [("--width", "120000"), ("--set", "model.width=120000"), ("--layers", "10000000")])
def test_an_absurd_size_is_refused_before_memory_is_taken(place, options):
    result = call(place, "train", "pairs.tsv", "-o", "huge", *options)
    assert result.returncode == 2
    assert "parameters" in result.stderr
    assert "iB of memory" in result.stderr
    assert "REGARD_CHECK_MEMORY=0" in result.stderr
    assert not (place / "huge").exists()


@pytest.mark.parametrize("more", [(), ("--set", "training.windows.order=continuous")])
def test_an_absurd_window_is_refused_before_memory_is_taken(place, more):
    result = call(place, "train", "texts.txt", "-o", "long", "--task", "language", "--recipe", "lstm-tiny",
                  "--set", "training.windows.length=1000000000", *more)
    assert result.returncode == 2
    assert "1,000,000,000 tokens" in result.stderr
    assert "training.windows.length" in result.stderr
    assert not (place / "long").exists()


def test_a_model_whose_config_asks_for_more_than_memory(place):
    from regard.storage import folder as folders

    files = folders.load(place / "model", lambda saved: {name: saved.read_bytes(name) for name in saved.manifest.files})
    config = files["config.toml"].replace(b"width = 32", b"width = 33554432", 1)
    folders.save(place / "swollen", {**files, "config.toml": config})
    result = call(place, "translate", "swollen", "a")
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    assert "13,510,841,966,002,304" in result.stderr  # parameters


@pytest.mark.parametrize("option", ["--beam", "--nbest", "--mbr"])
def test_a_billion_beams_are_refused_at_once(place, option):
    code, _, said = calling.call("translate", place / "model", "a", option, "1000000000")
    assert code == 2
    assert option in said
    assert "10000" in said
