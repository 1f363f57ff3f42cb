"""Text token by token: the pieces are the text, and none is taken back."""

import pytest
import texting
from hypothesis import given
from hypothesis import strategies as st
from theirs import byte_fallback, byte_level

from regard.data.tokenizer.subwords import ByteTokenizer
from regard.tasks.completer import added_text, settled_text, stream_text

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
