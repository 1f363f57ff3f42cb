"""Translator: ids and texts, beam search, sampling, MBR and prefixes."""

import copy
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import ending
import pytest
import texting
import torch
from asking import by_force, without_attention
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics import CHRF
from tiny import LANGUAGE, TRANSLATING, built, translating

from regard.decoding.sampling import greedy
from regard.special_tokens import SpecialTokens
from regard.tasks import task as tasks
from regard.tasks.load import make_task
from regard.tasks.search import Beam, Sampling
from regard.tasks.translator import Translation, TranslationRow, Translator
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


@pytest.mark.parametrize("name", ["attention", "convolution", "recurrence", "seq2seq", "seq2seq-attention"])
def test_sources_of_similar_lengths_are_encoded_together(name, monkeypatch):
    monkeypatch.setattr(tasks, "MIN_GROUP_TOKENS", 5)
    config = TRANSLATING[name]
    translator = make_task(built(config), config, SPECIAL)
    sources = [[4], [5, 6, 7, 8, 9, 4], [7, 5], [3, 8, 9, 10, 4, 6], [6, 4]]
    calls, encode = [], translator.model.encode
    monkeypatch.setattr(translator.model, "encode", lambda tokens: calls.append(tokens.ids.shape) or encode(tokens))
    memory = translator.encode_rows([TranslationRow(source) for source in sources])
    assert calls == [(2, 6), (3, 2)]
    for row, source in enumerate(sources):
        alone = encode(Tokens(torch.tensor([source])))
        torch.testing.assert_close(memory.states[row, :len(source)], alone.states[0], rtol=0, atol=1e-12)
        if alone.summary is not None:
            torch.testing.assert_close(memory.summary[row], alone.summary[0], rtol=0, atol=1e-12)
    assert memory.lengths.tolist() == [1, 6, 2, 6, 2]


@pytest.fixture
def float_translator():
    """A translator in float32, which the packed decoder step serves, and what it finds."""
    config = TRANSLATING["attention"]
    translator = make_task(built(config).float(), config, SPECIAL)
    return translator, translator.translate_ids(SOURCES, beams=3, nbest=2, max_length=6)


def written(found):
    return [[one.ids for one in several] for several in found]


def test_threads_that_search_at_the_same_time(float_translator):
    translator, want = float_translator
    with ThreadPoolExecutor(4) as pool:
        searches = [pool.submit(translator.translate_ids, SOURCES, beams=3, nbest=2, max_length=6) for _ in range(12)]
        for one in searches:  # packed weights of another thread may round the last bit otherwise
            assert written(one.result()) == written(want)
            scores = [[hypothesis.score for hypothesis in several] for several in one.result()]
            for found, expected in zip(scores, want, strict=True):
                assert found == pytest.approx([hypothesis.score for hypothesis in expected], rel=1e-5)


@pytest.mark.parametrize("options", [{"beams": 3, "nbest": 2}, {"beams": 3, "glossary": {"the": "le"}},
                                     {"beams": 1, "length_penalty": "none"}], ids=["beam", "glossary", "greedy"])
def test_batches_that_are_translated_at_the_same_time(options, monkeypatch):
    monkeypatch.setattr(tasks, "MIN_WORKER_TOKENS", 1)
    translator, texts = copy.deepcopy(texting.translator()), [source for source, _ in texting.pairs(40)]
    translator.model.float()  # which is computed with packed weights
    before, want = torch.get_num_threads(), translator.translate(texts, max_length=12, **options)
    try:
        torch.set_num_threads(1)
        alone = translator.translate(texts, max_length=12, batch_tokens=50, **options)
        torch.set_num_threads(3)
        found = translator.translate(texts, max_length=12, batch_tokens=150, **options)
    finally:
        torch.set_num_threads(before)
    assert [one.ids for one in found] == [one.ids for one in alone] == [one.ids for one in want]
    assert [one.score for one in found] == pytest.approx([one.score for one in want], rel=1e-4)
    assert not any("forward" in vars(module) for module in translator.model.modules())  # nothing is left packed


def test_a_model_may_change_its_precision_after_a_search(float_translator):
    translator, want = float_translator
    translator.model.double()
    assert written(translator.translate_ids(SOURCES, beams=3, nbest=2, max_length=6)) == written(want)
    translator.model.half()
    for several, others in zip(translator.translate_ids(SOURCES, beams=3, max_length=6), want, strict=True):
        assert several[0].score == pytest.approx(others[0].score, rel=0.02)


def test_a_model_can_be_trained_after_a_search_in_inference_mode(float_translator):
    translator, want = float_translator
    with torch.inference_mode():
        assert translator.translate_ids(SOURCES, beams=3, nbest=2, max_length=6) == want
    memory = translator.model.encode(Tokens(torch.tensor(SOURCES[:1])))
    translator.model.decode(Tokens(torch.tensor([[1, 5]])), memory).square().sum().backward()
    torch.optim.SGD(translator.model.parameters(), lr=0.5).step()
    found = translator.translate_ids(SOURCES, max_length=6)
    for source, (one,) in zip(SOURCES, found, strict=True):  # by the new weights
        memory = translator.model.encode(Tokens(torch.tensor([source])))
        logits = translator.model.decode(Tokens(torch.tensor([[1]])), memory)[0, -1].log_softmax(-1)
        first = one.ids[0] if one.ids else one.end
        assert one.log_probabilities[0] == pytest.approx(float(logits[first].detach()), abs=1e-4)


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
    with pytest.raises(ValueError, match=r"`special\.start`"):
        make_task(built(config), config).translate_ids(SOURCES)
    with pytest.raises(ValueError, match=r"`special\.end`"):
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
    with pytest.raises(ValueError, match="`capacity` must be at most 12"):
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


TEXTS = ["the big dog sleeps.", "", "Emma sees a cat.", " \u00a0\u200b\n", "no", "</s> <pad> ▁ \u2028 語",
         "we sing. " * 9]


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("pair", [texting.joint, texting.separate])
def test_a_text_is_translated_as_its_ids_are(beams, pair):
    task = texting.translator(pair=pair)
    found = task.translate(TEXTS, beams=beams, max_length=6, length_penalty="none")
    for text, one in zip(TEXTS, found, strict=True):
        if not text.strip() or text.isspace() or text == TEXTS[3]:
            assert one == Translation("", 0.0, (), False)
            continue
        source = [*task.tokenizer.source.encode(text), task.tokenizer.source.special.end[0]]
        ((want,),) = task.translate_ids([source], beams=beams, max_length=6)
        assert (list(one.ids), one.text, one.cut) == (want.ids, task.tokenizer.target.decode(want.ids), want.cut)
        assert one.score == pytest.approx(want.score)
        assert task.translate(text, beams=beams, max_length=6, length_penalty="none").ids == one.ids


def test_small_batches_change_nothing(monkeypatch):
    task = texting.translator()
    sources = [source for source, _ in texting.pairs()[:40]]
    whole = task.translate(sources, beams=2, max_length=8)
    sizes = []
    real = task._hypotheses
    monkeypatch.setattr(task, "_hypotheses", lambda rows, search: sizes.append(rows) or real(rows, search))
    small = task.translate(sources, beams=2, max_length=8, batch_tokens=60)
    assert [one.ids for one in small] == [one.ids for one in whole]
    assert len(sizes) > 5
    assert all(len(rows) * max(len(row.source) for row in rows) <= 60 for rows in sizes if len(rows) > 1)
    for wrong in (0, -5, 1.5, "many"):
        with pytest.raises(ValueError, match="`batch_tokens` must be a whole number, at least 1"):
            task.translate(sources, batch_tokens=wrong)


def test_blank_texts_ask_no_model(monkeypatch):
    task = texting.translator()
    monkeypatch.setattr(task.model, "encode", lambda tokens: pytest.fail("asked"))
    assert task.translate("") == Translation("", 0.0, (), False)
    assert [one.text for one in task.translate(["", " ", "\u3000", "\ufeff"])] == [""] * 4
    assert task.translate([]) == []


def test_the_best_has_the_others_beside_it():
    found = texting.translator().translate("the dog", beams=4, nbest=3, max_length=5)
    assert len(found.alternatives) == 2
    scores = [found.score, *(one.score for one in found.alternatives)]
    assert scores == sorted(scores, reverse=True)
    assert found.alternatives[0].alternatives == ()


def test_a_text_beyond_the_positions_is_named():
    task = texting.translator("learned", tie_word_embeddings=False)  # 12 positions
    long = "the big dog sees the big cat. " * 3
    with pytest.raises(ValueError, match=r"`texts\[1\]` must be at most 12 tokens long"):
        task.translate(["no", long])
    assert task.translate("no").cut in (True, False)


def test_a_model_of_more_ids_than_tokens_writes_tokens_alone():
    both = texting.joint()
    for make, use in ((lambda: texting.translating(source_vocab_size=both.source.size, tie_word_embeddings=False,
                                                   output_bias=True,
                                                   target_vocab_size=both.target.size + 8), "translate"),
                      (lambda: texting.resized(texting.language(embedding="sinusoidal", tie_word_embeddings=False,
                                                                output_bias=True),
                                               both.source, 8), "complete")):
        config = make()
        model = texting.built(config)
        with torch.no_grad():
            model.output.bias[both.target.size:] = 50.0
        task = make_task(model, config, tokenizer=both if use == "translate" else both.source)
        for beams in (1, 2):
            found = getattr(task, use)("the dog", max_length=4, beams=beams)
            assert max(found.ids) < both.target.size


def test_a_model_in_training_mode_is_refused():
    task = texting.translator(order="post")
    task.model.train()
    with pytest.raises(ValueError, match=r"training mode.*model\.eval\(\)"):
        task.translate("the dog")


@given(st.lists(st.text(max_size=12), min_size=1, max_size=3))
def test_any_text_is_translated_to_one_text(texts):
    found = texting.translator().translate(texts, beams=1, max_length=3, length_penalty="none")
    assert [type(one.text) for one in found] == [str] * len(texts)


def test_overloads_give_what_was_given():
    task: Translator = texting.translator()
    assert isinstance(task.translate("no", max_length=1), Translation)
    assert isinstance(task.translate(["no"], max_length=1), list)
    with pytest.raises(ValueError, match="`texts` must be a text, or a list of texts, but is an int"):
        task.translate(5)


TRANSLATES_TEXTS = ["the big dog sleeps.", "", "Emma sees a cat.", "no", "the big dog sleeps."]


@pytest.fixture(scope="module")
def task():
    return ending.translator()


def ids(found):
    return [[one.ids, *(other.ids for other in one.alternatives)] for one in found]


def test_a_call_is_its_search(task):
    options = {"beams": 4, "nbest": 3, "length_penalty": 0.6, "coverage_penalty": 0.1, "num_beam_groups": 2,
               "diversity_penalty": 0.7,
               "max_length": 9, "min_length": 2, "no_repeat_ngram_size": 2}
    assert ids(task.translate(TRANSLATES_TEXTS, **options)) == ids(task.search(TRANSLATES_TEXTS, Beam(**options)))
    options = {"num_samples": 3, "temperature": 0.9, "top_k": 50, "top_p": 0.95, "min_p": 0.001, "seed": 7,
               "max_length": 9,
               "min_length": 2, "no_repeat_ngram_size": 2}
    assert ids(task.sample(TRANSLATES_TEXTS, **options)) == ids(task.search(TRANSLATES_TEXTS, Sampling(**options)))


@pytest.mark.parametrize("options", [{"min_length": 6}, {"no_repeat_ngram_size": 1}, {"coverage_penalty": 2.0},
                                     {"length_penalty": "none"},
                                     {"num_beam_groups": 4, "diversity_penalty": 9.0}])
def test_every_option_counts(task, options):
    plain = {"beams": 4, "max_length": 9, "nbest": 4}
    assert ids(task.translate(TRANSLATES_TEXTS, **plain)) != ids(task.translate(TRANSLATES_TEXTS, **plain, **options))


def test_samples_follow_from_seed_and_text_alone(task):
    together = task.sample(TRANSLATES_TEXTS, num_samples=4, seed=11, max_length=9)
    assert together[0].ids == together[4].ids
    assert together[1].text == ""
    for text, one in zip(TRANSLATES_TEXTS, together, strict=True):
        assert ids([task.sample(text, num_samples=4, seed=11, max_length=9)]) == ids([one])
        assert task.sample(text, seed=11,
                           max_length=9).ids == one.ids  # the first does not depend on how many there are
    assert ids(task.sample(TRANSLATES_TEXTS[::-1], num_samples=4, seed=11, max_length=9)) == ids(together[::-1])
    assert ids(task.sample(TRANSLATES_TEXTS, num_samples=4, seed=12, max_length=9)) != ids(together)
    assert len({(one.ids, *(other.ids for other in one.alternatives)) for one in together}) == 4


def test_a_sample_has_the_probability_that_the_model_gives_it(task):
    one = task.sample(TRANSLATES_TEXTS[0], temperature=0.5, top_k=3, seed=2, max_length=9)
    assert one.score == pytest.approx(sum(one.log_probabilities))
    assert one.log_probabilities == pytest.approx(by_force(task, TRANSLATES_TEXTS[0], one), abs=1e-4)


def test_mbr_takes_the_one_most_like_the_others(task):
    """Against sacrebleu's chrF of every pair."""
    search = Sampling(num_samples=6, seed=1, max_length=9)
    (sampled,) = task.search(TRANSLATES_TEXTS[:1], search)
    texts = [one.text for one in (sampled, *sampled.alternatives)]
    chrf = CHRF(eps_smoothing=False)
    utilities = {one: sum(chrf.sentence_score(one, [other]).score for other in texts) / 6 for one in texts}
    found = task.mbr(TRANSLATES_TEXTS[0], search)
    assert found.score == pytest.approx(max(utilities.values()))
    assert utilities[found.text] == pytest.approx(found.score)
    every = [found, *found.alternatives]
    assert sorted(one.text for one in every) == sorted({*texts})
    assert [one.score for one in every] == sorted((one.score for one in every), reverse=True)
    assert found.alternatives[0].alternatives == ()
    assert task.mbr(TRANSLATES_TEXTS[0], search) == found
    assert task.mbr(TRANSLATES_TEXTS[:2], search)[0].text == found.text


def test_of_equal_ones_mbr_takes_the_first(task, monkeypatch):
    """chrF does not see white space."""
    first, *others = (Translation(text, 0.0, (number,), False) for number, text in enumerate(["a b", "ab", "a b"]))
    monkeypatch.setattr(type(task), "_search", lambda *given, **more: [replace(first, alternatives=tuple(others))])
    found = task.mbr("no")
    assert [(one.text, one.ids) for one in (found, *found.alternatives)] == [("a b", (0,)), ("ab", (1,))]


def test_mbr_of_an_nbest_list_weighs_by_probability(task):
    search = Beam(beams=4, nbest=4, max_length=9)
    (best,) = task.search(TRANSLATES_TEXTS[:1], search)
    every = [best, *best.alternatives]
    shares = [math.exp(sum(one.log_probabilities)) for one in every]
    chrf = CHRF(eps_smoothing=False)
    want = {one.text: sum(share * chrf.sentence_score(one.text, [other.text]).score
                          for share, other in zip(shares, every, strict=True)) / sum(shares) for one in every}
    found = task.mbr(TRANSLATES_TEXTS[0], search)
    assert found.score == pytest.approx(max(want.values()))
    assert want[found.text] == pytest.approx(found.score)
    assert len(task.mbr(TRANSLATES_TEXTS[0]).alternatives) > 1


@pytest.mark.parametrize("drawn", [False, True])
def test_a_prefix_is_how_a_translation_begins(task, drawn):
    """It has its probabilities, and does not count for the score."""
    given, texts = ["le chien", "la", "un gros"], [TRANSLATES_TEXTS[0], TRANSLATES_TEXTS[2], TRANSLATES_TEXTS[3]]
    search = Sampling(num_samples=2, max_length=12) if drawn else Beam(beams=3, nbest=2, max_length=12)
    for text, prefix, one in zip(texts, given, task.search(texts, search, prefix=given), strict=True):
        begun = len(task.tokenizer.target.encode(prefix))
        for each in (one, *one.alternatives):
            assert each.text.startswith(prefix)
            assert len(each.ids) <= 12
            assert each.log_probabilities == pytest.approx(by_force(task, text, each), abs=1e-4)
            behind = each.log_probabilities[begun:]
            assert each.score == pytest.approx(sum(behind) / (1 if drawn else len(behind)), abs=1e-4)
            assert each.words[0].text == prefix.split()[0]
    every = task.search(texts, search, prefix="la")
    assert ids(every) == [ids(task.search([text], search, prefix="la"))[0] for text in texts]
    assert task.translate("", prefix="la").text == ""


@pytest.mark.thorough
@pytest.mark.parametrize("drawn", [False, True])
def test_a_prefix_counts_as_written(task, drawn):
    """For how long a translation is at least, and for what it may not repeat."""
    kind = Sampling if drawn else Beam
    texts, given = [TRANSLATES_TEXTS[3], TRANSLATES_TEXTS[0]], ["le chien voit", "la"]
    begun = [len(task.tokenizer.target.encode(prefix)) for prefix in given]
    plain = task.search(texts, kind(max_length=20), prefix=given)
    assert task.search(texts, kind(max_length=20, min_length=min(begun)), prefix=given) == plain
    assert all(18 <= len(one.ids) <= 20 for one in task.search(texts, kind(max_length=20, min_length=18), prefix=given))
    assert any(len(one.ids) < 18 for one in plain)
    for one, count in zip(task.search(texts, kind(min_length=20, no_repeat_ngram_size=1), prefix=given), begun,
                          strict=True):
        behind = one.ids[count:]
        assert len({*behind} - {*one.ids[:count]}) == len(behind) >= 20 - count



def test_at_least_so_many_is_not_held_up_by_a_limit_that_nobody_gave(task):
    assert len(task.translate("no", min_length=70).ids) >= 70


def test_wrong_calls(task):
    for options, message in (({"prefix": ["a"]}, "`prefix` must be one text, or one for each of the 2"),
                             ({"prefix": [1, 2]}, r"`prefix\[0\]` must be a text"),
                             ({"prefix": "la " * 9, "max_length": 4}, "`prefix` must be at most 4 tokens long"),
                             ({"beams": 2, "nbest": 3}, "`nbest` must be at most the 2 beams"),
                             ({"glossary": 5}, "`entries` must be terms")):
        with pytest.raises(ValueError, match=message):
            task.translate(["the dog", "no"], **options)
    with pytest.raises(ValueError, match="`strategy` must be a Beam, or a Sampling"):
        task.search(["no"], "beam")
    with pytest.raises(ValueError, match="`among` must be a Sampling, or a Beam, but is an int"):
        task.mbr("no", 8)
    short = texting.translator(embedding="learned")  # 12 positions
    for name in ("max_length", "min_length"):
        with pytest.raises(ValueError, match=f"`{name}` must be at most 11"):
            short.translate("no", **{name: 12})
    with pytest.raises(ValueError, match="`glossary` must be left out"):
        task.mbr("no", glossary={"no": "non"})
    with pytest.raises(ValueError, match="`coverage_penalty` must be None"):
        without_attention().translate("no", coverage_penalty=0.2)
