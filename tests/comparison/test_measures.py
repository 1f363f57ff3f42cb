"""What is told of one model that does not need a training."""

import pytest
import texting

from regard.comparison.measures import GradientFlow, ModelMeasures, require_translator, shown_sentence


def test_the_sentence_shown_is_of_usual_length():
    assert shown_sentence([("a " * 30, ""), ("a " * 9, ""), ("a " * 10, "")]) == 1
    assert shown_sentence([("a " * 30, ""), ("a " * 14, ""), ("a", "")]) == 1


def test_only_translators_are_compared(tmp_path):
    with pytest.raises(ValueError, match="Completer"):
        require_translator(texting.completer(), tmp_path)


def test_what_was_measured_is_read_back():
    import json

    flow = GradientFlow((1.0,) * 10, (0.5,) * 10, 3, 20.0)
    given = ModelMeasures(1.0, 2.0, 3.0, ({"least": 0, "most": None, "pairs": 1, "bleu": 1.0, "chrf": 2.0},), 10, 1, 5, 2.0,
                     3.0, 100, None, {"step": [1]}, flow, "t", None, {"bleu": "b", "chrf": "c"}, "1f", ("h",))
    assert ModelMeasures.of_plain(json.loads(json.dumps(given.plain()))) == given
