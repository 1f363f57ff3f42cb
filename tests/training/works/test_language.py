"""The work of a language model: from files to windows and back to a text."""

import gzip

import pytest
import torch
from tiny import EMBEDDINGS, MIXERS, READING, stack
from torch.nn import functional as F

from regard.blocks.stack import StackConfig
from regard.data.batches.feed import WindowConfig
from regard.data.sources.text import DataError
from regard.data.tokenizer.training import CharactersConfig, UnigramConfig
from regard.models.language import LanguageModelConfig
from regard.recurrence.scan import RecurrenceConfig
from regard.tokens import Tokens
from regard.training.config import DataConfig
from regard.training.tasks import language
from regard.training.tasks.interface import TrainingTask
from regard.training.tasks.language import StreamWindow

TEXT = "".join(f"The {number % 7} cats of {number % 5} houses sleep.\n" for number in range(60))
LEARNED = int(len(TEXT) * 0.9)
"""Characters before the part that is held out."""


def surveyed(file, held=0.1, **options):
    return language.survey_text([file("text.txt", TEXT)], [], DataConfig(validation_fraction=held), **options)


@pytest.fixture
def prepared(file, tmp_path):
    return language.prepare_text(surveyed(file), CharactersConfig(), tmp_path / "data")


def transformer(prepared, embedding="learned"):
    return LanguageModelConfig(vocab_size=prepared.vocabulary, width=8, embedding=EMBEDDINGS[embedding], stack=stack())


def recurrent(prepared):
    return LanguageModelConfig(vocab_size=prepared.vocabulary, width=8, stack=StackConfig(
        layers=2, norm_position="none", mixer=RecurrenceConfig(cell="lstm")))


WINDOWS = {order: WindowConfig(length=12, batch_size=4, order=order) for order in ("shuffled", "continuous")}
MODELS = {"shuffled": transformer, "continuous": recurrent}


def test_what_is_in_the_files(file):
    counted = []
    survey = surveyed(file, progress=lambda given: (counted.append(one) or one for one in given))
    assert survey.characters == len(TEXT)
    assert survey.training_characters == int(len(TEXT) * 0.9)
    assert "".join(survey.training_text()) == TEXT[:survey.training_characters]
    assert "".join(survey.validation_text()) == TEXT[survey.training_characters:]
    assert len(counted) == 61
    assert list(survey.files) == ["text.txt"]
    assert language.LanguageSetup().data_defaults(survey, {})[0].value == 0.1


def test_a_validation_text_is_the_whole_of_it(file):
    train, other = file("a.txt", TEXT), file("b.txt.gz", gzip.compress(TEXT[:100].encode()))
    survey = language.survey_text([train], [other], DataConfig(validation_fraction=0.5))
    assert survey.training_characters == len(TEXT)
    assert "".join(survey.validation_text()) == TEXT[:100]
    assert language.LanguageSetup().data_defaults(survey, {})[0].value == 0.0
    assert survey.warnings == ()
    assert "is both training and validation data" in language.survey_text([train], [train], DataConfig()).warnings[0]


def test_with_nothing_held_out_it_is_judged_by_what_it_learned(file):
    survey = surveyed(file, held=0.0)
    assert "".join(survey.training_text()) == "".join(survey.validation_text()) == TEXT
    assert language.LanguageSetup().data_defaults(language.survey_text([file("short.txt", "ab" * 50)], [], DataConfig()), {})[0].value == 0.0


@pytest.mark.parametrize(("data", "message"), [
    (b"", "There is no text to learn from"), (b"aaaa", "There is no text"), (b"fine\n\xff", "a.txt:2: byte 1: 0xFF"),
])
def test_no_text(file, data, message):
    with pytest.raises(DataError, match=message):
        language.survey_text([file("a.txt", data)], [], DataConfig())
    with pytest.raises(DataError, match=r"b.txt:1: byte 3"):
        language.survey_text([file("a.txt", TEXT)], [file("b.txt", b"ab\xff")], DataConfig())


def test_characters_keep_lines(prepared):
    assert prepared.vocabulary == 5 + 256 + len(set(TEXT[:LEARNED]))
    assert prepared.tokens == LEARNED
    assert prepared.tokenizer.decode(prepared.training.stream.tolist()) == TEXT[:LEARNED]
    assert prepared.tokenizer.decode(prepared.validation.stream.tolist()) == TEXT[LEARNED:]


def test_the_second_time_nothing_is_trained(file, tmp_path, monkeypatch):
    first = language.prepare_text(surveyed(file), CharactersConfig(), tmp_path / "data")
    monkeypatch.setattr("regard.data.tokenizer.training.train_tokenizer", None)
    monkeypatch.setattr("regard.data.store.write_store", None)
    again = language.prepare_text(surveyed(file), CharactersConfig(), tmp_path / "data")
    assert again.tokenizer.sha256 == first.tokenizer.sha256
    assert again.training.fingerprint == first.training.fingerprint


def test_subwords_of_lines(file, tmp_path):
    with pytest.raises(ValueError, match=r"tokenizer.normalization"):
        language.prepare_text(surveyed(file), UnigramConfig(vocab_size=300), tmp_path / "data")
    made = language.prepare_text(surveyed(file), UnigramConfig(vocab_size=300, normalization="nfc"), tmp_path / "data")
    assert made.tokenizer.decode(made.training.stream.tolist()) == TEXT[:LEARNED]
    assert made.tokens < LEARNED / 2


def test_too_little_text(file, tmp_path):
    survey = language.survey_text([file("a.txt", "abc")], [], DataConfig(validation_fraction=0.4))
    with pytest.raises(DataError, match="There are not two tokens of training text"):
        language.prepare_text(survey, CharactersConfig(), tmp_path / "data")


@pytest.mark.parametrize("order", WINDOWS)
def test_it_learns_and_is_judged(prepared, settings, order):
    made_from = MODELS[order](prepared)
    work = language.LanguageTask(prepared, made_from, settings(windows=WINDOWS[order]))
    assert isinstance(work, TrainingTask)
    model = made_from.build()
    task, feed, objective = work.wrap(model), work.feed(0, 1), work.objective(model)
    assert isinstance(feed.at(0), StreamWindow) == (order == "continuous")
    model.train()
    state = torch.get_rng_state()
    before = work.validate(task).scores["loss"]
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    for step in range(60):
        batch = feed.at(step)
        (objective(batch).total / batch.tokens).backward()
        optimiser.step()
        optimiser.zero_grad()
    verdict = work.validate(task)
    assert verdict.scores["loss"] < before - 1
    given, wanted, made = verdict.examples[0]
    assert len(verdict.examples) == 2
    assert (given + wanted) in TEXT[LEARNED:]
    assert made


def test_the_loss_of_the_whole_text_each_id_once(prepared, settings):
    ids = torch.from_numpy(prepared.validation.stream.astype("int64"))
    made_from = recurrent(prepared)
    model = made_from.build()
    work = language.LanguageTask(prepared, made_from, settings(windows=WINDOWS["continuous"]))
    whole = F.cross_entropy(model(Tokens(ids[None, :-1]))[0], ids[1:]).detach()
    assert abs(work.validate(work.wrap(model)).scores["loss"] - float(whole)) < 1e-5
    made_from = transformer(prepared)
    model = made_from.build()
    work = language.LanguageTask(prepared, made_from, settings(windows=WINDOWS["shuffled"]))
    task = work.wrap(model)
    total = sum(F.cross_entropy(model(Tokens(ids[None, at:at + 12][:, :len(ids) - 1 - at]))[0], ids[at + 1:at + 13],
                                reduction="sum").detach() for at in range(0, len(ids) - 1, 12))
    assert abs(work.validate(task).scores["loss"] - float(total) / (len(ids) - 1)) < 1e-5
    few = language.LanguageTask(prepared, made_from, settings(windows=WINDOWS["shuffled"], most=1, shown=0))
    first = F.cross_entropy(model(Tokens(ids[None, :12]))[0], ids[1:13]).detach()
    verdict = few.validate(task)
    assert abs(verdict.scores["loss"] - float(first)) < 1e-5
    assert verdict.examples == ()


def test_processes_share_the_text(prepared, settings):
    for order, windows in WINDOWS.items():
        work = language.LanguageTask(prepared, MODELS[order](prepared), settings(windows=windows))
        alone, two = work.feed(0, 1), [work.feed(rank, 2) for rank in range(2)]
        for feeds in ([alone], two):
            total = sum(feed.at(step).tokens for feed in feeds for step in range(feed.steps))
            assert total == prepared.tokens - 1


def test_what_does_not_go_together(prepared, settings):
    with pytest.raises(ValueError, match=r"`training.windows` must be set"):
        language.LanguageTask(prepared, transformer(prepared), settings())
    with pytest.raises(ValueError, match=r"`training.windows.length` must be at most 12, .* but is 13"):
        language.LanguageTask(prepared, transformer(prepared), settings(windows=WindowConfig(length=13)))
    with pytest.raises(ValueError, match=r"`training.rdrop` must be 0 if a state is carried on"):
        language.LanguageTask(prepared, recurrent(prepared), settings(windows=WINDOWS["continuous"], rdrop=1.0))
    with pytest.raises(ValueError, match=r'`model.kind` must be "language", .* but is "masked"'):
        language.LanguageTask(prepared, READING["masked"], settings(windows=WINDOWS["shuffled"]))


def test_shuffled_windows_carry_nothing(prepared, settings):
    work = language.LanguageTask(prepared, recurrent(prepared), settings(windows=WINDOWS["shuffled"]))
    objective, feed = work.objective(work.model_config.build()), work.feed(0, 1)
    first = objective(feed.at(1)).nll
    objective(feed.at(0))
    assert torch.equal(objective(feed.at(1)).nll, first)


def test_attention_in_order_carries_nothing(prepared, settings):
    work = language.LanguageTask(prepared, transformer(prepared, "none"), settings(windows=WINDOWS["continuous"]))
    assert MIXERS["attention"] == work.model_config.stack.mixer
    model = work.model_config.build()
    objective, feed = work.objective(model), work.feed(0, 1)
    first = objective(feed.at(1)).nll
    objective(feed.at(0))
    assert torch.equal(objective(feed.at(1)).nll, first)
    assert objective.carried() == {}
