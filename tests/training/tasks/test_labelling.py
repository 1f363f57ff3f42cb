"""Training of taggers: from files to batches, a loss and scores."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import EMBEDDINGS, built, stack
from torch.nn import functional as F

import regard
from regard.data.batches.feed import BatchConfig
from regard.data.sources.text import DataError
from regard.data.tokenizer.training import CharactersConfig, UnigramConfig
from regard.models.classification import TaggerConfig
from regard.tokens import IGNORED_LABEL
from regard.training.config import DataConfig
from regard.training.starting_point import load_start
from regard.training.tasks.interface import TrainingRequest
from regard.training.tasks.labelling import TokenLabelSetup, TokenLabelTask, token_label_feed
from regard.training.tasks.token_label_data import prepare_sequences, survey_sequences

CHAINS = "".join(f"{'ACDE' * (1 + n % 5)}{'KL'[n % 2]}{chr(70 + n % 7)}\t{'HHEE' * (1 + n % 5)}{'CT'[n % 2]}C\n"
                 for n in range(60))
WORDS = "".join(f"the dog{n} sleeps .\tO B-X I-X O\n" for n in range(40))


def surveyed(paths, validation=(), **options):
    request = TrainingRequest(task="label", data=tuple(paths), validation=tuple(validation), output=Path("none"))
    return survey_sequences(request, DataConfig(**options))


def prepared(file, tmp_path, text=CHAINS, tokenizer=None, **options):
    survey = surveyed([file("a.tsv", text)], validation_fraction=0.2, **options)
    return prepare_sequences(survey, tokenizer or CharactersConfig(), tmp_path / "data"), survey


def tagger(made, **options):
    return TaggerConfig(vocab_size=made.vocabulary, width=8, num_labels=len(made.labels),
                        embedding=EMBEDDINGS["sinusoidal"], stack=stack(), **options)


def rows_of(store, marks):
    return sorted((tuple(store[number].tolist()), tuple(marks[number].tolist())) for number in range(len(store)))


def test_every_character_has_its_label(file, tmp_path):
    made, survey = prepared(file, tmp_path)
    distinct = dict(line.split("\t") for line in reversed(CHAINS.splitlines()))
    assert survey.count == len(distinct)
    assert made.labels == tuple(sorted(set("".join(distinct.values()))))
    found = {}
    for store, marks in ((made.training, made.training_labels), (made.validation, made.validation_labels)):
        for ids, labels in rows_of(store, marks):
            found[made.tokenizer.decode(list(ids))] = "".join(made.labels[label - 1] for label in labels)
    assert found == distinct
    assert 0 < len(made.validation) < len(distinct)


def test_labels_of_words_are_on_their_first_subwords(file, tmp_path):
    made, _ = prepared(file, tmp_path, WORDS, UnigramConfig(vocab_size=290))
    for ids, marks in rows_of(made.training, made.training_labels):
        words = made.tokenizer.decode(list(ids)).split()
        first = [at for at, mark in enumerate(marks) if mark]
        assert [made.labels[marks[at] - 1] for at in first] == ["O", "B-X", "I-X", "O"]
        pieces = [made.tokenizer.decode(list(ids[start:end])).strip()
                  for start, end in zip(first, [*first[1:], len(ids)], strict=True)]
        assert len(pieces) == 4
        assert pieces[0] == "the"
        assert "".join(pieces) == "".join(words)
    assert any(0 in marks for _, marks in rows_of(made.training, made.training_labels))


@pytest.mark.parametrize("layout", ["padded", "packed"])
@pytest.mark.parametrize("shapes", ["as_drawn", "few"])
def test_an_epoch_has_every_label_once(file, tmp_path, layout, shapes):
    made, _ = prepared(file, tmp_path)
    feed = token_label_feed(made, BatchConfig(max_tokens=80, layout=layout, shapes=shapes), 1)
    batches = [feed.at(step) for step in range(feed.steps)]
    labels = np.concatenate([batch.labels[batch.labels != IGNORED_LABEL].numpy() for batch in batches])
    want = made.training_labels.stream[made.training_labels.stream > 0].astype(np.int64) - 1
    assert sorted(labels.tolist()) == sorted(want.tolist())
    assert sum(batch.tokens for batch in batches) == len(want)
    for batch in batches:
        assert batch.labels.shape == batch.inputs.ids.shape


def test_token_dropout_replaces_some_ids_and_no_label(file, tmp_path):
    made, _ = prepared(file, tmp_path)
    plain, dropped = (token_label_feed(made, BatchConfig(max_tokens=200), 1, share) for share in (0.0, 0.3))
    unknown, changed, total = made.tokenizer.special.unknown, 0, 0
    for step in range(plain.steps):
        one, other, again = plain.at(step), dropped.at(step), dropped.at(step + dropped.steps)
        assert torch.equal(one.labels, other.labels)
        different = one.inputs.ids != other.inputs.ids
        assert (other.inputs.ids[different] == unknown).all()
        changed, total = changed + int(different.sum()), total + one.tokens
        assert again.tokens > 0
    assert 0.2 < changed / total < 0.4


def test_the_loss_is_that_of_the_labels(file, tmp_path, settings):
    made, _ = prepared(file, tmp_path)
    task = TokenLabelTask(made, tagger(made), settings(tokens=100))
    model = built(task.model_config).eval()
    batch = task.feed(0, 1).at(0)
    loss = task.objective(model)(batch)
    logits = model(batch.inputs)
    want = F.cross_entropy(logits.reshape(-1, len(made.labels)), batch.labels.reshape(-1), reduction="sum",
                           ignore_index=IGNORED_LABEL)
    torch.testing.assert_close(loss.total, want)
    assert int(loss.tokens) == batch.tokens


def test_validation_agrees_with_the_labeller(file, tmp_path, settings):
    made, survey = prepared(file, tmp_path)
    task = TokenLabelTask(made, tagger(made), settings(tokens=100), {"data": {"label_unit": "character"}})
    labeller = task.wrap(built(task.model_config).float())
    found = task.validate(labeller)
    sequences = [*survey.validation_sequences()]
    pairs = [pair for sequence in sequences
             for pair in zip(sequence.labels, labeller.label_tokens([sequence.tokens])[0].labels, strict=True)]
    assert found.scores["accuracy"] == pytest.approx(sum(one == other for one, other in pairs) / len(pairs))
    assert len(found.examples) == 2
    assert set(found.examples[0].target) <= set(made.labels)
    assert task.sample_input() is not None


def test_duplicates_empty_and_long_sequences_are_skipped_and_counted(file):
    text = f"MKV\tCHH\nMKV\tCHH\n\nMKV\tCCC\nAAAA\tHHHH\n{'A' * 3000}\t{'H' * 3000}\n"
    survey = surveyed([file("a.tsv", text)])
    assert survey.count == 2
    assert survey.statistics.dropped == {"duplicate": 2, "too_long": 1, "empty": 1}
    assert survey.statistics.relabelled == 1
    assert any("2,000 characters (data.filters.max_characters)" in note for note in survey.warnings)
    assert any("Skipped 4" in note and "a.tsv:3" in note and "a label for every character" in note
               for note in survey.warnings)


def test_unknown_labels_of_validation_data_are_said_and_left_out(file, tmp_path):
    training, other = file("a.tsv", CHAINS), file("b.tsv", "ACDK\tHHZZ\nAC\tHE\n")
    survey = surveyed([training], [other])
    assert any("2 tokens" in note and "Z (2)" in note for note in survey.warnings)
    made = prepare_sequences(survey, CharactersConfig(), tmp_path / "data")
    assert sorted(np.count_nonzero(made.validation_labels[number]) for number in range(2)) == [2, 2]


def test_spans_that_begin_with_i_are_counted(file):
    survey = surveyed([file("a.conll", "a I-X\nb O\n\nc B-X\nd I-X\n")])
    assert survey.statistics.irregular == 1
    assert any("1 span" in note and "I-" in note for note in survey.warnings)


@pytest.mark.parametrize(("text", "named"), [("MK\tHH\nAC\tHH\n", '"H"'), ("", "a.tsv"),
                                             ("MKV\tCHH\nMKVA\tC\n", "a.tsv:2")])
def test_data_that_cannot_be_learned_is_refused(file, text, named):
    with pytest.raises(DataError, match=named):
        surveyed([file("a.tsv", text)])


def test_a_masked_model_starts_a_tagger_and_long_chains_are_split(file, tmp_path):
    masked = tmp_path / "masked"
    chains = file("chains.txt", "".join(f"{line.partition(chr(9))[0]}\n" for line in CHAINS.splitlines()))
    settings = {"tokenizer.kind": "characters", "model.embedding.positions.max_positions": 8,
                "model.width": 16, "model.stack.layers": 1, "model.stack.feed_forward.ffn_width": 16,
                "training.validation.every": 2}
    regard.train(chains, masked, task="masked", recipe="bert-tiny", steps=2, settings=settings)
    start = load_start(masked, "label")
    setup = TokenLabelSetup(start)
    request = TrainingRequest(task="label", data=(file("a.tsv", CHAINS),), output=tmp_path / "new")
    survey = setup.survey(request, DataConfig(validation_fraction=0.2))
    made = prepare_sequences(survey, None, tmp_path / "data", start)
    lengths = [len(made.training[number]) for number in range(len(made.training))]
    assert max(lengths) == 8
    assert sum(lengths) == sum(len(sequence.tokens) for sequence in survey.training_sequences())
    assert any("8 tokens" in note and "windows" in note for note in made.notes)
    found = regard.train(request.data[0], tmp_path / "tagger", task="label", from_=masked, steps=2)
    assert isinstance(found, regard.Labeller)
    assert found.unit == "character"
    assert found.label("ACDEACDEACDEK").windows > 1


def test_subwords_cannot_start_labels_of_characters(file, tmp_path):
    masked = tmp_path / "masked"
    settings = {"model.width": 16, "model.stack.layers": 1, "training.validation.every": 1}
    regard.train(file("t.txt", "a text\nanother text\n" * 20), masked, task="masked", recipe="bert-tiny", steps=1,
                 settings=settings)
    with pytest.raises(ValueError, match=r"a\.tsv .*masked.*tokenizer\.kind=characters"):
        regard.train(file("a.tsv", CHAINS), tmp_path / "new", task="label", from_=masked, steps=1)


def test_rows_in_memory(tmp_path):
    rows = [(["the", f"dog{n}", "sleeps", "."], ["O", "B-X", "I-X", "O"]) for n in range(30)]
    found = regard.train(rows, tmp_path / "model", task="label", steps=2, recipe="tagger-tiny", width=16)
    assert isinstance(found, regard.Labeller)
    assert (found.unit, found.splits_punctuation, found.labels) == ("word", True, ("B-X", "I-X", "O"))
    assert [token.token for token in found.label("the dog3 sleeps.").tokens] == ["the", "dog3", "sleeps", "."]
    assert "f1" in found.record["scores"]
    with pytest.raises(DataError, match="row 1"):
        regard.train([(["a"], ["X"]), (["a", "b"], ["X"])], tmp_path / "bad", task="label")


def test_a_text_classifier_says_that_the_labels_could_be_of_tokens(file):
    from regard.training.tasks.classification_data import survey_texts

    survey = survey_texts([file("a.tsv", "MKV\tCHH\nAAAA\tHHHH\n")], [], DataConfig())
    assert any("--task label" in note for note in survey.warnings)
    survey = survey_texts([file("b.tsv", "MKV\tCHH\nAAAA\tHH\n")], [], DataConfig())
    assert not any("--task label" in note for note in survey.warnings)


def test_defaults_follow_from_the_data(file, tmp_path):
    from regard.training.defaults import DeviceProperties

    setup, cpu = TokenLabelSetup(), DeviceProperties("cpu", 2**34, False)
    for text, tokenizer, unit, kind, metric in ((CHAINS, CharactersConfig(), "character", "characters", "accuracy"),
                                                (WORDS, UnigramConfig(vocab_size=290), "word", "unigram", "f1")):
        survey = surveyed([file(f"{unit}.tsv", text)])
        found = {one.key: one.value for one in setup.data_defaults(survey, {})}
        assert (found["data.label_unit"], found["tokenizer.kind"]) == (unit, kind)
        assert found.get("data.split_punctuation") == (True if unit == "word" else None)
        made = prepare_sequences(survey, tokenizer, tmp_path / unit)
        trained = {one.key: one.value for one in setup.training_defaults(made, {"model": {}}, cpu)}
        assert trained["training.validation.metric"] == metric
        assert trained["model.num_labels"] == len(made.labels)
        assert trained["training.token_dropout"] > 0
        assert setup.recipe_default(made, cpu, None).value.startswith("tagger")
