"""Blanks in texts: around them stand the ids that stand there in a whole text."""

import re

import pytest
import texting
from hypothesis import given
from hypothesis import strategies as st

from regard.data.tokenizer.training import CharactersConfig, train_tokenizer
from regard.tasks.filler import encode_with_blanks

MASK = 4


@pytest.mark.parametrize("number", range(0, 200, 20))
def test_a_hidden_token_leaves_the_others_as_they_were(number):
    """The text of one token in the middle is taken out, space and all, and the ids around it stay."""
    tokenizer = texting.tokenizer()
    text = texting.pairs()[number][0]
    ids, spans, count = tokenizer.encode(text), tokenizer.spans(text), 0
    for place, span in enumerate(spans):
        if not text[span.start:span.end].strip() or text[:span.start].endswith(" "):
            continue  # a space that is a token of its own belongs to the blank behind it
        count += 1
        space = " " if text[span.start] == " " else ""
        holed = text[:span.start] + space + "___" + text[span.end:]
        found = encode_with_blanks(tokenizer, holed, MASK)
        at = found.index(MASK)
        assert tokenizer.decode(found[:at]) == tokenizer.decode(ids[:place])
        assert b"".join(tokenizer.surfaces[id_] for id_ in found[at + 1:]) == b"".join(
            tokenizer.surfaces[id_] for id_ in ids[place + 1:])
    assert count > 3


def test_a_point_behind_a_blank_has_no_space_before_it():
    tokenizer = texting.tokenizer()
    (*_, point) = tokenizer.encode("the dog.")
    assert encode_with_blanks(tokenizer, "the ___.", MASK) == [*tokenizer.encode("the"), MASK, point]
    assert encode_with_blanks(tokenizer, "___ the", MASK) == [MASK, *tokenizer.encode("the")]
    assert encode_with_blanks(tokenizer, "___", MASK) == [MASK]
    assert encode_with_blanks(tokenizer, "___ _____", MASK) == [MASK, MASK]
    assert encode_with_blanks(tokenizer, "the __ dog", MASK) == tokenizer.encode("the __ dog")


def test_characters_keep_their_spaces():
    tokenizer = texting.characters()
    the, dog = tokenizer.encode("the "), tokenizer.encode("og")
    assert encode_with_blanks(tokenizer, "the ___og", MASK) == [*the, MASK, *dog]
    line = train_tokenizer(["the dog"], CharactersConfig(normalization="line")).tokenizer
    assert encode_with_blanks(line, "  the  ___og ", MASK) == [*line.encode("the"), *line.encode_batch(["a b"])[0][1:2], MASK,
                                                       *line.encode("og")]


@given(st.text(alphabet="ab_ <mask>\u00e9\u0301▁", max_size=20))
def test_no_text_gives_a_mask_but_by_a_blank(text):
    for tokenizer in (texting.tokenizer(), texting.characters()):
        assert encode_with_blanks(tokenizer, text, MASK).count(MASK) == len(re.findall("_{3,}", tokenizer.normalize(text)))
