"""`regard compare --task`: a table or JSON, a folder with the same and a picture, and errors before any work."""

import json

import pytest
import typer

from regard.cli.compare import compare_memory

TINY = {"mixers": "rnn, attention", "lengths": "2,3", "steps": 2, "rows": 2, "parameters": 6000, "device": "cpu"}


def test_a_table_goes_to_stdout_and_progress_to_stderr(capfd):
    compare_memory("copy", **TINY)
    out, err = capfd.readouterr()
    assert [line.split()[0] for line in out.splitlines()[2:5]] == ["rnn", "attention", "without"]
    assert err.count("copy 2, ") == 2
    assert err.count("copy 3, ") == 2


def test_json_and_the_folder_have_the_same_results(capfdbinary, tmp_path):
    compare_memory("recall", **TINY | {"lengths": "8"}, as_json=True, output=str(tmp_path / "made"), seeds=2)
    shown = json.loads(capfdbinary.readouterr().out)
    assert [(one["way"], one["seed"]) for one in shown["results"]] == [("rnn", 0), ("rnn", 1), ("attention", 0),
                                                                       ("attention", 1)]
    assert json.loads((tmp_path / "made/recall.json").read_text(encoding="utf-8")) == shown
    names = {path.name for path in (tmp_path / "made").iterdir()}
    assert names == {"recall.json", "recall.txt", "recall.svg", "recall.png"}


@pytest.mark.parametrize(("call", "said"), [
    ({"task": "coppy"}, 'Did you mean "copy"'),
    ({"lengths": "2;3"}, "`lengths` must be whole numbers"),
    ({"lengths": "²"}, "`lengths` must be whole numbers"),
    ({"mixers": "transformer"}, "must be one of"),
    ({"device": "tpu"}, "`device` must be cpu, cuda or auto"),
    ({"steps": 0}, "`steps` must be a whole number, at least 1"),
    ({"parameters": 10}, "`parameters` must be at least"),
    ({"output": "here/and/there"}, "parent folder"),
    ({"output": "."}, "exists already"),
])
def test_wrong_calls_end_with_2_and_one_message(call, said, capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(typer.Exit) as ended:
        compare_memory(**{"task": "copy", **TINY, **call})
    assert ended.value.exit_code == 2
    out, err = capfd.readouterr()
    assert not out
    assert err.startswith("Error: ")
    assert said in err
