"""Completer: completions, samples, and streams of text."""

import pytest
import texting
from hypothesis import given
from hypothesis import strategies as st
from theirs import byte_fallback, byte_level

from regard.data.tokenizer.subwords import ByteTokenizer
from regard.decoding.request import Hypothesis
from regard.tasks.completer import Completer, added_text, settled_text, stream_text
from regard.tasks.search import Beam, Sampling

PROMPTS = ["the big dog", "a", "we sing"]


@pytest.mark.parametrize("of", [texting.characters, texting.tokenizer])
@pytest.mark.parametrize("beams", [1, 2])
def test_a_prompt_and_what_follows_make_the_text_of_all_ids(of, beams):
    task, prompts = texting.completer(of=of), ["the big dog", "a", "we sing"]
    found = task.complete(prompts, max_length=7, beams=beams)
    for prompt, one in zip(prompts, found, strict=True):
        ids = task.tokenizer.encode(prompt)
        ((want,),) = task.complete_ids([ids], max_length=7, beams=beams)
        assert (list(one.ids), one.cut) == (want.ids, want.cut)
        assert one.prompt == prompt
        assert one.prompt + one.text == task.tokenizer.decode([*ids, *want.ids])
    assert task.complete(prompts[0], max_length=7, beams=beams).text == found[0].text


def test_a_continuation_keeps_the_space_that_it_begins_with(monkeypatch):
    task = texting.completer(of=texting.tokenizer)
    following = task.tokenizer.encode("dog")
    monkeypatch.setattr(Completer, "_hypotheses", lambda self, rows, *options: [
        [Hypothesis(following, [0.0] * len(following), 0.0, None)] for _ in rows])
    assert task.complete("the big").text == " dog"


def test_prompts_near_the_end_of_the_positions():
    task = texting.completer(embedding="learned")  # 12 positions
    prompts = ["abc", "abcdefghij", "abcdefgh", "abcdefghijkl", "b"]
    found = task.complete(prompts, max_length=5)
    assert [len(one.ids) <= most for one, most in zip(found, (5, 2, 4, 0, 5), strict=True)] == [True] * 5
    for prompt, one in zip(prompts, found, strict=True):
        assert task.complete(prompt, max_length=5).ids == one.ids
    with pytest.raises(ValueError, match=r"`prompts\[1\]` must be at most 12 tokens long, .* 13 tokens"):
        task.complete(["a", "abcdefghijklm"])
    with pytest.raises(ValueError, match=r"`prompts` .* 13 tokens"):  # which one it is, is plain
        task.complete("abcdefghijklm")


def test_one_prompt_is_one_and_a_search_is_a_search():
    task = texting.completer()
    search = Beam(beams=2, max_length=4)
    assert task.search("abc", search) == task.search(["abc"], search)
    with pytest.raises(ValueError, match="`strategy` must be a Beam, or a Sampling, but is an int"):
        task.search(["abc"], 5)


def test_a_stream_passes_nothing_over():
    with pytest.raises(ValueError, match="`strategy` must be"):
        texting.completer().stream("abc", Beam(beams=1, length_penalty="none", coverage_penalty=0.5))


def test_an_empty_prompt_is_refused():
    with pytest.raises(ValueError, match=r"`prompts\[1\]` .* ''"):
        texting.completer().complete(["a", ""])


@pytest.mark.parametrize("of", [texting.characters, texting.tokenizer])
def test_samples_follow_from_seed_and_prompt_alone(of):
    task = texting.completer(of=of)
    together = task.sample(PROMPTS, num_samples=3, seed=4, max_length=6)
    for prompt, one in zip(PROMPTS, together, strict=True):
        alone = task.sample(prompt, num_samples=3, seed=4, max_length=6)
        assert [each.ids for each in (alone, *alone.alternatives)] == [each.ids for each in (one, *one.alternatives)]
        assert task.sample(["x", prompt], seed=4, max_length=6)[1].ids == one.ids
        assert len(one.alternatives) == 2
    others = task.sample(PROMPTS, num_samples=3, seed=5, max_length=6)
    assert [one.ids for one in others] != [one.ids for one in together]


def test_what_may_be_written():
    task = texting.completer()
    for one in task.complete(PROMPTS, max_length=12, no_repeat_ngram_size=2):
        found = [*zip(one.ids, one.ids[1:], strict=False)]
        assert len(found) == len({*found})
    assert all(len(one.ids) >= 5 for one in task.sample(PROMPTS, max_length=9, min_length=5, num_samples=4))
    assert all(len(one.ids) == 9 for one in task.complete(PROMPTS, max_length=9, min_length=9))


def test_words_of_a_completion_are_those_behind_the_prompt():
    task = texting.completer(of=texting.tokenizer)
    for one in task.complete(PROMPTS, max_length=8):
        assert [one.text[word.start:word.end] for word in one.words] == [word.text for word in one.words]
        assert "".join(word.text for word in one.words) == "".join(one.text.split())
        whole = sum(one.log_probabilities[:len(one.ids)])
        assert sum(word.score for word in one.words) == pytest.approx(whole)


@pytest.mark.parametrize("of", [texting.characters, texting.tokenizer])
def test_a_stream_is_the_completion(of):
    task = texting.completer(of=of)
    for prompt in PROMPTS:
        whole = task.complete(prompt, max_length=9)
        assert "".join(task.stream(prompt, Beam(beams=1, length_penalty="none", max_length=9))) == whole.text
        search = Sampling(seed=3, temperature=0.8, top_k=20, max_length=9, no_repeat_ngram_size=2, min_length=2)
        (drawn,) = task.search([prompt], search)
        assert "".join(task.stream(prompt, search)) == drawn.text
    assert "".join(task.stream("a")) == task.complete("a").text


def test_a_stream_comes_as_it_is_written(monkeypatch):
    task, read = texting.completer(), []
    step = task.model.step
    monkeypatch.setattr(task.model, "step", lambda *given, **more: read.append(1) or step(*given, **more))
    found = task.stream("the", Sampling(max_length=20, min_length=20))
    next(found)
    assert len(read) < 8


def test_a_stream_near_the_end_of_the_positions():
    task = texting.completer(embedding="learned")  # 12 positions
    assert "".join(task.stream("abcdefghij")) == task.complete("abcdefghij").text
    assert "".join(task.stream("abcdefghijkl")) == ""


@pytest.mark.parametrize("search", [Beam(), Beam(beams=1), Sampling(num_samples=2)])
def test_what_cannot_be_a_stream(search):
    with pytest.raises(ValueError, match="`strategy` must be"):
        texting.completer().stream("a", search)
    with pytest.raises(ValueError, match="`prompt` must be a text, but is a list"):
        texting.completer().stream(["a"])


TOKENIZERS = {"bytes": ByteTokenizer, "characters": texting.characters, "unigram": texting.tokenizer,
              "byte level": byte_level, "byte fallback": byte_fallback}
MADE = {}


def made(name):
    if name not in MADE:
        MADE[name] = TOKENIZERS[name]()
    return MADE[name]


@pytest.mark.parametrize("name", sorted(TOKENIZERS))
@given(st.data())
def test_pieces_are_the_text_whatever_is_written(name, data):
    tokenizer = made(name)
    special = tokenizer.special.ids()
    id_ = st.integers(0, tokenizer.size - 1).filter(lambda one: one not in special)
    some_bytes = st.sampled_from([tokenizer.encode("é") or [5], tokenizer.encode("語") or [6], tokenizer.encode("🙂 ")])
    parts = data.draw(st.lists(st.one_of(id_.map(lambda one: [one]), some_bytes.map(lambda ids: ids[:-1]), some_bytes),
                               max_size=12))
    ids = [one for part in parts for one in part if one not in special]
    prompt = data.draw(st.sampled_from([tokenizer.encode("the dog"), tokenizer.encode("été"), []]))
    whole = added_text(tokenizer, prompt, ids)
    found = list(stream_text(tokenizer, prompt, ids))
    assert "".join(found) == whole
    assert "" not in found
    for count in range(len(ids) + 1):
        assert whole.startswith(settled_text(tokenizer, prompt, ids[:count]))


@pytest.mark.parametrize("name", ["bytes", "characters", "unigram"])
def test_what_is_certain_comes_at_once(name):
    tokenizer = made(name)
    ids = tokenizer.encode("the dog sees")
    assert len(list(stream_text(tokenizer, tokenizer.encode("a"), ids))) == len(ids)


def test_half_a_character_waits_for_the_other_half():
    tokenizer = made("bytes")
    ids = tokenizer.encode("aé語b")
    assert [settled_text(tokenizer, [], ids[:count]) for count in range(len(ids) + 1)] == [
        "", "a", "a", "aé", "aé", "aé", "aé語", "aé語b"]
    assert list(stream_text(tokenizer, [], ids[:-2])) == ["a", "é", "\ufffd\ufffd"]
