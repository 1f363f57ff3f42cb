"""Translators and completers on ids: what they write is what the search writes, one by one and together."""

import pytest
import torch
from tiny import LANGUAGE, TRANSLATING, built, translating

from regard.decoding.sampling import greedy
from regard.special_tokens import SpecialTokens
from regard.tasks.load import make_task
from regard.tokens import Tokens

SPECIAL = SpecialTokens(start=1, end=(2,), padding=0)
SOURCES = [[4, 5, 6], [7], [3, 8, 9, 10, 4]]


@pytest.mark.parametrize("name", ["attention", "convolution", "seq2seq-attention"])
def test_translations(name):
    config = TRANSLATING[name]
    translator = make_task(built(config), config, SPECIAL)
    together = translator.translate_ids(SOURCES, max_length=6)
    for source, (found,) in zip(SOURCES, together, strict=True):
        memory = translator.model.encode(Tokens(torch.tensor([source])))
        (want,) = greedy(translator.model, memory, prompts=[[1]], end=2, max_length=6)
        assert found.ids == want.ids
        assert translator.translate_ids([source], max_length=6)[0][0].ids == want.ids
    for several in translator.translate_ids(SOURCES, beams=3, nbest=2, max_length=6):
        assert len(several) == 2
        assert several[0].score >= several[1].score


def test_completions_go_on_from_their_prompts():
    config = LANGUAGE["rotary"]
    completer = make_task(built(config), config, SPECIAL)
    for prompt, (found,) in zip(SOURCES, completer.complete_ids(SOURCES, max_length=5), strict=True):
        ids = list(prompt)
        for written in found.ids:
            assert int(completer.model(Tokens(torch.tensor([ids])))[0, -1].argmax()) == written
            ids.append(written)


def test_what_is_missing_is_named():
    config = TRANSLATING["attention"]
    with pytest.raises(ValueError, match=r"`special\.start` must be an id"):
        make_task(built(config), config).translate_ids(SOURCES)
    with pytest.raises(ValueError, match=r"`special\.end` must be an id"):
        make_task(built(config), config, SpecialTokens(start=1)).translate_ids(SOURCES)
    with pytest.raises(ValueError, match="`rows` must be at least one sequence"):
        make_task(built(config), config, SPECIAL).translate_ids([])


def test_a_length_penalty_counts_for_one_beam_too():
    config = TRANSLATING["attention"]
    translator = make_task(built(config), config, SPECIAL)
    ((plain,),) = translator.translate_ids([[4, 5]], max_length=6)
    ((mean,),) = translator.translate_ids([[4, 5]], max_length=6, length_penalty="mean")
    assert plain.score == pytest.approx(sum(plain.log_probabilities))
    assert mean.score == pytest.approx(sum(mean.log_probabilities) / len(mean.log_probabilities))
    with pytest.raises(ValueError, match="`length_penalty` must be one of"):
        translator.translate_ids([[4, 5]], max_length=6, length_penalty="bogus")


def test_without_a_limit_a_model_writes_as_far_as_it_has_positions():
    config = TRANSLATING["untied"]  # 12 positions, of which the start takes one
    translator = make_task(built(config), config, SpecialTokens(start=1, end=(0,)))
    with torch.no_grad():
        translator.model.decoder.output.bias[0] = -1000.0  # it never ends
    for beams in (1, 2):
        for (found,) in translator.translate_ids(SOURCES, beams=beams):
            assert found.cut
            assert len(found.ids) == 11
    with pytest.raises(ValueError, match="at most 12, the positions that the model knows"):
        translator.translate_ids(SOURCES, max_length=12)


def test_a_score_is_a_number_with_a_point_also_of_nothing():
    config = LANGUAGE["attention"]
    ((found,),) = make_task(built(config), config).complete_ids([[4]], max_length=0)
    assert (found.ids, type(found.score)) == ([], float)


@pytest.mark.parametrize("beams", [1, 3])
def test_padding_is_not_written_but_where_it_is_an_end(beams):
    config = translating(embedding="learned", tie_word_embeddings=False, output_bias=True, source_vocab_size=100)
    model = built(config)
    with torch.no_grad():
        model.decoder.output.bias[0] = 1000.0
    for (found,) in make_task(model, config, SPECIAL).translate_ids(SOURCES, max_length=4, beams=beams):
        assert 0 not in found.ids
    for padding in (0, 99):  # 99 is no id of the target
        special = SpecialTokens(start=1, end=(0,), padding=padding)
        ((found,),) = make_task(model, config, special).translate_ids(SOURCES[:1], max_length=4, beams=beams)
        assert (found.ids, found.end) == ([], 0)
