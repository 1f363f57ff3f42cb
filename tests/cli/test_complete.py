"""`regard complete`: the prompt, and what follows it: found, drawn, or as it is written."""

import pytest
import texting
from calling import call, lines, tables

import regard


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("complete") / "model"
    texting.completer(of=texting.tokenizer).save(place)
    return place


@pytest.mark.thorough
@pytest.mark.parametrize(("options", "asked"), [
    ([], {}), (["--beam", "2"], {"beams": 2, "length_penalty": "mean"}), (["--min-length", "5"], {"min_length": 5}),
    (["--no-repeat-ngram-size", "1"], {"no_repeat_ngram_size": 1}), (["--beam", "2", "--length-penalty", "none"],
                                                                     {"beams": 2}),
])
def test_prompts_come_out_with_what_follows(folder, options, asked):
    want = regard.load(folder).complete(["the dog", "a"], max_length=6, **asked)
    code, out, said = call("complete", folder, "the dog", "a", "--max-length", "6", *options)
    assert (code, said) == (0, "")
    assert out == "".join(f"{one.prompt}{one.text}\n" for one in want)
    found = tables("complete", folder, "the dog", "--max-length", "6", *options)
    assert found == [{"prompt": "the dog", "text": want[0].text, "score": pytest.approx(want[0].score),
                      "cut": want[0].cut}]


def test_ten_tries(folder):
    want = regard.load(folder).sample("the dog", num_samples=10, seed=3, max_length=5)
    every = [want, *want.alternatives]
    options = ["-n", "10", "--seed", "3", "--max-length", "5"]
    code, out, said = call("complete", folder, "the dog", *options)
    assert (code, said) == (0, "")
    assert out == "\n".join(f"{one.prompt}{one.text}\n" for one in every)
    assert call("complete", folder, "the dog", *options, "--sample")[1] == out
    (table,) = tables("complete", folder, "the dog", *options, "--scores")
    assert [table["text"], *(one["text"] for one in table["alternatives"])] == [one.text for one in every]
    for got, one in zip([table, *table["alternatives"]], every, strict=True):
        assert got["score"] == pytest.approx(one.score)
        assert [word["text"] for word in got["words"]] == [word.text for word in one.words]
    assert len({one.ids for one in every}) > 5


def test_the_best_of_beam_search(folder):
    want = regard.load(folder).complete("the dog", beams=4, nbest=3, length_penalty="mean", max_length=5)
    code, out, _ = call("complete", folder, "the dog", "-n", "3", "--beam", "4", "--max-length", "5", "--scores")
    assert code == 0
    assert out == "\n".join(f"{one.score:.4f}\t{one.prompt}{one.text}\n" for one in (want, *want.alternatives))


@pytest.mark.parametrize("options", [[], ["--sample", "--seed", "4", "--top-k", "9"], ["--no-repeat-ngram-size", "2"]])
def test_a_stream_is_the_same_text(folder, options):
    whole = call("complete", folder, "the dog", "a", "--max-length", "9", *options)
    assert whole[0] == 0
    assert call("complete", folder, "the dog", "a", "--max-length", "9", *options, "--stream") == whole


def test_a_stream_with_a_bad_prompt_goes_on(folder):
    code, out, said = call("complete", folder, "the dog", "", "a", "--max-length", "3", "--stream")
    assert code == 1
    assert said.startswith("Error: text 2: `prompts`")
    first, empty, third, end = out.split("\n")
    assert (first[:7], empty, third[:1], end) == ("the dog", "", "a", "")


def test_all_of_standard_input_is_one_prompt(folder):
    (found,) = tables("complete", folder, "--max-length", "2", stdin="the dog\nsleeps\n")
    assert found["prompt"] == "the dog sleeps"
    code, out, said = call("complete", folder, stdin="")
    assert (code, out) == (1, "\n")
    assert "text 1: `prompts`" in said


@pytest.mark.parametrize(("options", "message"), [
    (["--stream", "--json"], "--stream prints one text"), (["--stream", "--scores"], "--stream prints one text"),
    (["--stream", "-n", "2"], "--stream prints one text"), (["--stream", "--beam", "2"], "--stream prints one text"),
    (["--stream", "--length-penalty", "mean"], "--length-penalty has no effect with --stream"),
    (["--top-p", "0.5"], "--top-p has no effect here"), (["--sample", "--beam", "2"], "--beam has no effect here"),
    (["--beam", "2", "-n", "3"], "--nbest 3 needs --beam 3"),
    (["--sample", "--min-p", "3"], "`min_p` must be a probability"), (["--min-length", "9", "--max-length", "3"],
                                                                      "`min_length` must"),
    (["-n", "2", "--length-penalty", "mean"], "--length-penalty has no effect here. -n"),
])
def test_what_does_not_go_together(folder, options, message):
    code, out, said = call("complete", folder, "the dog", *options)
    assert (code, out, said.count("\n")) == (2, "", 1)
    assert message in said


def test_one_line_a_prompt(folder):
    assert len(lines("complete", folder, "the", "a", "--max-length", "1", "--json")) == 2


@pytest.mark.parametrize("options", [[], ["--stream"], ["-n", "2", "--seed", "5"], ["--json"]], ids=str)
def test_a_text_that_fills_the_positions_says_their_number(tmp_path, options):
    texting.completer(embedding="learned").save(tmp_path / "model")  # 12 positions
    code, out, said = call("complete", tmp_path / "model", "abcdef", "--min-length", "9", *options)
    assert code == 0
    assert out
    assert "12 positions" in said
    assert "llama" in said
    assert call("complete", tmp_path / "model", "abcdef", "--max-length", "3", *options)[2] == ""


def test_a_model_without_a_largest_position_completes_any_length(tmp_path):
    regard.task("llama-tiny", tokenizer=texting.characters(), vocab_size=texting.characters().size,
                **{"stack.layers": 1, "width": 16}).save(tmp_path / "model")
    (table,) = tables("complete", tmp_path / "model", "abc", "--max-length", "1500", "--min-length", "1500")
    assert len(regard.load(tmp_path / "model").text_tokenizer().encode(table["text"])) >= 1400
    assert call("complete", tmp_path / "model", "abc", "--max-length", "1100", "--min-length", "1100")[2] == ""
