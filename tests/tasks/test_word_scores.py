"""Words of a translation: where they stand, and the sum of the log-probabilities of their tokens."""

import pytest
import texting

from regard.tasks.search import ScoredWord, scored_words
from regard.tasks.translator import Translation


def test_a_word_is_as_probable_as_its_tokens_together():
    tokenizer = texting.tokenizer(1)
    text = "le gros chien dort."
    ids = tokenizer.encode(text)
    scores = [-0.5 * (place + 1) for place in range(len(ids) + 1)]  # one more: the end
    words = scored_words(tokenizer, ids, scores)
    assert [word.text for word in words] == ["le", "gros", "chien", "dort", "."]
    assert [text[word.start:word.end] for word in words] == [word.text for word in words]
    assert sum(word.score for word in words) == pytest.approx(sum(scores[:-1]))
    first = len(tokenizer.encode("le"))
    assert words[0] == ScoredWord("le", 0, 2, pytest.approx(sum(scores[:first])))


@pytest.mark.parametrize("beams", [1, 3])
def test_the_words_of_a_translation_add_up_to_its_score(beams):
    found = texting.translator(pair=texting.separate).translate("the big dog", beams=beams, nbest=beams, max_length=6,
                                                                length_penalty="none")
    for one in (found, *found.alternatives):
        end = one.log_probabilities[len(one.ids):]
        assert len(end) == (not one.cut)
        assert sum(word.score for word in one.words) + sum(end) == pytest.approx(one.score, abs=1e-4)
        assert [one.text[word.start:word.end] for word in one.words] == [word.text for word in one.words]


def test_without_log_probabilities_there_are_no_words():
    assert Translation("", 0.0, (), False).words == ()
    with pytest.raises(ValueError, match="no log-probabilities"):
        _ = Translation("le", 0.0, (5,), False).words
