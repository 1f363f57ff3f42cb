"""The demo: it does what it says, tells the truth about its score, keeps or removes the model, and prints anywhere."""

import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import browser_visits
import pytest
import torch
from calling import call

import regard
from regard.cli import demo
from regard.data import phrasebook
from regard.inspection.page.document import page_html
from regard.tasks import traces
from regard.tasks.alignment import Alignment, alignment_error_rate, links_between
from regard.tasks.influence import traced_influence
from regard.terminal import Terminal, escape_unprintable
from regard.training import train as training
from regard.training.loop import TrainingError

pytestmark = pytest.mark.thorough

SMALL = demo.DemoSetting(pairs=60, max_words=6, validation_pairs=5, test_pairs=6, min_bleu=-1.0, changes={
    **demo.DEMO_CHANGES, "tokenizer.vocab_size": 400, "model.width": 16, "training.batches.max_tokens": 200,
    "training.schedule.max_steps": 4, "training.schedule.warmup_steps": 1, "training.validation.every": 2})


def stream():
    return io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="\n")


def text(out):
    out.flush()
    return out.buffer.getvalue().decode()


def show(output=None, setting=SMALL):
    """Exit code, and what is on the two streams."""
    out, said = stream(), stream()
    code = demo.run_demo(out, said, output, setting)
    return code, text(out), text(said)


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A folder, and all that was printed while it was made."""
    folder = tmp_path_factory.mktemp("demo") / "model"
    return folder, show(str(folder))


@pytest.fixture
def asked(monkeypatch):
    """The requests for a training, none of which is made; each with the lines of its files."""
    seen = []

    def train(request, loggers):
        files = [Path(name).read_text(encoding="utf-8").splitlines() for name in (*request.data, *request.validation)]
        seen.append((request, *files))
        return SimpleNamespace(finished=False)

    monkeypatch.setattr(training, "train", train)
    return seen


def test_results_and_progress_are_apart(kept):
    _, (code, out, said) = kept
    assert code == 0
    headings = ["Training a small Transformer", "Translations of test", "Attention", "BLEU ", "What to try next"]
    places = [out.index(f"\n{heading}") for heading in headings]
    assert places == sorted(places)
    assert "Finished 4 steps" in said
    assert "Finished" not in out
    assert "CPU core" in said
    assert not set(said.splitlines()) & set(out.splitlines()) - {""}


def test_what_is_shown_is_what_the_model_says(kept):
    folder, (_, out, _) = kept
    translator = regard.load(folder)
    test = [*phrasebook.pairs(SMALL.test_pairs, split="test", max_words=SMALL.max_words)]
    made = [one.text for one in translator.translate([pair.source for pair in test], beams=1, length_penalty="none")]
    unbroken = "".join(out.split())  # a long word is broken too
    for pair, translation in zip(test[:demo.SHOWN_TRANSLATIONS], made, strict=False):
        shown = f"{pair.source} {escape_unprintable(translation) or '(empty)'} (reference: {pair.target})"
        assert "".join(shown.split()) in unbroken
    score = demo.score_translator(translator, test)
    assert f"BLEU {score.bleu:.1f} on {SMALL.test_pairs} test sentences" in out


def test_the_kept_model_is_named_in_what_to_try_next(kept):
    folder, (_, out, _) = kept
    commands = [shlex.split(line) for line in out.splitlines() if line.startswith("  regard ")]
    (pair,) = phrasebook.pairs(1, split="test", max_words=SMALL.max_words)
    assert ["regard", "look", str(folder), pair.source] in commands
    assert ["regard", "info", str(folder)] in commands
    assert "removed" not in out
    (translate,) = [command for command in commands if command[1] == "translate"]
    code, found, _ = call(*translate[1:])
    assert code == 0
    assert found.endswith("\n")


def test_without_a_folder_nothing_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code, out, _ = show()
    assert code == 0
    assert "regard demo -o my-model" in out
    assert [*tmp_path.iterdir()] == []


def test_a_low_score_is_a_failure():
    code, out, _ = show(setting=replace(SMALL, min_bleu=90.0))
    assert code == 1
    assert "too low" in out
    assert "above 90" in out


def test_a_score_that_is_just_the_wanted_one_is_too_low():
    out = stream()
    demo.show_score(Terminal.of(out), demo.DemoResult([], [], 90.0, ""), 90.0, 1.0)
    assert "too low" in text(out)


def test_something_in_the_folder_is_left_alone(tmp_path, asked, capsys):
    (tmp_path / "mine.txt").write_text("mine")
    code, out, _ = show(str(tmp_path))
    assert (code, out) == (2, "")
    assert f"{tmp_path}: It exists already" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    assert not asked


def test_a_folder_that_cannot_be_made(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    code, _, _ = show(str(tmp_path / "file" / "model"))
    assert code in (1, 2)
    said = capsys.readouterr().err
    assert said.startswith("Error: ")
    assert "file" in said


def test_it_learns_from_the_training_split_alone_and_not_from_links(asked):
    show()
    ((request, learned, judged),) = asked
    assert request.task == "seq2seq"
    assert (len(learned), len(judged)) == (SMALL.pairs, SMALL.validation_pairs)
    assert learned == [f"{pair.source}\t{pair.target}" for pair in
                       phrasebook.pairs(SMALL.pairs, split="train", max_words=SMALL.max_words)]
    test = {pair.source for pair in phrasebook.pairs(SMALL.test_pairs, split="test", max_words=SMALL.max_words)}
    assert not test & {line.split("\t")[0] for line in learned + judged}


def test_an_interrupted_training_shows_no_results(asked):
    code, out, _ = show()
    assert code == 130
    assert "BLEU" not in out


def test_a_training_that_fails(monkeypatch, capsys):
    def train(request, loggers):
        raise TrainingError("step 3: the loss is not a finite number")

    monkeypatch.setattr(training, "train", train)
    code, _, _ = show()
    assert code == 1
    assert capsys.readouterr().err == "Error: step 3: the loss is not a finite number\n"


def test_a_reader_that_has_gone_is_left_to_the_command():
    class Gone(io.StringIO):
        def write(self, _):
            raise BrokenPipeError(32, "Broken pipe")

    with pytest.raises(BrokenPipeError):
        demo.run_demo(Gone(), stream(), None, SMALL)


def test_threads_are_as_many_as_before(asked, monkeypatch):
    counts = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    monkeypatch.setattr(torch, "set_num_threads", counts.append)
    show()
    assert counts == [demo.THREADS, 64]


@pytest.mark.parametrize("environment", [{"COLUMNS": "20"}, {"COLUMNS": "20", "LC_ALL": "C"}, {"NO_COLOR": "1"}])
def test_any_terminal(environment, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    code, out, said = show()
    assert code == 0
    assert "\x1b" not in out + said
    lines = [line for line in (out + said).splitlines() if not line.startswith("  regard ")]  # made to be copied
    assert max(map(len, lines)) <= int(environment.get("COLUMNS", 80))
    assert (out + said).isascii() == ("LC_ALL" in environment)


class Looking:
    """A translator whose weights are given: for each translation the source word of each of its words."""

    def __init__(self, looks):
        self.looks = looks

    def aligned(self, source, translation):
        weights = torch.nn.functional.one_hot(torch.tensor(self.looks[translation]), 3).float()
        return Alignment(("a", "b", "c"), tuple(translation), weights)


def graded(*made, right):
    pairs = [phrasebook.AlignedPair(f"source {number}", one if one in right else "other", (), (), ())
             for number, one in enumerate(made)]
    return demo.DemoResult(pairs, made, 95.0, "signature")


@pytest.mark.parametrize(("right", "found"), [
    ({"xyz", "uvw", "rst"}, "uvw"),  # the first whose words change places
    ({"xyz", "rst"}, "rst"), ({"xyz"}, "xyz"), (set(), "other"),
])
def test_the_alignment_is_of_a_right_translation_where_words_change_places(right, found):
    looks = {"xyz": [0, 1, 2], "uvw": [0, 2, 1], "rst": [1, 0, 2], "other": [0, 1, 2, 2, 2]}
    alignment = demo.find_alignment(Looking(looks), graded("xyz", "uvw", "rst", right=right))
    assert "".join(alignment.target) == found


def test_the_alignment_is_drawn_as_it_is():
    out = stream()
    demo.show_alignment(Terminal.of(out), Looking({"uv": [2, 0]}).aligned("", "uv"))
    assert re.search(r"^ +a +b +c$", text(out), re.M)
    assert re.search(r"^u│ +██│$", text(out), re.M)
    assert re.search(r"^v│██ +│$", text(out), re.M)


def test_the_reference_is_shown_where_it_is_another():
    out = stream()
    demo.show_translations(Terminal.of(out), graded("un", "deux\x1b[31m", right={"un"}))
    assert text(out).splitlines()[-5:] == [
        "  source 0", "    un", "  source 1", "    deux\\x1b[31m", "    (reference: other)"]
    assert graded("un", "deux", "un", right={"un"}).exact == 2


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_whole_demo_translates_what_it_has_not_seen(tmp_path):
    """As a user starts it. About a minute on two cores that have nothing else to do."""
    folder = tmp_path / "model"
    result = subprocess.run([sys.executable, "-m", "regard", "demo", "-o", folder], capture_output=True, timeout=1150,
                            env={**os.environ, "PYTHONIOENCODING": "utf-8", "LC_ALL": "C.UTF-8"})
    out = result.stdout.decode()
    assert result.returncode == 0, out + result.stderr.decode()
    assert float(re.search(r"^BLEU ([0-9.]+) on 500 test sentences", out, re.M)[1]) > 90
    unseen = [*phrasebook.pairs(100, split="test", max_words=demo.DemoSetting().max_words, seed=1)]
    task = regard.load(folder)
    assert demo.score_translator(task, unseen).bleu > 90
    links = [links_between(task.aligned(pair.source, pair.target), pair.source_offsets, pair.target_offsets)
             for pair in unseen]
    assert alignment_error_rate(links, [pair.alignment for pair in unseen]) < 0.15  # measured: 0.10
    assert_the_page_names_what_was_lost(task, tmp_path)


def assert_the_page_names_what_was_lost(task, folder):
    """The first line of the page names a word of the source that the translation has not, and that changes nothing."""
    text = "The two cats slept in the garden."
    trace = traces.trace_translation(task, text, influence_limit=traces.INFLUENCE_LIMIT)
    if "deux" in trace.sides["target"].text.split() or not any(map(shutil.which, browser_visits.CHROMIUM)):
        return
    assert "two" in traced_influence(trace).without_effect
    (folder / "page.html").write_text(page_html([trace]), encoding="utf-8")
    with (browser_visits.browser() as chromium,
          browser_visits.visiting(chromium, (folder / "page.html").as_uri(), size=(1440, 900)) as visit):
        page = visit.open("read")
        page.wait_for_selector(".ribbons path")
        assert "two" in page.locator(".verdict .fact.bad").all_inner_texts()
