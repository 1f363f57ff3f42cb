"""Training of a translation model: the validation split, batches, losses and scores."""

import math
import os
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import tiny
import torch
import trained
from hypothesis import given
from hypothesis import strategies as st
from trained import request

import regard
from regard.data import phrasebook
from regard.data.batches.feed import BatchConfig
from regard.data.filters import FilterConfig
from regard.data.sources.text import DataError
from regard.data.tokenizer.training import BytesConfig, UnigramConfig
from regard.tasks.degenerate import find_degenerate
from regard.tasks.evaluation import corpus_scores
from regard.tokens import IGNORED_LABEL, PackedTokens, Tokens
from regard.training import train
from regard.training.config import DataConfig
from regard.training.distributed import DistributedContext
from regard.training.engine import TrainingEngine
from regard.training.loss import rdrop_loss
from regard.training.tasks import common
from regard.training.tasks.sentence_pairs import prepare_pairs, split_pairs, survey_pairs, translation_feed
from regard.training.tasks.translation import TranslationTask, repeat_tokens

PLAIN = DataConfig(filters=FilterConfig(drop=()))
NUMBERS = ("one", "two", "three", "four", "five", "six", "seven")


def lines(count):
    """Pairs of which every third has the source of the one before it."""
    sources = [n - (n % 3 == 2) for n in range(count)]
    return [f"{NUMBERS[source % 7]} thing {source}.\t{n} choses." for n, source in enumerate(sources)]


@pytest.fixture
def pairs(file):
    """A file of 60 pairs."""
    return file("pairs.tsv", "\n".join(lines(60)) + "\n")


@pytest.fixture
def work(pairs, settings, tmp_path):
    """A function to a work on these pairs, with a tokenizer of bytes."""

    def make(held=0.2, kind=tiny.translating, **options):
        found = split_pairs(survey_pairs([pairs], [], PLAIN), DataConfig(validation_fraction=held))
        prepared = prepare_pairs(found, BytesConfig(), tmp_path / "data", sampled=bool(options.get("subword_sampling")))
        size = prepared.tokenizer.source.size
        config = kind(order="post", source_vocab_size=size, target_vocab_size=size, share_embeddings=True)
        return TranslationTask(prepared, config, settings(tokens=400, **options))

    return make


def texts(pairs):
    return [(pair.source, pair.target) for pair in pairs]


def test_every_pair_is_learned_from_or_judged_by(pairs):
    found = split_pairs(survey_pairs([pairs], [], PLAIN), DataConfig(validation_fraction=0.2))
    learned, judged = texts(found.training_pairs()), texts(found.validation_pairs(1000))
    assert Counter(learned + judged) == Counter(tuple(line.split("\t")) for line in lines(60))
    assert not {source for source, _ in learned} & {source for source, _ in judged}  # a source is on one side
    assert len({source for source, _ in judged}) == 8  # of 40, a fifth
    assert found.validation_pairs(3) == found.validation_pairs(1000)[:3]


def test_what_is_held_out_does_not_depend_on_the_order(file):
    shuffled = file("other.tsv", "\n".join(lines(60)[::-1]) + "\n")
    first, second = (split_pairs(survey_pairs([path], [], PLAIN),
                                 DataConfig(validation_fraction=0.2)).validation_pairs(1000)
                     for path in (file("pairs.tsv", "\n".join(lines(60)) + "\n"), shuffled))
    assert set(texts(first)) == set(texts(second))


@given(count=st.integers(1, 60), held=st.floats(0.001, 0.999))
def test_of_few_pairs_some_are_learned_and_some_held(count, held, tmp_path_factory):
    """However few: a share by chance would now and then be none of them, or all."""
    path = tmp_path_factory.mktemp("few") / "pairs.tsv"
    path.write_text("\n".join(lines(count)) + "\n")
    found = split_pairs(survey_pairs([str(path)], [], PLAIN), DataConfig(validation_fraction=held))
    learned, judged = list(found.training_pairs()), found.validation_pairs(1000)
    assert learned
    assert judged
    if len({source for source, _ in texts(learned)} | {source for source, _ in texts(judged)}) > 1:
        assert len(learned) + len(judged) == count
    else:  # there is one source alone: the model is judged by what it learns
        assert texts(learned) == texts(judged)


def test_of_many_pairs_about_the_share_is_held_out(file):
    path = file("many.tsv", "".join(f"source {n}\tcible {n}\n" for n in range(3000)))
    found = split_pairs(survey_pairs([path], [], PLAIN), DataConfig(validation_fraction=0.2))
    assert len(found.validation_pairs(5000)) == pytest.approx(600, abs=90)
    assert len(list(found.training_pairs())) + len(found.validation_pairs(5000)) == 3000


def test_validation_data_that_is_given_is_all_that_is_judged_by(pairs, file):
    other = file("dev.tsv", "".join(f"dev {n}\tdev {n}!\n" for n in range(5)))
    found = split_pairs(survey_pairs([pairs], [other], PLAIN), DataConfig(validation_fraction=0.2))
    assert len(list(found.training_pairs())) == 60
    assert texts(found.validation_pairs(3)) == [(f"dev {n}", f"dev {n}!") for n in range(3)]


def test_files_are_named_with_their_content(pairs, file, tmp_path):
    (tmp_path / "more").mkdir()
    same = tmp_path / "more" / "pairs.tsv"
    same.write_text("a\tb\n")
    found = survey_pairs([pairs, str(same)], [], PLAIN)
    assert list(found.files) == ["pairs.tsv", "pairs.tsv (2)"]
    assert len(set(found.files.values())) == 2
    assert survey_pairs([str(same)], [], PLAIN).files == {"pairs.tsv": found.files["pairs.tsv (2)"]}


@pytest.mark.parametrize(("data", "validation", "message"), [
    ({"a.tsv": "one\tun\n"}, ["-"], "standard input: Training reads its data more than once"),
    ({"en": "a\nb\nc\n", "fr": "x\ny\n"}, [], r"(?s)en.*3.*fr.*2|fr.*2.*en.*3"),
    ({"a.tsv": ""}, [], r"a\.tsv: No pairs"),
    ({"a.tsv": "\t\n  \t \n"}, [], r"a\.tsv: All 2 pairs are skipped\. There is nothing to train on"),
    ({"en": "a\n"}, [], "en: Pairs in plain text need two files"),
])
def test_data_that_cannot_be_learned_from(file, data, validation, message):
    files = [file(name, text) for name, text in data.items()]
    with pytest.raises(DataError, match=message):
        survey_pairs(files, validation, DataConfig())


def test_validation_of_which_nothing_is_kept(pairs, file):
    with pytest.raises(DataError, match=r"dev\.tsv: The filters keep none of these pairs"):
        survey_pairs([pairs], [file("dev.tsv", " \t \n")], DataConfig())


def test_what_can_be_read_only_once(pairs, tmp_path):
    os.mkfifo(tmp_path / "pipe.tsv")
    with pytest.raises(DataError, match=r"pipe\.tsv: Training reads its data more than once, and this can be read"):
        survey_pairs([pairs], [str(tmp_path / "pipe.tsv")], DataConfig())


def test_what_is_stored_is_what_is_learned_from(work):
    made = work()
    tokenizer, store = made.prepared.tokenizer, made.prepared.store
    learned = list(made.prepared.survey.training_pairs())
    assert len(store) == len(learned)
    assert [list(store[n][0]) for n in range(len(store))] == tokenizer.encode_sources([pair.source for pair in learned])
    assert [list(store[n][1]) for n in range(len(store))] == tokenizer.encode_targets([pair.target for pair in learned])


def test_prepared_once_and_then_read(pairs, tmp_path, monkeypatch):
    """Neither the tokenizer nor the ids are made again, unless what they are made from is another."""
    config = UnigramConfig(vocab_size=290)
    found = split_pairs(survey_pairs([pairs], [], PLAIN), DataConfig(validation_fraction=0.2))
    first = prepare_pairs(found, config, tmp_path / "data")
    trained = []
    for name in ("train_joint_tokenizer", "train_separate_tokenizers"):
        make = getattr(common.training, name)
        monkeypatch.setattr(common.training, name, lambda *given, make=make: trained.append(1) or make(*given))
    again = prepare_pairs(found, config, tmp_path / "data")
    assert (trained, again.tokenizer.sha256, again.store.fingerprint) == ([], first.tokenizer.sha256,
                                                                          first.store.fingerprint)
    other = prepare_pairs(split_pairs(survey_pairs([pairs], [], PLAIN), DataConfig(validation_fraction=0.4)), config,
                          tmp_path / "data")
    assert trained == [1]
    assert len(other.store) < len(first.store)


def test_which_files_are_learned_from_counts(file, tmp_path):
    """The same files in other roles are other data."""
    files = [file(f"{name}.tsv", f"{name} one\t{name} un\n") for name in "abc"]
    stores = [prepare_pairs(split_pairs(survey_pairs(files[:count], files[count:], PLAIN), PLAIN), BytesConfig(),
                      tmp_path / "data").store for count in (1, 2)]
    assert [len(store) for store in stores] == [1, 2]


@pytest.mark.parametrize("sampling", [0.0, 0.5])
def test_an_epoch_has_every_pair_once(work, sampling):
    made = work(subword_sampling=sampling)
    feed = made.feed(0, 1)
    seen = np.concatenate([feed.at(step).numbers for step in range(feed.steps)])
    assert sorted(seen) == list(range(len(made.prepared.store)))
    parts = [made.feed(rank, 2) for rank in (0, 1)]
    together = [part.at(step) for step in range(parts[0].steps) for part in parts]
    assert [sorted(batch.numbers) for batch in together][:feed.steps] == [
        sorted(feed.at(step).numbers) for step in range(feed.steps)]


def test_sampled_texts_end_as_stored_ones_do(pairs, settings, tmp_path):
    found = split_pairs(survey_pairs([pairs], [], PLAIN), DataConfig())
    prepared = prepare_pairs(found, UnigramConfig(vocab_size=310), tmp_path / "data", sampled=True)
    config = tiny.translating(source_vocab_size=310, target_vocab_size=310)
    plain, sampled = (TranslationTask(prepared, config, settings(tokens=400, subword_sampling=alpha)).feed(0, 1).at(0)
                      for alpha in (0.0, 0.3))
    target = prepared.tokenizer.target
    for batch in (plain, sampled):
        for row, number in enumerate(batch.numbers):
            ids = batch.source.ids[row, :batch.source.lengths[row]].tolist()
            assert ids[-1] == target.special.end[0]
            pair = list(prepared.survey.training_pairs())[number]
            assert target.decode(ids[:-1]) == pair.source
            labels = [one for one in batch.labels[row].tolist() if one != IGNORED_LABEL]
            assert target.decode(labels[:-1]) == pair.target
    assert sampled.source.ids.tolist() != plain.source.ids.tolist()


def built(made):
    """The model, which has no dropout."""
    torch.manual_seed(1)
    return made.model_config.build().double()


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_the_loss_is_the_sum_over_all_labels(work, layout, settings):
    """Label by label from the logits: (1 - e) (-log p_label) + e mean(-log p)."""
    made = work(label_smoothing=0.2)
    network = built(made)
    store, special = made.prepared.store, made.prepared.tokenizer.target.special
    batch = translation_feed(made.prepared, BatchConfig(max_tokens=400, layout=layout), 1).at(0)
    loss = made.objective(network)(batch)
    total = nll = tokens = 0
    for number in batch.numbers:
        source, target = (list(side) for side in store[int(number)])
        logits = network(Tokens.of([source]), Tokens.of([[special.start, *target]]))
        logs = logits[0].log_softmax(-1)
        for place, label in enumerate([*target, special.end[0]]):
            nll -= logs[place, label]
            total += 0.8 * -logs[place, label] + 0.2 * -logs[place].mean()
            tokens += 1
    torch.testing.assert_close(loss.total, total, rtol=1e-9, atol=0)
    torch.testing.assert_close(loss.nll, nll.detach(), rtol=1e-9, atol=0)
    assert loss.tokens == tokens == batch.tokens


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_two_passes_that_must_agree(work, layout):
    """R-Drop of the two; outside of training there is one pass."""
    made = work(label_smoothing=0.1, rdrop=3.0)
    network = built(made)
    batch = translation_feed(made.prepared, BatchConfig(max_tokens=300, layout=layout), 1).at(0)
    objective = made.objective(network).train()
    features = network.features(batch.source, batch.inputs)
    wanted = rdrop_loss(torch.stack([features, features]), network.output, batch.labels, 0.1, 3.0)
    loss = objective(batch)
    torch.testing.assert_close(loss.total, wanted.total, rtol=1e-9, atol=0)
    assert loss.tokens == batch.tokens
    plain = objective.eval()(batch)
    torch.testing.assert_close(plain.total, loss.total, rtol=1e-9, atol=0)  # without dropout the two passes are one


def test_the_two_passes_have_dropout_of_their_own(work):
    made = work(rdrop=3.0, kind=lambda **options: tiny.translating(**options, embedding="sinusoidal"))
    made.model_config = replace(made.model_config, encoder=replace(made.model_config.encoder, dropout=0.5))
    network = built(made)
    batch = made.feed(0, 1).at(0)
    objective = made.objective(network).train()
    states = network.train().features(repeat_tokens(batch.source), repeat_tokens(batch.inputs))
    first, second = states.chunk(2)
    assert not torch.allclose(first, second)
    assert objective(batch).total > objective.eval()(batch).total  # that they differ costs something


def test_twice_keeps_what_it_is_given():
    rows = repeat_tokens(Tokens(torch.tensor([[7, 8], [9, 0]]), torch.tensor([2, 1])))
    assert (rows.ids.tolist(), rows.lengths.tolist()) == ([[7, 8], [9, 0], [7, 8], [9, 0]], [2, 1, 2, 1])
    packed = repeat_tokens(PackedTokens(torch.tensor([[7, 8, 9]]), torch.tensor([2, 1])))
    assert (packed.ids.tolist(), packed.lengths.tolist()) == ([[7, 8, 9, 7, 8, 9]], [2, 1, 2, 1])
    whole = repeat_tokens(Tokens(torch.tensor([[7, 8]]), None))
    assert (whole.ids.tolist(), whole.lengths) == ([[7, 8], [7, 8]], None)


def test_a_model_that_gives_no_numbers_is_judged_so(work):
    """Its loss tells; nothing is translated with it."""
    made = work(shown=2)
    network = built(made).float()
    with torch.no_grad():
        network.decoder.output.weight.fill_(math.nan)
    verdict = made.validate(made.wrap(network))
    assert all(math.isnan(score) for score in verdict.scores.values())
    assert verdict.examples == ()


def test_a_judgement_is_that_of_greedy_translations(work):
    made = work(shown=2, most=5)
    network = built(made).float()
    task = made.wrap(network)
    state = torch.get_rng_state()
    verdict = made.validate(task)
    assert torch.equal(torch.get_rng_state(), state)
    assert not network.training
    assert len(made.sources) == 5
    found = [one.text for one in task.translate(made.sources, beams=1, length_penalty="none")]
    scores = corpus_scores(found, made.targets)
    assert (verdict.scores["bleu"], verdict.scores["chrf"]) == (scores.bleu, scores.chrf)
    intervals = corpus_scores(found, made.targets, draws=1000)[4:]
    degenerate = [one.sentence for one in find_degenerate(made.sources, found, made.targets)]
    assert verdict.details() == {"bleu_interval": [*intervals[0]], "chrf_interval": [*intervals[1]],
                                 **({"degenerate": degenerate} if degenerate else {})}
    assert [tuple(example) for example in verdict.examples] == list(zip(made.sources, made.targets, found,
                                                                        strict=True))[:2]
    assert list(made.validate(task).scores) == ["loss", "bleu", "chrf"]


def test_all_ways_to_the_loss_of_the_validation_data_agree(work):
    """As a translator has it, and in batches, for models of which no process has all."""
    made = work(most=11)
    network = built(made).float()
    verdict = made.validate(made.wrap(network))
    engine = TrainingEngine(made.objective(network), made.settings, DistributedContext.alone())
    engine.module.eval()
    assert engine.mean_loss(made.validation_batches()) == pytest.approx(verdict.scores["loss"], rel=1e-5)
    assert sum(batch.tokens for batch in made.validation_batches()) == sum(
        len(ids) + 1 for ids in made.prepared.tokenizer.encode_targets(made.targets))


RECURRENT = {"attention": "seq2seq-attention-tiny", "none": "seq2seq-tiny"}


@pytest.fixture(autouse=True)
def _without_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["transformer", "attention", "none"])
def test_the_choice_is_in_the_folder(kind, tmp_path):
    data, held = trained.pairs(tmp_path / "pairs.tsv"), trained.pairs(tmp_path / "held.tsv", 12, split="validation")
    asked = request(data, tmp_path / "model", {"training.validation.max_examples": 10}, validation=(held,))
    if kind != "transformer":
        tiny = {key: value for key, value in asked.changes.items() if not key.startswith("model.")}
        asked = replace(asked, recipe=RECURRENT[kind], changes={**tiny, "model.width": 16})
    train.train(asked)
    task = regard.load(tmp_path / "model")
    judged = [(pair.source, pair.target) for pair in phrasebook.pairs(10, split="validation", max_words=6)]
    assert task.attends == (kind != "none")
    assert task.aligned_by == (task.choose_alignment(judged) if task.attends else None)
    sources, targets = zip(*judged, strict=True)
    made = [one.text for one in task.translate(sources, beams=1, length_penalty="none")]
    scores = corpus_scores(made, targets, draws=1000)
    record, card = task.record["scores"], (tmp_path / "model" / "README.md").read_text()
    assert (record["chrf"], record["chrf_interval"]) == (pytest.approx(scores.chrf), pytest.approx([*scores[5]]))
    assert f"[{scores.chrf_interval.low:.2f}, {scores.chrf_interval.high:.2f}]" in card
    said = [one.sentence for one in find_degenerate(sources, made, targets)]
    assert record.get("degenerate", []) == said
    assert card.count("**Warning:**") == len(said)
