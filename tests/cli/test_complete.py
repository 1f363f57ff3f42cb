"""`regard complete`: the prompt, and what follows it."""

import pytest
import texting
from calling import call, tables

import regard


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("complete") / "model"
    texting.completer().save(place)
    return place


@pytest.mark.parametrize(("options", "asked"), [([], {}), (["--beam", "2"], {"beams": 2, "length_penalty": "mean"})])
def test_prompts_come_out_with_what_follows(folder, options, asked):
    want = regard.load(folder).complete(["the dog", "a"], limit=6, **asked)
    code, out, said = call("complete", folder, "the dog", "a", "--limit", "6", *options)
    assert (code, said) == (0, "")
    assert out == "".join(f"{one.prompt}{one.text}\n" for one in want)
    found = tables("complete", folder, "the dog", "--limit", "6", *options)
    assert found == [{"prompt": "the dog", "text": want[0].text, "score": pytest.approx(want[0].score),
                      "cut": want[0].cut}]


def test_all_of_standard_input_is_one_prompt(folder):
    (found,) = tables("complete", folder, "--limit", "2", stdin="the dog\n\nsleeps\n")
    assert found["prompt"] == "the dog\n\nsleeps"
    code, out, said = call("complete", folder, stdin="")
    assert (code, out) == (1, "\n")
    assert "`prompts` must be texts that are not empty" in said
