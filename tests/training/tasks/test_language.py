"""Training of a language model: the continuous text, windows, carried states, losses and scores."""

import gzip

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import EMBEDDINGS, LANGUAGE, MIXERS, READING, TARGET, old, stack
from torch.nn import functional as F

from regard.blocks.stack import StackConfig
from regard.data.batches.feed import StreamFeed, WindowConfig
from regard.data.sources.text import DataError, InputFile
from regard.data.store import open_or_make_texts
from regard.data.tokenizer.subwords import ByteTokenizer
from regard.data.tokenizer.training import CharactersConfig, UnigramConfig, train_tokenizer
from regard.models.language import LanguageModelConfig
from regard.recurrence.scan import RecurrenceConfig
from regard.tokens import IGNORED_LABEL, Tokens
from regard.training.config import DataConfig
from regard.training.tasks import language
from regard.training.tasks.interface import TrainingTask
from regard.training.tasks.language import (
    FILE_END,
    ContinuousFeed,
    StreamWindow,
    TruncatedBPTTObjective,
    carries_state,
    encode_pieces,
    pad_windows,
    read_pieces,
    slice_pieces,
)

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
    assert survey.warnings == (f"Read {len(TEXT):,} characters from a.txt.",)
    assert "is both training and validation data" in language.survey_text([train], [train], DataConfig()).warnings[1]


def test_with_nothing_held_out_it_is_judged_by_what_it_learned(file):
    survey = surveyed(file, held=0.0)
    assert "".join(survey.training_text()) == "".join(survey.validation_text()) == TEXT
    assert language.LanguageSetup().data_defaults(language.survey_text([file("short.txt", "ab" * 50)], [],
                                                                       DataConfig()), {})[0].value == 0.0


@pytest.mark.parametrize(("data", "message"), [
    (b"", "No text to train on"), (b"aaaa", "No text to train on"), (b"fine\n\xff", "a.txt:2: byte 1: 0xFF"),
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
    with pytest.raises(DataError, match="The training text has fewer than two tokens"):
        language.prepare_text(survey, CharactersConfig(), tmp_path / "data")


@pytest.mark.thorough
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
    with pytest.raises(ValueError, match=r"`training.windows` must be"):
        language.LanguageTask(prepared, transformer(prepared), settings())
    with pytest.raises(ValueError, match=r"`training.windows.length` must be at most 12, .* but is 13"):
        language.LanguageTask(prepared, transformer(prepared), settings(windows=WindowConfig(length=13)))
    with pytest.raises(ValueError, match=r"`training.rdrop` must be 0"):
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


TEXT_CONTINUOUS = ("First Citizen:\nBefore we proceed any further, hear me speak.\n\nAll:\nSpeak, speak.\n\n"
                   "  Two spaces \u2581.\n")
letters = st.text(st.sampled_from("ab \n\u00e9"), max_size=30)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("texts")


@pytest.fixture(scope="module")
def subwords():
    lines = ["\n" + line for line in TEXT_CONTINUOUS.split("\n")] * 20
    return train_tokenizer(lines, UnigramConfig(vocab_size=300, normalization="nfc")).tokenizer


@given(st.lists(letters, min_size=1, max_size=3))
def test_pieces_make_up_the_text(place, texts):
    inputs = []
    for number, text in enumerate(texts):
        (place / f"{number}.txt").write_bytes(text.encode())
        inputs.append(InputFile(place / f"{number}.txt"))
    found = list(read_pieces(inputs))
    assert "".join("|" if piece is FILE_END else piece for piece in found) == "|".join(texts)
    assert all(piece.count("\n") == piece.startswith("\n") for piece in found if piece is not FILE_END)


def test_line_ends_of_other_systems(place):
    (place / "crlf.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\rthree\r\n")
    assert "".join(read_pieces([InputFile(place / "crlf.txt")])) == "one\ntwo\rthree\n"


@given(st.lists(st.none() | letters.filter(bool), max_size=8), st.integers(0, 60), st.integers(0, 60))
def test_a_part_is_a_part_of_the_characters(given, first, more):
    whole = "".join(piece for piece in given if piece is not FILE_END)
    found = list(slice_pieces(iter(given), first, first + more))
    assert "".join(piece for piece in found if piece is not FILE_END) == whole[first:first + more]
    assert found[:1] != [FILE_END]  # before the first characters nothing ends
    assert "" not in found


def test_files_that_end_inside_a_part_are_told():
    given = ["ab", FILE_END, "cd", FILE_END, "ef"]
    assert list(slice_pieces(given, 0, 4)) == ["ab", FILE_END, "cd"]
    assert list(slice_pieces(given, 1, 5)) == ["b", FILE_END, "cd", FILE_END, "e"]
    assert list(slice_pieces(given, 2, 4)) == ["cd"]


@given(letters)
def test_the_ids_are_those_of_the_whole_text(subwords, place, text):
    (place / "whole.txt").write_bytes((TEXT_CONTINUOUS + text).encode())
    ids = [id_ for some in encode_pieces(subwords, read_pieces([InputFile(place / "whole.txt")])) for id_ in some]
    assert subwords.decode(ids) == subwords.normalize(TEXT_CONTINUOUS + text)
    assert ids == subwords.encode(TEXT_CONTINUOUS + text)


def test_between_files_stands_the_end(subwords):
    for tokenizer in (subwords, ByteTokenizer()):
        ids = list(encode_pieces(tokenizer, ["a", FILE_END, "b"]))
        assert ids == [tokenizer.encode("a"), list(tokenizer.special.end), tokenizer.encode("b")]


CELLS = ("rnn", "lstm", "gru", "mut1", "mut2", "mut3")


@pytest.fixture
def stream(tmp_path):
    """A text of 3 rows that are read in windows of 7: 5 steps, the last one short and uneven."""
    ids = torch.randint(TARGET, (95,)).tolist()
    text = open_or_make_texts(tmp_path, "key", lambda: [ids], vocabulary=TARGET).store
    return StreamFeed(text, length=7, rows=3, padding=0)


def rows_of(stream):
    """The ids of each row, inputs and labels."""
    ids = torch.from_numpy(stream.text.stream.astype("int64"))
    return [(ids[first:last], ids[first + 1:last + 1]) for first, last in zip(stream.first, stream.last, strict=True)]


@pytest.mark.parametrize("cell", CELLS)
def test_windows_are_one_long_pass(stream, cell):
    model = old(cell=cell).build().double()
    objective, feed = TruncatedBPTTObjective(model), ContinuousFeed(stream)
    for epoch in range(2):  # the second begins anew
        losses = [objective(feed.at(epoch * feed.steps + step)) for step in range(feed.steps)]
        whole = sum(F.cross_entropy(model(Tokens(ids[None]))[0], labels, reduction="sum")
                    for ids, labels in rows_of(stream))
        assert abs(float((sum(loss.total for loss in losses) - whole).detach())) < 1e-5
        assert sum(int(loss.tokens) for loss in losses) == 94


def test_windows_that_forget_are_not(stream):
    model = old(cell="lstm").build().double()
    feed = ContinuousFeed(stream)
    whole, apart = ([loss(feed.at(step)).nll for step in range(feed.steps)] for loss in (
        TruncatedBPTTObjective(model), lambda window: TruncatedBPTTObjective(model)(window)))
    assert float(abs(whole[0] - apart[0])) == 0.0
    assert all(float(abs(one - other)) > 1e-4 for one, other in zip(whole[1:], apart[1:], strict=True))


def test_gradients_flow_inside_a_window_and_stop_at_its_edge(stream):
    model, feed = old(cell="gru").build().double(), ContinuousFeed(stream)
    objective = TruncatedBPTTObjective(model)
    objective(feed.at(0))
    window = feed.at(1)
    got = torch.autograd.grad(objective(window).total, list(model.parameters()))
    with torch.no_grad():
        _, state = model.step_features(model.start(rows=3, capacity=7), feed.at(0).batch.inputs.ids)
    logits = model.step(state, window.batch.inputs.ids).logits
    wanted = torch.autograd.grad(F.cross_entropy(logits.flatten(0, 1), window.batch.labels.flatten(), reduction="sum"),
                                 list(model.parameters()))
    torch.testing.assert_close(got, wanted)


def test_what_is_carried_goes_on_after_it_was_stored(stream):
    model, feed = old(cell="lstm").build().double(), ContinuousFeed(stream)
    one, other, again = (TruncatedBPTTObjective(model) for _ in range(3))
    assert one.carried() == {}
    one(feed.at(0))
    stored = one.carried()
    assert sorted(stored) == [f"memory.{number}" for number in range(4)]
    one(feed.at(1))  # what was stored stays as it was
    other.resume(stored)
    again(feed.at(3))
    again.resume(stored)
    wanted = TruncatedBPTTObjective(model)
    wanted(feed.at(0))
    loss = wanted(feed.at(1)).nll
    assert torch.equal(other(feed.at(1)).nll, loss)
    assert torch.equal(again(feed.at(1)).nll, loss)


def test_the_places_of_what_is_carried_stay(stream):
    """A step that was recorded reads and writes them where they were."""
    model, feed = old(cell="lstm").build(), ContinuousFeed(stream)
    objective = TruncatedBPTTObjective(model)
    objective(feed.at(0))
    before = [memory.data_ptr() for memory in objective._state]
    for step in (1, 2, 5):
        objective(feed.at(step))
    objective.resume(objective.carried())
    assert [memory.data_ptr() for memory in objective._state] == before


def test_judging_does_not_disturb_what_is_carried(stream):
    model, feed = old(cell="gru").build(), ContinuousFeed(stream)
    other = ContinuousFeed(StreamFeed(stream.text, length=7, rows=2))
    objective, alone = TruncatedBPTTObjective(model), TruncatedBPTTObjective(model).eval()
    objective(feed.at(0))
    kept = objective.carried()
    objective.eval()
    for step in range(4):
        assert torch.equal(objective(other.at(step)).nll, alone(other.at(step)).nll)
    objective.train()
    assert all(torch.equal(kept[name], memory) for name, memory in objective.carried().items())


def test_other_rows_are_refused(stream):
    objective = TruncatedBPTTObjective(old(cell="rnn").build())
    objective(ContinuousFeed(stream).at(0))
    other = ContinuousFeed(StreamFeed(stream.text, length=7, rows=2))
    with pytest.raises(ValueError, match="`window` must be of 3 rows, as those before it, but is of 2"):
        objective(other.at(0))


def test_windows_are_equally_long_and_say_where_the_text_begins(stream):
    feed = ContinuousFeed(stream)
    windows = [feed.at(step) for step in range(2 * feed.steps)]
    assert [bool(window.first) for window in windows] == [True, *[False] * 4] * 2
    assert {tuple(window.batch.inputs.ids.shape) for window in windows} == {(3, 7)}
    assert all(window.batch.inputs.lengths is None for window in windows)
    assert all(int((window.batch.labels != IGNORED_LABEL).sum()) == window.tokens for window in windows)
    assert windows[4].tokens == 94 - 4 * 21
    assert feed.largest()[0].tokens == 21
    there = windows[0].to("meta")
    assert there.first.device.type == there.batch.labels.device.type == "meta"
    assert windows[0].numbers.tolist() == [0, 1, 2]


def test_what_fills_up_changes_nothing(stream):
    short = stream.at(4)
    model = LANGUAGE["attention"].build().double()
    long = pad_windows(short, 7, 0)
    for batch in (short, long):
        features = model(batch.inputs)
        batch_loss = F.cross_entropy(features.flatten(0, 1), batch.labels.flatten(), ignore_index=IGNORED_LABEL,
                                     reduction="sum")
        if batch is short:
            wanted = batch_loss
    torch.testing.assert_close(batch_loss, wanted)


@pytest.mark.parametrize(("name", "can"), [
    ("old", True), ("attention", False), ("recurrence", False), ("lstmn", False), ("none", False),
])
def test_who_can_carry(name, can):
    assert carries_state(LANGUAGE[name]) == can  # those with positions cannot
