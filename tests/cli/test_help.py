"""Help, examples, aliases of options, and shell completion: what somebody meets before the first real call."""

import os
import re
import shlex
import subprocess
import sys
from dataclasses import fields

import numpy as np
import pytest
import texting
from calling import call
from typer.main import get_command

import regard
from regard.cli import main
from regard.cli.data import RULES
from regard.cli.options import EXAMPLES_ATTRIBUTE, OPTION_ALIASES, PANELS
from regard.data.filters import RULE_NAMES, FilterConfig
from regard.data.sources.formats import ENTRIES, FORMATS
from regard.tasks.task import MAX_BATCH_FACTOR, MAX_BATCH_TOKENS
from regard.tasks.translator import EXTRA_LENGTH, LENGTH_FACTOR

PO = 'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n\nmsgid "the dog"\nmsgstr ""\n'
TMX = ('<tmx version="1.4"><header/><body><tu><tuv xml:lang="en"><seg>the dog</seg></tuv>'
       '<tuv xml:lang="fr"><seg>le chien</seg></tuv></tu></body></tmx>')


def commands(command=None, path=()):
    """All commands and groups with their names: ("translate",), ("data",), ("data", "check")."""
    command = command or get_command(main.app)
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*path, name))


COMMANDS = dict(commands())
LEAVES = {path: command for path, command in COMMANDS.items() if not hasattr(command, "commands")}


def examples(path):
    return getattr(COMMANDS[path].callback, EXAMPLES_ATTRIBUTE, "").splitlines()


EXAMPLES = [line for path in COMMANDS for line in examples(path)]


def parsed(line):
    """The arguments of an example, and the file that it reads from standard input."""
    words = shlex.split(line, comments=True)
    assert words.pop(0) == "regard"
    for sign in ("|", ">"):
        if sign in words:
            words = words[:words.index(sign)]
    stdin = None
    if "<" in words:
        place = words.index("<")
        stdin, words = words[place + 1], words[:place] + words[place + 2:]
    return words, stdin


def command_of(words):
    """The command of an example and its own arguments."""
    path = ()
    while words and (*path, words[0]) in COMMANDS:
        path, words = (*path, words[0]), words[1:]
    return path, words


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_help_has_examples_and_fits_a_terminal(path):
    code, out, said = call(*path, "--help")
    assert (code, said) == (0, "")
    assert max(map(len, out.splitlines())) <= 80
    assert out.isascii()
    lines = examples(path)
    assert 2 <= len(lines) <= 5
    assert "\n".join(["Examples:", *(f"  {line}" for line in lines)]) in out


@pytest.mark.parametrize("line", EXAMPLES)
def test_every_example_is_a_call_that_its_command_accepts(line):
    words, _ = parsed(line)
    path, arguments = command_of(words)
    assert path in LEAVES
    if "--help" not in arguments:
        LEAVES[path].make_context(path[-1], arguments)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with everything that the examples name, and a folder with the model of each command."""
    place = tmp_path_factory.mktemp("examples")
    texting.translator(share_embeddings=True).save(place / "translate")
    texting.translator(pair=texting.several).save(place / "several")
    for command, make in (("complete", texting.completer), ("fill", texting.filler), ("classify", texting.classifier),
                          ("photos", texting.seer), ("label", texting.tagger), ("labeller", texting.character_tagger)):
        make().save(place / command)
    regard.task("tracks-tiny", observed_steps=5, predicted_steps=4, num_futures=6).save(place / "predict")
    walks = "frame,agent,x,y\n" + "".join(f"{10 * step},{agent},{0.4 * step},{agent + 0.1 * step}\n"
                                          for step in range(30) for agent in range(9))
    for name in ("live.csv", "tracks.csv"):
        (place / name).write_text(walks)
    pairs = "".join(f"{source}\t{target}\n" for source, target in texting.pairs()[:20])
    few = "".join(f"{source}\t{target}\n" for source, target in texting.pairs()[20:24])
    for name, text in (("pairs.tsv", pairs), ("test.tsv", few), ("valid.tsv", few), ("app.po", PO),
                       ("corpus.tmx", TMX), ("a.tsv", few), ("b.tsv", few)):
        (place / name).write_text(text, encoding="utf-8")
    for name in ("input.txt", "reviews.txt", "prompt.txt", "test.txt", "sentences.txt", "train.en", "test.en"):
        (place / name).write_text("the dog sleeps.\na cat sees a dog.\n")
    for name in ("train.fr", "test.fr"):
        (place / name).write_text("le chien dort.\nun chat voit un chien.\n")
    (place / "texts.txt").write_text("the ___ sleeps.\na cat sees ___.\n")
    return place


def runs(words):
    """Whether an example neither trains nor serves nor asks for a file that only Python writes."""
    path, _ = command_of(words)
    return path not in ((), ("demo",), ("train",), ("info",), ("config",)) and not {
        "--road", "--models", "--task", "trace.safetensors"} & {*words} and (
        path != ("look",) or "--terminal" in words or "-o" in words) and (path != ("serve",) or "--make-key" in words)


@pytest.mark.thorough
@pytest.mark.parametrize("line", [line for line in EXAMPLES if runs(parsed(line)[0])])
def test_every_example_that_is_quick_works(line, place, tmp_path, monkeypatch):
    words, stdin = parsed(line)
    for word, package in (("ctranslate2", "ctranslate2"), ("onnx", "onnxruntime"), ("huggingface", "transformers"),
                          ("cat.png", "matplotlib")):
        if word in words:
            pytest.importorskip(package)
    kind = {"look": "translate", "evaluate": "translate", "export": "translate", "compare": "translate"}
    links = {"model": kind.get(words[0], words[0]), "model-a": "translate", "model-b": "translate",
             "language-model": "complete", "other-model": "label" if words[0] == "label" else "translate",
             "my-model": "translate", "labeller": "labeller"}
    if "--direction" in words or (words[0] == "translate" and "--to" in words):
        links["model"] = "several"
    if "photos/" in words:
        module = pytest.importorskip("PIL.Image")
        links["model"] = "photos"
        (tmp_path / "photos").mkdir()
        for name in ("photos/a.png", "scan.png"):
            module.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / name)
    for path in place.iterdir():
        if path.is_file():
            (tmp_path / path.name).write_bytes(path.read_bytes())
    for name, folder in links.items():
        if (place / folder).is_dir():
            (tmp_path / name).mkdir()
            for path in (place / folder).iterdir():
                (tmp_path / name / path.name).write_bytes(path.read_bytes())
    if "labeller" in words:
        (tmp_path / "test.tsv").write_text("MKVLA\tCHHEC\n")
    monkeypatch.chdir(tmp_path)
    if words[0] in ("translate", "complete") and "--help" not in words:
        words += ["--max-length", "5"]
    if "--frames" in words:
        words[words.index("--frames") + 1] = "20"
    code, out, said = call(*words, stdin=None if stdin is None else (tmp_path / stdin).read_text())
    assert code == 0, said
    assert out or "-o" in words


def test_options_stand_in_the_same_sections_everywhere():
    for path, command in LEAVES.items():
        titles = {parameter.rich_help_panel for parameter in command.params if parameter.param_type_name == "option"}
        assert titles <= {*PANELS, "Memory tasks"}, path
    text = call("translate", "--help")[1]
    heads = re.findall(r"^(\w+):$", text, re.MULTILINE)
    assert heads == ["Arguments", "Data", "Search", "Sampling", "Constraints", "Engine", "Output", "Options",
                     "Examples"]


def test_no_line_breaks_inside_of_a_language_pair_or_an_option():
    text = call("train", "--help")[1]
    assert "en-fr:train.en,train.fr" in text
    assert "pt-BR-en" in text
    assert not re.search(r"-$", text, re.MULTILINE)


def test_an_option_has_the_same_section_and_words_in_all_commands():
    """Options with a meaning of their own in one command are left out."""
    found = {}
    for command in LEAVES.values():
        for parameter in command.params:
            name = f"{parameter.name} {parameter.opts}"
            if parameter.name in ("device", "as_json", "source", "format", "sample", "top_p"):
                found.setdefault(name, set()).add(parameter.rich_help_panel)
    assert len(found) >= 6
    assert all(len(titles) == 1 for titles in found.values()), found


def test_the_help_lists_every_command_once_and_by_sections():
    text = call("--help")[1]
    for path in COMMANDS:
        if len(path) == 1:
            assert len(re.findall(rf"^  {path[0]} ", text, re.MULTILINE)) == 1
    places = [text.index(f"\n{title}:\n") for title in main.SECTIONS]
    assert places == sorted(places)
    assert "docs/" in text


@pytest.mark.parametrize(("typed", "meant"), main.SIMILAR_COMMANDS.items())
def test_the_command_of_another_program_is_answered_with_ours(typed, meant):
    code, out, said = call(typed, "x")
    assert (code, out) == (2, "")
    assert f"'regard {meant}'" in said
    path, rest = command_of(meant.split())
    assert rest in ([], ["--tour"], ["--version"], ["--help"])
    assert path or rest


def test_a_quiet_check_shows_no_count(place, monkeypatch):
    monkeypatch.setattr("regard.cli.data.show_count", lambda *given: pytest.fail("it counts"))
    assert call("data", "check", place / "pairs.tsv", "--quiet")[::2] == (0, "")


# Numbers and names that the help repeats, since it may not import what defines them.

def test_what_the_help_says_of_defaults_is_true():
    def default(path, name):
        (parameter,) = [one for one in LEAVES[path].params if one.name == name]
        return parameter.show_default

    filters = {field.name: field.default for field in fields(FilterConfig)}
    for name in ("max_words", "max_characters", "max_length_ratio"):
        assert float(default(("data", "check"), name)) == filters[name]
    assert RULES == RULE_NAMES
    assert RULES[:5] == filters["drop"]
    assert default(("translate",), "max_length") == f"{LENGTH_FACTOR} x source length + {EXTRA_LENGTH}"
    most = MAX_BATCH_FACTOR * MAX_BATCH_TOKENS
    want = f"{MAX_BATCH_TOKENS} with torch, up to {most} for small models on a CPU"
    assert default(("translate",), "batch_tokens") == want


@pytest.mark.parametrize(("words", "want"), [
    ("translate --format ", {*FORMATS}), ("evaluate --format ", {*FORMATS, "conll"}),
    ("translate --entries ", {*ENTRIES}), ("data check --drop ", {*RULE_NAMES[5:]}),
    ("data check --keep ", {*RULE_NAMES[:5]}), ("translate --device ", {"auto", "cpu", "cuda"}),
])
def test_values_are_completed(words, want):
    *path, option, _ = words.split(" ")
    (parameter,) = [one for one in LEAVES[tuple(path)].params if option in one.opts]
    context = LEAVES[tuple(path)].make_context(path[-1], [], resilient_parsing=True)
    assert {item.value for item in parameter.shell_complete(context, "")} == want


# Names that other programs use

@pytest.mark.parametrize(("path", "arguments", "name", "value"), [
    ("translate", ["--beam-size", "3"], "beam", 3), ("translate", ["-b", "3"], "beam", 3),
    ("translate", ["--beam_size", "3"], "beam", 3), ("translate", ["--beam_size=3"], "beam", 3),
    ("translate", ["--num-beams", "3"], "beam", 3), ("translate", ["--num_beams=3"], "beam", 3),
    ("translate", ["--n-best", "2"], "nbest", 2), ("translate", ["--n_best", "2"], "nbest", 2),
    ("translate", ["--num-return-sequences", "2"], "nbest", 2), ("complete", ["--n-best", "2"], "nbest", 2),
    ("translate", ["--lenpen", "0.6"], "length_penalty", "0.6"), ("translate", ["--do-sample"], "sample", True),
    ("complete", ["--max-new-tokens", "7"], "max_length", 7), ("translate", ["--min_len", "2"], "min_length", 2),
    ("translate", ["--src", "en"], "source", "en"), ("translate", ["--batch_tokens", "512"], "batch_tokens", 512),
    ("evaluate", ["--beam_size", "2"], "beam", 2), ("look", ["-b", "2"], "beam", 2),
    ("compare", ["-b", "2"], "beam", 2),
    ("translate", ["--device", "gpu"], "device", "cuda"), ("translate", ["--device", "gpu:1"], "device", "cuda:1"),
    ("translate", ["--device", "cpu"], "device", "cpu"), ("fill", ["--device", "gpu"], "device", "cuda"),
    ("translate", ["-q"], "quiet", True),
])
def test_names_of_other_programs_are_accepted_without_a_notice(path, arguments, name, value, capsys):
    context = LEAVES[(path,)].make_context(path, ["model", "text", *arguments])
    assert context.params[name] == value
    assert capsys.readouterr().err == ""


def test_what_follows_two_dashes_is_a_text():
    context = LEAVES[("translate",)].make_context("translate", ["model", "--", "--beam_size", "--num-beams"])
    assert context.params["texts"] == ["--beam_size", "--num-beams"]


def test_aliases_name_options_that_exist():
    known = {name for command in LEAVES.values() for parameter in command.params for name in parameter.opts}
    assert {*OPTION_ALIASES.values()} <= known
    assert not {*OPTION_ALIASES} & known


# Shell completion

def completed(shell, words, **more):
    """What the shell gets, in a process that fails if torch is imported."""
    code = """
import sys
from regard.cli import main
try:
    main.run()
except SystemExit as end:
    sys.exit(3 if "torch" in sys.modules else end.code)
"""
    environment = {**os.environ, "_REGARD_COMPLETE": f"complete_{shell}", "COMP_WORDS": words,
                   "COMP_CWORD": str(words.count(" ")), "_TYPER_COMPLETE_ARGS": words, **more}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environment)
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


def test_bash_completes_commands_options_and_leaves_files_to_itself():
    assert completed("bash", "regard tr").split() == ["train", "translate"]
    assert completed("bash", "regard translate --be").split() == ["--beam", "--beam-size"]
    assert completed("bash", "regard data ").split() == ["check", "phrasebook", "tracks"]
    assert completed("bash", "regard translate mod").split() == []  # nothing: bash completes file names


@pytest.mark.thorough
def test_zsh_and_fish_complete_too():
    found = completed("zsh", "regard tr")
    assert '"train":' in found
    assert '"translate":' in found
    assert completed("zsh", "regard translate mod").strip() == "_files"
    found = completed("fish", "regard tr", _TYPER_COMPLETE_FISH_ACTION="get-args")
    assert [line.split("\t")[0] for line in found.splitlines()] == ["train", "translate"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_for_each_shell(shell):
    environment = {**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    result = subprocess.run([sys.executable, "-m", "regard", "--show-completion", shell], capture_output=True,
                            text=True, timeout=60, env=environment)
    assert (result.returncode, result.stderr) == (0, "")
    assert "_REGARD_COMPLETE" in result.stdout
    assert f"complete_{shell}" in result.stdout


# Versions and devices

@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine without GPUs, to which a test adds some."""
    for name, folder in (("GPU_FOLDER", "gpus"), ("DEVICE_FOLDER", "dev")):
        (tmp_path / folder).mkdir()
        monkeypatch.setattr(main, name, tmp_path / folder)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("importlib.metadata.version", lambda name: "2.11.0+cu126")
    return tmp_path


def add_gpu(machine, number, name):
    folder = machine / "gpus" / f"0000:{number:02}:00.0"
    folder.mkdir()
    (folder / "information").write_text(f"Model: \t\t {name}\nIRQ:   \t 12\n")


def test_the_device_is_the_cpu_or_the_gpus_that_are_visible(machine, monkeypatch):
    assert re.fullmatch(r"Device: CPU, \d+ cores?", main.version_lines()[-1])
    add_gpu(machine, 1, "NVIDIA H200")
    add_gpu(machine, 2, "NVIDIA A10")
    assert main.version_lines()[-1] == "Device: NVIDIA H200, NVIDIA A10"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "CPU" in main.version_lines()[-1]
    monkeypatch.setattr("importlib.metadata.version", lambda name: "2.11.0+cpu")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert "CPU" in main.version_lines()[-1]
    assert "NVIDIA H200" in main.version_lines()[-1]


def test_a_gpu_of_a_container_without_the_drivers_folder(machine):
    (machine / "dev" / "nvidia0").write_text("")
    (machine / "dev" / "nvidiactl").write_text("")
    assert main.version_lines()[-1] == "Device: NVIDIA GPU"
