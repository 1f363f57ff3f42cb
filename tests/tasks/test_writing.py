"""Translators and completers on ids: what they write is what the search writes, one by one and together."""

import pytest
import torch
from tiny import LANGUAGE, TRANSLATING, built

from regard.decoding.greedy import greedy
from regard.models.contract import Tokens
from regard.models.special import SpecialConfig
from regard.tasks.loading import fitting

SPECIAL = SpecialConfig(start=1, end=(2,), padding=0)
SOURCES = [[4, 5, 6], [7], [3, 8, 9, 10, 4]]


@pytest.mark.parametrize("name", ["attention", "convolution", "seq2seq-attention"])
def test_translations(name):
    config = TRANSLATING[name]
    translator = fitting(built(config), config, SPECIAL)
    together = translator.translate_ids(SOURCES, limit=6)
    for source, (found,) in zip(SOURCES, together, strict=True):
        memory = translator.model.encode(Tokens(torch.tensor([source])))
        (want,) = greedy(translator.model, memory, prompts=[[1]], end=2, limit=6)
        assert found.ids == want.ids
        assert translator.translate_ids([source], limit=6)[0][0].ids == want.ids
    for several in translator.translate_ids(SOURCES, beams=3, nbest=2, limit=6):
        assert len(several) == 2
        assert several[0].score >= several[1].score


def test_completions_go_on_from_their_prompts():
    config = LANGUAGE["rotary"]
    completer = fitting(built(config), config, SPECIAL)
    for prompt, (found,) in zip(SOURCES, completer.complete_ids(SOURCES, limit=5), strict=True):
        ids = list(prompt)
        for written in found.ids:
            assert int(completer.model(Tokens(torch.tensor([ids])))[0, -1].argmax()) == written
            ids.append(written)


def test_what_is_missing_is_named():
    config = TRANSLATING["attention"]
    with pytest.raises(ValueError, match=r"`special\.start` must be an id"):
        fitting(built(config), config).translate_ids(SOURCES)
    with pytest.raises(ValueError, match=r"`special\.end` must be an id"):
        fitting(built(config), config, SpecialConfig(start=1)).translate_ids(SOURCES)
    with pytest.raises(ValueError, match="`rows` must be at least one sequence"):
        fitting(built(config), config, SPECIAL).translate_ids([])
