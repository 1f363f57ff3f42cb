"""`regard compare`: trainings, trained models, and memory tasks."""

import json
import re

import pytest
import texting
import typer
from calling import call, tables

from regard.cli.compare import _is_model_folder, compare_memory
from regard.comparison import runs
from regard.tasks.heads import measure_heads

PAIRS = texting.pairs()
TINY = ("--set", "model.width=16", "--set", "tokenizer.vocab_size=400", "--set", "training.batches.max_tokens=300",
        "--budget", "tokens:300", "--quick")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Two translators, a model that does not translate, and data."""
    place = tmp_path_factory.mktemp("compare")
    texting.translator().save(place / "one" / "model")
    texting.translator(pair=texting.separate).save(place / "two" / "model")
    texting.completer().save(place / "completer")
    for name, pairs in (("pairs", PAIRS), ("few", PAIRS[:6])):
        (place / f"{name}.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in pairs),
                                           encoding="utf-8")
    return place


def test_a_folder_with_a_config_is_a_model(place):
    assert _is_model_folder(str(place / "completer"))
    assert not _is_model_folder(str(place))
    assert not _is_model_folder(str(place / "pairs.tsv"))
    assert not _is_model_folder(str(place / "nowhere"))


@pytest.mark.thorough
def test_two_trained_models(place, tmp_path):
    models = place / "one" / "model", place / "two" / "model"
    measured = measure_heads(texting.translator(), PAIRS[:2], name="heads.tsv")
    stored = measured.save(models[0])
    (models[1] / stored.name).write_bytes(stored.read_bytes())  # of another model: its page must not show them
    (found,) = tables("compare", *models, place / "few.tsv", "--beam", "1", "-o", tmp_path / "out")
    assert [model["name"] for model in found["models"]] == [str(model) for model in models]  # both are called model
    assert (found["kind"], found["pairs"], found["beams"]) == ("models", 6, 1)
    assert json.loads((tmp_path / "out" / "results.json").read_text(encoding="utf-8")) == found
    page = (tmp_path / "out" / "page.html").read_text(encoding="utf-8")
    assert "Sentence by sentence" in page
    linked = re.findall(r'href="([^"]+)"', page)
    assert len(linked) == sum(1 for one in found["sentences"] if one["difference"])
    for name in linked:  # a page with the attention of both models
        [text] = re.findall(r'id="page">([^<]*)<', (tmp_path / "out" / name).read_text(encoding="utf-8"))
        first, second = json.loads(text)["traces"]
        assert (first["heads"]["data"], len(first["heads"]["attentions"])) == ("heads.tsv", len(first["attentions"]))
        assert "heads" not in second
    code, out, said = call("compare", *models, place / "few.tsv", "--beam", "1")
    assert (code, said) == (0, "")
    assert f"{found['models'][0]['chrf']:.2f}" in out
    assert "95%" in out
    code, _, said = call("compare", *models, place / "few.tsv", "-o", tmp_path / "out")
    assert code == 2
    assert "exists already" in said


@pytest.mark.thorough
def test_recipes_are_trained_and_told_of(place, tmp_path):
    call_ = ("compare", place / "pairs.tsv", "--models", "attention", *TINY, "-o", tmp_path / "out")
    code, out, said = call(*call_)
    assert code == 0, said
    assert "300 target tokens" in out
    assert out.rstrip().endswith("page.html")
    assert "1 of 1: attention, seed 1" in said
    code, again, said = call(*call_, "--json")
    assert (code, "finished before" in said) == (0, True)
    assert call(*call_, "--json", "--quiet") == (0, again, "")
    assert json.loads(again)["models"][0]["name"] == "attention"


@pytest.mark.parametrize(("arguments", "message"), [
    ((), "Choose what to compare"),
    (("pairs.tsv",), "Choose what to compare"),
    (("pairs.tsv", "--road", "--models", "conv"), "not both"),
    (("pairs.tsv", "--models", "gpt"), "recipes that translate"),
    (("pairs.tsv", "--models", "tranformer"), 'Did you mean "transformer"'),
    (("pairs.tsv", "--models", ","), "at least one recipe"),
    (("pairs.tsv", "--road", "--budget", "money:3"), "`budget` must be"),
    (("pairs.tsv", "--road", "--set", "training.sed=3"), "seed"),
    (("nowhere.tsv", "--road"), "nowhere.tsv"),
    (("few.tsv", "--road"), "pairs"),
    (("--road", "--test", "pairs.tsv"), "--test and --validation need DATA"),
    (("one/model", "pairs.tsv"), "not 1: one/model"),
    (("one/model", "two/model"), "Give sentence pairs"),
    (("one/model", "two/model", "pairs.tsv", "--road"), "--road has no effect with trained models"),
    (("one/model", "completer", "pairs.tsv"), "completer: This command needs a translator"),
    (("one/model", "two/model", "nowhere.tsv"), "nowhere.tsv"),
    (("one/model", "nowhere", "pairs.tsv"), "nowhere: No such model folder"),
])
def test_what_is_wrong_is_said(place, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(place)
    code, out, said = call("compare", *arguments, "-o", tmp_path / "out")
    assert (code, out) == (2, "")
    assert message in said
    assert "Traceback" not in said


def test_an_interrupted_training_and_a_failed_one_have_their_exit_codes(place, tmp_path, monkeypatch):
    from regard.training.loop import TrainingError

    def raising(error):
        def compared(*given):
            raise error
        return compared

    for error, want in ((runs.InterruptedTraining("interrupted"), 130), (TrainingError("no number"), 1)):
        monkeypatch.setattr("regard.comparison.road.compare_road", raising(error))
        code, out, said = call("compare", place / "pairs.tsv", "--road", "-o", tmp_path / f"out{want}")
        assert (code, out) == (want, "")
        assert str(error) in said


def test_other_tasks_and_mixers_are_refused():
    for arguments, parts in ((("--task", "nothing"), ("--task", "recall", "label")),
                             (("--task", "copy", "--mixers", "nothing"), ("mixers", "rwkv7"))):
        code, _, said = call("compare", *arguments)
        assert code == 2
        assert all(part in said for part in parts)


def test_a_task_of_memory_is_asked_for_by_its_name(monkeypatch):
    asked = []
    monkeypatch.setattr("regard.cli.compare.compare_memory", lambda task, **given: asked.append((task, given)))
    assert call("compare", "--task", "copy", "--mixers", "rnn,attention", "--lengths", "8", "--seeds", "2", "--long",
                "--device", "cpu")[0] == 0
    assert asked == [("copy", {"mixers": "rnn,attention", "lengths": "8", "seeds": 2, "scale": "long", "as_json": False,
                               "output": None, "device": "cpu", "quiet": False})]
    assert call("compare", "--task", "recall")[0] == 0
    assert asked[1][1]["scale"] == "quick"


@pytest.mark.parametrize(("arguments", "words"), [
    (["--task", "copy", "pairs.tsv"], "DATA has no effect with --task"),
    (["--task", "copy", "--road", "--beam", "3"], "--road and --beam have no effect with --task"),
    (["--road", "--mixers", "rnn"], "--mixers has no effect without --task"),
    (["--road", "--long", "--lengths", "3"], "--lengths and --long have no effect without --task"),
])
def test_what_does_not_go_with_a_task(arguments, words):
    code, out, said = call("compare", *arguments)
    assert (code, out) == (2, "")
    assert words in said


COMPARE_MEMORY_TINY = {"mixers": "rnn, attention", "lengths": "2,3", "steps": 2, "rows": 2, "parameters": 6000,
                       "device": "cpu"}


@pytest.mark.thorough
def test_a_table_goes_to_stdout_and_progress_to_stderr(capfd):
    compare_memory("copy", **COMPARE_MEMORY_TINY)
    out, err = capfd.readouterr()
    assert [line.split()[0] for line in out.splitlines()[2:5]] == ["rnn", "attention", "without"]
    assert err.count("copy 2, ") == 2
    assert err.count("copy 3, ") == 2
    compare_memory("copy", **COMPARE_MEMORY_TINY, quiet=True)
    quiet_out, quiet_err = capfd.readouterr()
    assert len(quiet_out.splitlines()) == len(out.splitlines())
    assert quiet_err == ""


@pytest.mark.thorough
def test_json_and_the_folder_have_the_same_results(capfdbinary, tmp_path):
    compare_memory("recall", **COMPARE_MEMORY_TINY | {"lengths": "8"}, as_json=True, output=str(tmp_path / "made"),
                   seeds=2)
    shown = json.loads(capfdbinary.readouterr().out)
    assert [(one["mixer"], one["seed"]) for one in shown["results"]] == [("rnn", 0), ("rnn", 1), ("attention", 0),
                                                                         ("attention", 1)]
    assert json.loads((tmp_path / "made/recall.json").read_text(encoding="utf-8")) == shown
    names = {path.name for path in (tmp_path / "made").iterdir()}
    assert names == {"recall.json", "recall.txt", "recall.svg", "recall.png"}


@pytest.mark.parametrize(("call", "said"), [
    ({"task": "coppy"}, 'Did you mean "copy"'),
    ({"lengths": "2;3"}, "`lengths` must be whole numbers"),
    ({"lengths": "²"}, "`lengths` must be whole numbers"),
    ({"mixers": "transformer"}, "must be one of"),
    ({"device": "tpu"}, "--device"),
    ({"steps": 0}, "`steps` must be a whole number, at least 1"),
    ({"parameters": 10}, "`parameters` must be at least"),
    ({"output": "here/and/there"}, "parent folder"),
    ({"output": "."}, "exists already"),
])
def test_wrong_calls_end_with_2_and_one_message(call, said, capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(typer.Exit) as ended:
        compare_memory(**{"task": "copy", **COMPARE_MEMORY_TINY, **call})
    assert ended.value.exit_code == 2
    out, err = capfd.readouterr()
    assert not out
    assert err.startswith("Error: ")
    assert said in err
