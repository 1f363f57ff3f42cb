"""Searches with models of every kind: what goes wrong elsewhere, for RNNs and Transformers."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from tiny import LANGUAGE, LONGEST, TARGET, TRANSLATING, built, seq2seq, translating
from writers import every, logs_of, plain_beam, translator

from regard.decoding.beam import beam
from regard.decoding.request import Sources
from regard.decoding.sampling import greedy, sample
from regard.models.seq2seq import Seq2Seq, Seq2SeqAttentionConfig
from regard.tokens import Tokens

START, LIMIT = 1, 7
SOURCES = [[1, 2, 3, 4], [5], [6, 1], [2, 2, 2], [3, 5, 1, 6, 9, 8], [7, 7], [4, 9]]
PROMPTS = [[START]] * len(SOURCES)
BROKEN = 10
"""A word of the source of which the model has learned no numbers."""
PENALTIES = ["none", "mean", 0.6]
TRANSFORMER, RNN = "Transformer", "RNN with attention"
ENDS = {TRANSFORMER: 4, RNN: 11}
"""Words that some rows come to early, some late, and some never."""


@pytest.fixture(scope="module", params=[TRANSFORMER, RNN])
def kind(request):
    return request.param


def made(kind, vocabulary=TARGET, dtype=torch.float64):
    """A model that has learned nothing, and prefers some tokens to others."""
    if kind == TRANSFORMER:
        config = translating(embedding="learned", tie_word_embeddings=False, output_bias=True,
                             target_vocab_size=vocabulary)
    else:
        config = seq2seq(direction="both", layers=2, input_feeding=True, attention=Seq2SeqAttentionConfig())
        config = type(config)(**{**vars(config), "target_vocab_size": vocabulary})
    model = built(config).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)  # words are far from ties
    return model


@pytest.fixture(scope="module")
def model(kind):
    return made(kind)


@pytest.fixture(scope="module")
def function(model):
    return rereading(model)


@pytest.fixture(scope="module")
def few_words(kind):
    """A model of four words, and the function that it is."""
    model = made(kind, vocabulary=4)
    return model, rereading(model)


def biased(kind, by):
    """A model that ends more readily, or less."""
    model = made(kind)
    with torch.no_grad():
        model.output.bias[end_of(model)] += by
    return model


def end_of(model):
    return ENDS[RNN if isinstance(model, Seq2Seq) else TRANSFORMER]


def read(model, order):
    return model.encode(Tokens.of([SOURCES[row] for row in order]))


def rereading(model):
    """The logits as a function of row and text, for which all is read again."""
    known = {}

    @torch.no_grad()
    def function(row, text):
        if (row, text) not in known:
            known[row, text] = model.decode(Tokens(torch.tensor([text])), read(model, [row]))[0, -1].tolist()
        return known[row, text]

    return function


def assert_same(got, want, within=1e-9):
    """Hypotheses against (score, ids, end)."""
    assert [(one.ids, one.end) for one in got] == [(ids, end) for _, ids, end in want]
    assert [one.score for one in got] == pytest.approx([score for score, _, _ in want], rel=within, abs=within)


def all_rows(model, search, **options):
    given = {"prompts": PROMPTS, "end": end_of(model), "max_length": LIMIT} | options
    return search(model, read(model, range(len(SOURCES))), **given)


def test_the_rows_differ_in_length_and_tokens(model):
    found = all_rows(model, greedy)
    assert len({len(one.ids) for one in found}) > 2, "they end at different times"
    assert len({tuple(one.ids) for one in found}) > 4, "and are different"


def test_with_a_cache_is_without_one_greedy(model, function):
    for row, one in enumerate(all_rows(model, greedy)):
        assert_same([one], plain_beam(function, row, [START], [end_of(model)], LIMIT, 1, 0, "none")[:1])


@pytest.mark.thorough
@pytest.mark.parametrize("penalty", PENALTIES)
def test_with_a_cache_is_without_one_beams(model, function, penalty):
    for row, got in enumerate(all_rows(model, beam, beams=3, nbest=3, length_penalty=penalty)):
        assert_same(got, plain_beam(function, row, [START], [end_of(model)], LIMIT, 3, 0, penalty)[:3])


@pytest.mark.thorough
@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("min_length", [0, 2])
def test_beams_over_everything_are_brute_force(few_words, penalty, min_length):
    model, function = few_words
    got = all_rows(model, beam, end=0, max_length=3, min_length=min_length, beams=4 * 3 ** 3, nbest=40,
                   length_penalty=penalty)
    for row in range(len(SOURCES)):
        want = every(function, row, (START,), [0], 3, min_length, penalty)
        assert len(want) == sum(3 ** length for length in range(min_length, 4))
        assert_same(got[row], want)


def test_one_beam_is_greedy(model):
    for one, [other] in zip(all_rows(model, greedy), all_rows(model, beam, beams=1), strict=True):
        assert_same([other], [(one.score, one.ids, one.end)])


@pytest.mark.thorough
def test_more_beams_than_words(model, function):
    got = all_rows(model, beam, max_length=2, beams=5 * TARGET, nbest=5 * TARGET)
    for row in range(len(SOURCES)):
        want = plain_beam(function, row, [START], [end_of(model)], 2, 5 * TARGET, 0, "none")
        assert_same(got[row], want[:5 * TARGET])
        assert len(got[row]) > TARGET


@pytest.mark.parametrize("penalty", PENALTIES)
def test_scores_are_those_of_forced_decoding_in_float32(kind, penalty):
    model = made(kind, dtype=torch.float32)
    found = all_rows(model, beam, beams=4, nbest=4, length_penalty=penalty)
    found += [[one] for one in all_rows(model, greedy)] if penalty == "none" else []
    with torch.no_grad():
        for row, one in [(row % len(SOURCES), one) for row, several in enumerate(found) for one in several]:
            target = [*one.ids, *([] if one.cut else [one.end])]
            logs = model.decode(Tokens(torch.tensor([[START, *target]])), read(model, [row]))[0].log_softmax(-1)
            want = [logs[place, token].item() for place, token in enumerate(target)]
            assert one.log_probabilities == pytest.approx(want, abs=1e-4)
            length = len(target)
            by = {"none": 1.0, "mean": length}.get(penalty) or ((5 + length) / 6) ** penalty
            assert one.score == pytest.approx(math.fsum(want) / by, abs=1e-4)


def test_the_end_at_once(kind):
    model = biased(kind, 100.0)
    for one in [*all_rows(model, greedy), *itertools.chain(*all_rows(model, beam, beams=3))]:
        assert (one.ids, one.end, one.cut, len(one.log_probabilities)) == ([], end_of(model), False, 1)
        assert one.score == pytest.approx(0.0, abs=1e-9)


def test_hypotheses_without_an_end_are_truncated(kind):
    model = biased(kind, -1000.0)
    for one in [*all_rows(model, greedy), *itertools.chain(*all_rows(model, beam, beams=3, nbest=3))]:
        assert (len(one.ids), one.end, one.cut) == (LIMIT, None, True)
        assert len(one.log_probabilities) == LIMIT
        assert end_of(model) not in one.ids
    rows = all_rows(model, sample, seed=1, num_samples=2)
    assert all(one.cut and len(one.ids) == LIMIT for row in rows for one in row)


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("token_budget", [None, 1, 3 * (LIMIT + 1)])
def test_a_sentence_depends_neither_on_its_batch_nor_on_its_place(kind, dtype, token_budget):
    model, within = made(kind, dtype=dtype), 1e-9 if dtype == torch.float64 else 1e-4

    def searched(order):
        sources = read(model, order) if token_budget is None else Sources(len(order), lambda some: read(
            model, [order[number] for number in some]))
        options = {"prompts": [[START]] * len(order), "end": end_of(model), "max_length": LIMIT}
        return ([[one] for one in greedy(model, sources, token_budget=token_budget, **options)],
                beam(model, sources, token_budget=token_budget and 4 * token_budget, beams=4, nbest=2,
                     length_penalty="mean", **options))

    alone = [searched([row]) for row in range(len(SOURCES))]
    for order in ([0, 1, 2, 3, 4, 5, 6], [6, 4, 2, 0, 5, 3, 1], [1, 1, 4, 1]):
        for number, found in enumerate(searched(order)):
            for row, got in zip(order, found, strict=True):
                assert_same(got, [(one.score, one.ids, one.end) for one in alone[row][number][0]], within)


def test_samples_do_not_depend_on_their_batch(model, function):
    together = all_rows(model, sample, seed=5, num_samples=3)
    assert len({tuple(one.ids) for row in together for one in row}) > len(SOURCES)
    for row, several in enumerate(together):
        for one in several:
            want = [logs_of(function, row, (START, *one.ids[:place]))[token]
                    for place, token in enumerate([*one.ids, *([] if one.cut else [one.end])])]
            assert one.log_probabilities == pytest.approx(want, rel=1e-9)
    assert [one.ids for one in all_rows(model, sample, seed=5, num_samples=3)[4]] == [one.ids for one in together[4]]


@pytest.mark.parametrize("search", [greedy, beam])
def test_a_broken_sentence_is_named_and_harms_no_other(kind, search):
    model = made(kind)
    weight = (model.encoder.embedding.tokens if kind == TRANSFORMER else model.encoder.embedding).weight
    with torch.no_grad():
        weight[BROKEN] = math.nan
    options = {"end": end_of(model), "max_length": 3} | ({"beams": 2} if search is beam else {})
    sources = [[1, 2], [3], [BROKEN, 4], [5, 6, 7]]
    with pytest.raises(ValueError, match=r"NaN.* row 2"):
        search(model, model.encode(Tokens.of(sources)), prompts=[[START]] * 4, **options)
    good = [sources[row] for row in (0, 1, 3)]
    want = search(made(kind), made(kind).encode(Tokens.of(good)), prompts=[[START]] * 3, **options)
    assert search(model, model.encode(Tokens.of(good)), prompts=[[START]] * 3, **options) == want


def test_more_tokens_than_the_transformer_has_positions():
    model = made(TRANSFORMER)
    with pytest.raises(ValueError, match=f"at most {LONGEST}"):
        all_rows(model, greedy, max_length=LONGEST)
    assert len(all_rows(biased(TRANSFORMER, -1000.0), greedy, max_length=LONGEST - 1)[0].ids) == LONGEST - 1


BEAM_SOURCES = [[1, 2, 3, 4], [5], [6, 1], [2, 2, 2], [3, 5, 1, 6]]
BEAM_PROMPTS = [[1], [1, 3, 4], [2], [1], [4, 4]]
KINDS = ["attention", "one context"]
WRITING = {**{f"translating {name}": config for name, config in TRANSLATING.items()},
           **{f"language {name}": config for name, config in LANGUAGE.items()}}


def memory_of(model, order):
    """A memory of some of the sources; None for a language model."""
    return model.encode(Tokens.of([BEAM_SOURCES[row] for row in order])) if hasattr(model, "encode") else None


def searched(model, order, *, max_length=6, beams=3, nbest=3, **options):
    memory = memory_of(model, order)
    prompts = [BEAM_PROMPTS[row] for row in order]
    return beam(model, memory, prompts=prompts, end=0, max_length=max_length, beams=beams, nbest=nbest, **options)


def rereading_of(model):
    """The logits as a function of source and text: everything is read again for every token."""
    known = {}

    @torch.no_grad()
    def function(row, text):
        if (row, text) not in known:
            known[row, text] = model.decode(Tokens(torch.tensor([text])), memory_of(model, [row]))[0, -1].tolist()
        return known[row, text]

    return function


def assert_same_hypotheses(got, want):
    assert [(one.ids, one.end) for one in got] == [(ids, end) for _, ids, end in want]
    assert [one.score for one in got] == pytest.approx([score for score, _, _ in want], rel=1e-9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("penalty", ["none", "mean", 0.6])
def test_with_a_state_equals_without_one(kind, penalty):
    model = translator(kind)
    for row, got in enumerate(searched(model, range(5), length_penalty=penalty, min_length=1)):
        assert_same_hypotheses(got, plain_beam(rereading_of(model), row, BEAM_PROMPTS[row], [0], 6, 3, 1, penalty)[:3])


@pytest.mark.thorough
@pytest.mark.parametrize("config", WRITING.values(), ids=WRITING)
def test_every_generative_model_with_a_state_and_without_one(config):
    model, limits = built(config), [LONGEST - 3, 2]  # the longest prompt has three tokens, and there is no more room
    got = beam(model, memory_of(model, [0, 1]), prompts=BEAM_PROMPTS[:2], end=0, max_length=limits, beams=2, nbest=2)
    for row in range(2):
        assert_same_hypotheses(got[row], plain_beam(rereading_of(model), row, BEAM_PROMPTS[row], [0], limits[row], 2, 0,
                                                    "none")[:2])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("penalty", ["none", "mean", 0.6])
def test_over_everything_it_is_brute_force(kind, penalty):
    model = translator(kind, vocabulary=4)
    memory = model.encode(Tokens.of(BEAM_SOURCES[:3]))
    got = beam(model, memory, prompts=[[1]] * 3, end=0, max_length=3, beams=4 * 3 ** 3, nbest=12,
               length_penalty=penalty)
    for row in range(3):
        assert_same_hypotheses(got[row], every(rereading_of(model), row, (1,), [0], 3, 0, penalty)[:12])


@pytest.mark.parametrize("kind", KINDS)
def test_a_sentence_does_not_depend_on_its_batch(kind):
    model = translator(kind)
    alone = [searched(model, [row], min_length=1)[0] for row in range(5)]
    assert len({tuple(one.ids) for row in alone for one in row}) > 5
    for order in ([0, 1, 2, 3, 4], [4, 2, 0, 3, 1], [1, 1, 3]):
        for row, got in zip(order, searched(model, order, min_length=1), strict=True):
            assert_same_hypotheses(got, [(one.score, one.ids, one.end) for one in alone[row]])


@pytest.mark.parametrize("kind", KINDS)
def test_log_probabilities_are_those_of_decoding_all_at_once(kind):
    model = translator(kind)
    with torch.no_grad():
        for row, hypotheses in enumerate(searched(model, range(5), length_penalty="mean")):
            memory = model.encode(Tokens.of([BEAM_SOURCES[row]]))
            for one in hypotheses:
                target = [*one.ids, *([] if one.cut else [one.end])]
                logits = model.decode(Tokens(torch.tensor([[*BEAM_PROMPTS[row], *target]])), memory)[0]
                logs = logits.log_softmax(-1)[len(BEAM_PROMPTS[row]) - 1:]
                want = [logs[place, token].item() for place, token in enumerate(target)]
                assert one.log_probabilities == pytest.approx(want, rel=1e-9)
                assert one.score == pytest.approx(sum(want) / len(want), rel=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_one_beam_is_greedy_for_every_kind_of_model(kind):
    model = translator(kind)
    memory = model.encode(Tokens.of(BEAM_SOURCES))
    want = greedy(model, memory, prompts=BEAM_PROMPTS, end=0, max_length=6)
    got = [row[0] for row in searched(model, range(5), beams=1, nbest=1)]
    assert [(one.ids, one.end) for one in got] == [(one.ids, one.end) for one in want]
    assert [one.score for one in got] == pytest.approx([one.score for one in want], rel=1e-9)


@pytest.mark.parametrize("name", [*TRANSLATING])
@pytest.mark.parametrize("beams", [1, 3])
def test_a_search_leaves_the_encoded_sources_as_they_are(name, beams):
    """Rows leave at different times, and others move to their places; some layers attend to the sources themselves."""
    model = built(TRANSLATING[name])
    memory = model.encode(Tokens.of([[5, 6, 7], [7, 5, 8], [8, 9, 5], [6, 6, 9], [9, 7, 6]]))
    memory = replace(memory, lengths=None)  # without lengths a layer need not copy the sources
    before = memory.states.clone()
    options = {"prompts": [[1]] * 5, "end": (), "max_length": [4, 1, 6, 2, 8], "beams": beams}
    found = beam(model, memory, **options)
    assert torch.equal(memory.states, before)
    for row, (one,) in enumerate(found):
        options |= {"prompts": [[1]], "max_length": [4, 1, 6, 2, 8][row]}
        ((alone,),) = beam(model, memory.pick([row]), **options)
        assert one.ids == alone.ids
