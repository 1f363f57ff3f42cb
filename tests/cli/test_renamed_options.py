"""Old names of options and arguments: they still work, and a notice names the new one."""

import pytest
import texting
from typer.main import get_command

import regard
from regard.cli.main import app
from regard.cli.options import RENAMED_OPTIONS

SEARCH = [("--limit", "7", "max_length", 7), ("--least", "2", "min_length", 2),
          ("--no-repeat", "3", "no_repeat_ngram_size", 3), ("--groups", "2", "num_beam_groups", 2),
          ("--diversity", "1.5", "diversity_penalty", 1.5)]
OLD = [*((("translate",), ["model", "text"], *one) for one in SEARCH),
       (("translate",), ["model", "text"], "--coverage", "0.2", "coverage_penalty", 0.2),
       *((("complete",), ["model", "text"], *one) for one in SEARCH),
       (("look",), ["model", "text"], "--limit", "4", "max_length", 4),
       (("fill",), ["model", "text"], "--count", "2", "top_k", 2),
       (("train",), ["data.tsv", "-o", "model"], "--track", None, "tensorboard", True),
       (("compare",), [], "--ways", "rnn", "mixers", "rnn"),
       (("data", "check"), ["data.tsv"], "--longest-words", "9", "max_words", 9),
       (("data", "check"), ["data.tsv"], "--longest-characters", "90", "max_characters", 90),
       (("data", "check"), ["data.tsv"], "--ratio", "3", "max_length_ratio", 3.0),
       (("data", "phrasebook"), [], "--longest", "8", "max_words", 8)]


def parsed(names, arguments):
    """The values of a command's parameters."""
    command = get_command(app)
    for name in names:
        command = command.commands[name]
    return command.make_context(names[-1], list(arguments)).params


@pytest.mark.parametrize(("names", "arguments", "old", "text", "name", "value"), OLD)
def test_an_old_option_is_the_new_one(names, arguments, old, text, name, value, capsys):
    given = [old] if text is None else [old, text]
    assert parsed(names, [*arguments, *given])[name] == value
    assert capsys.readouterr().err == f"{old} is now called {RENAMED_OPTIONS[old]}.\n"
    if text is not None:
        assert parsed(names, [*arguments, f"{old}={text}"])[name] == value


def test_every_old_option_is_tested():
    assert {old for _, _, old, *_ in OLD} == {*RENAMED_OPTIONS}


@pytest.mark.parametrize(("arguments", "texts"), [(["model", "--", "--limit"], ["--limit"]),
                                                  (["model", "--max-length", "5", "x"], ["x"])])
def test_texts_and_new_options_have_no_notice(arguments, texts, capsys):
    assert parsed(["translate"], arguments)["texts"] == texts
    assert not capsys.readouterr().err


@pytest.mark.parametrize(("make", "old", "new"), [
    (regard.Beam, {"limit": 5, "least": 2, "no_repeat": 3, "groups": 1, "diversity": 0.1, "coverage": 0.2},
     {"max_length": 5, "min_length": 2, "no_repeat_ngram_size": 3, "num_beam_groups": 1, "diversity_penalty": 0.1,
      "coverage_penalty": 0.2}),
    (regard.Sampling, {"tries": 3, "limit": 5}, {"num_samples": 3, "max_length": 5}),
])
def test_an_old_argument_is_the_new_one(make, old, new):
    with pytest.warns(FutureWarning, match="is now called"):
        assert make(**old) == make(**new)


def test_methods_of_tasks_take_old_arguments():
    translator, completer, filler = texting.translator(), texting.completer(), texting.filler()
    for method, text, old, new in (
            (translator.translate, "the dog", {"limit": 3, "least": 1}, {"max_length": 3, "min_length": 1}),
            (translator.sample, "the dog", {"tries": 2, "limit": 3}, {"num_samples": 2, "max_length": 3}),
            (translator.translate_ids, [[5, 3]], {"limit": 3}, {"max_length": 3}),
            (completer.complete, "the", {"limit": 3, "no_repeat": 2}, {"max_length": 3, "no_repeat_ngram_size": 2}),
            (completer.sample, "the", {"tries": 2, "limit": 3}, {"num_samples": 2, "max_length": 3}),
            (completer.complete_ids, [[5]], {"limit": 3}, {"max_length": 3}),
            (filler.fill, "the ___", {"count": 2}, {"top_k": 2})):
        with pytest.warns(FutureWarning, match="is now called"):
            assert method(text, **old) == method(text, **new)
