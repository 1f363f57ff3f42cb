"""Tasks: saved and loaded, batches of texts, and config.toml."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from threading import Barrier

import pytest
import texting
import torch
from hypothesis import given
from hypothesis import strategies as st
from refusals import assert_named
from texting import LABELS, RECORD
from tiny import LANGUAGE, READING, VISION, built
from torch import nn

import regard
from regard.attention.look import find_taps
from regard.data.tokenizer.subwords import ByteTokenizer
from regard.special_tokens import SpecialTokens
from regard.storage import folder as folders
from regard.tasks.load import make_task
from regard.tasks.task import (
    MAX_BATCH_FACTOR,
    MAX_BATCH_TOKENS,
    MAX_HYPOTHESES,
    MAX_WORKERS,
    MIN_GROUP_TOKENS,
    MIN_WORKER_TOKENS,
    SIMILAR,
    SMALL_DECODER,
    ModelDescription,
    as_texts,
    checked_record,
    element_name,
    even_batches,
    length_batches,
    map_batches,
    one_or_many,
    read_description,
    search_limits,
    search_workers,
    similar_lengths,
)
from regard.toml import ConfigError, parse_document
from regard.training.optimizer import ScheduleConfig

TASKS = {"joint": texting.translator, "separate": lambda: texting.translator(pair=texting.separate),
         "completer": texting.completer, "filler": texting.filler, "classifier": texting.classifier}


@pytest.mark.parametrize("make", TASKS.values(), ids=TASKS)
def test_a_model_comes_back_with_its_tokenizer(make, tmp_path):
    made = make()
    made.save(tmp_path / "model")
    found = regard.load(tmp_path / "model")
    assert found.tokenizer.sha256 == made.tokenizer.sha256
    assert (found.special, found.labels, found.record) == (made.special, made.labels, {})
    assert {*made.tokenizer.files()} <= {*folders.verify(tmp_path / "model").files}
    assert f'sha256 = "{made.tokenizer.sha256}"' in (tmp_path / "model" / "config.toml").read_text()


def test_special_ids_are_those_of_the_tokenizer_where_none_are_given():
    made = texting.translator()
    assert made.special == made.tokenizer.target.special
    assert made.special.start is not None


def test_what_tasks_do_not_read_is_kept_through_load_and_save(tmp_path):
    made = texting.translator()
    make_task(made.model, made.config, tokenizer=made.tokenizer, record=RECORD).save(tmp_path / "one")
    found = regard.load(tmp_path / "one")
    assert found.record == RECORD
    found.save(tmp_path / "two")
    assert (tmp_path / "two" / "config.toml").read_bytes() == (tmp_path / "one" / "config.toml").read_bytes()
    assert regard.load(tmp_path / "two").record == RECORD


def test_a_record_may_hold_configs_and_may_be_changed_before_it_is_saved(tmp_path):
    made = texting.filler()
    task = make_task(made.model, made.config, tokenizer=made.tokenizer,
                     record={"training": ScheduleConfig(warmup_steps=3)})
    task.record = {**task.record, "scores": {"loss": 2.5}}
    task.save(tmp_path / "model")
    record = regard.load(tmp_path / "model").record
    assert record["training"]["warmup_steps"] == 3
    assert record["scores"] == {"loss": 2.5}
    for wrong, said in (({"scores": {"loss": float("nan")}}, "finite number"), ({"score": {}}, "`record` must be")):
        task.record = wrong
        with pytest.raises(ValueError, match=said):
            task.save(tmp_path / "model")
    assert regard.load(tmp_path / "model").record == record


@pytest.mark.parametrize(("record", "said"), [
    ({"trainin": {}}, '`record` must be one of .* "trainin" .*Did you mean "training"'), ({"data": 5}, "a table"),
    ({"recipe": {}}, "text"), ({"tokenizer": {"sha256": "x"}}, "without sha256"), ({"scores": {"a": object()}}, "text"),
])
def test_a_record_that_no_config_could_hold(record, said):
    made = texting.filler()
    with pytest.raises(ValueError, match=said):
        make_task(made.model, made.config, tokenizer=made.tokenizer, record=record)


def swapped(folder, **changes):
    """The folder with other files under a manifest that fits them."""
    names = folders.verify(folder).files
    folders.save(folder, {name: changes.get(name.replace(".", "_"), (folder / name).read_bytes()) for name in names})


def test_a_swapped_tokenizer_is_refused_by_hash_and_the_folder_is_named(tmp_path):
    texting.filler().save(tmp_path / "model")
    other = {name.replace(".", "_"): data for name, data in texting.tokenizer(1).files().items()}
    (tmp_path / "model" / "tokenizer.model").write_bytes(other["tokenizer_model"])
    with pytest.raises(ValueError, match=r"model/tokenizer\.model"):
        regard.load(tmp_path / "model")
    texting.filler().save(tmp_path / "second")
    swapped(tmp_path / "second", **other)
    expected = rf"{tmp_path}/second: tokenizer was changed: its sha256 is [0-9a-f]{{64}}, and was [0-9a-f]{{64}}"
    with pytest.raises(ValueError, match=expected):
        regard.load(tmp_path / "second")


def test_a_tokenizer_whose_files_are_not_there(tmp_path):
    texting.filler().save(tmp_path / "model")
    names = [name for name in folders.verify(tmp_path / "model").files if name != "tokenizer.toml"]
    folders.save(tmp_path / "model", {name: (tmp_path / "model" / name).read_bytes() for name in names})
    with pytest.raises(ValueError, match=r"model: tokenizer\.toml is missing"):
        regard.load(tmp_path / "model")


def test_without_a_tokenizer_ids_are_taken_and_text_is_refused(tmp_path):
    made = texting.translator()
    make_task(made.model, made.config, made.special).save(tmp_path / "model")
    found = regard.load(tmp_path / "model")
    assert found.tokenizer is None
    assert found.translate_ids([[300, 3]], max_length=2)
    with pytest.raises(ValueError, match=r"no tokenizer.*_ids"):
        found.translate("a dog")
    uses = {"complete": texting.completer(), "fill": texting.filler(), "classify": texting.classifier()}
    for use, task in uses.items():
        bare = make_task(task.model, task.config, task.special)
        with pytest.raises(ValueError, match="no tokenizer"):
            getattr(bare, use)("a ___ dog")


def test_a_tokenizer_that_does_not_fit():
    made, image = texting.filler(), texting.seer()
    with pytest.raises(ValueError, match="`tokenizer` must be a Tokenizer, for a Filler, but is a PairTokenizer"):
        make_task(made.model, made.config, tokenizer=texting.joint())
    with pytest.raises(ValueError, match="`tokenizer` must be a PairTokenizer, for a Translator"):
        make_task(texting.translator().model, texting.translator().config, tokenizer=texting.tokenizer())
    with pytest.raises(ValueError, match=r"`tokenizer` has 261 ids, .* 11"):
        make_task(built(READING["masked"]), READING["masked"], tokenizer=ByteTokenizer())
    with pytest.raises(ValueError, match="`tokenizer` must be None, for a model of images"):
        make_task(image.model, image.config, tokenizer=made.tokenizer)
    with pytest.raises(ValueError, match=r"`record\.tokenizer` must be left out"):
        make_task(made.model, made.config, record={"tokenizer": {"kind": "unigram"}})
    with pytest.raises(ValueError, match="`special` must be some of the special ids"):
        make_task(made.model, made.config, SpecialTokens(mask=300), tokenizer=made.tokenizer)


@pytest.mark.parametrize(("special", "name", "size"), [
    (SpecialTokens(start=13), "start", 13), (SpecialTokens(end=(2, 13)), "end", 13),
    (SpecialTokens(padding=20), "padding", 20), (SpecialTokens(mask=20), "mask", 20),
])
def test_special_ids_are_ids_of_the_model(special, name, size):
    config = replace(texting.translator().config, source_vocab_size=20, target_vocab_size=13)
    with pytest.raises(ValueError, match=rf"`special\.{name}` must be an id of the model, below {size}, but is {size}"):
        make_task(built(config), config, special)


@pytest.mark.parametrize(("source", "target"), [(20, 13), (13, 20)])
def test_padding_that_only_one_side_has(source, target):
    """Rows of any lengths are read, on both sides, as each would be alone."""
    config = replace(texting.translator().config, source_vocab_size=source, target_vocab_size=target)
    task = make_task(built(config), config, SpecialTokens(start=1, end=(2,), padding=15))
    rows = [[4, 5, 6], [7]]
    together = task.model(task.tokens(rows), task.tokens(rows))
    for number, row in enumerate(rows):
        alone = task.model(task.tokens([row]), task.tokens([row]))
        torch.testing.assert_close(together[number, :len(row)], alone[0])


def test_names_of_labels():
    config = texting.classifier().config
    with pytest.raises(ValueError, match="`labels` must be 3 names, one for each label, but is 2"):
        make_task(built(config), config, labels=("a", "b"))
    with pytest.raises(ValueError, match="`labels` must be None, for a Filler"):
        make_task(texting.filler().model, texting.filler().config, labels=LABELS)
    assert make_task(built(VISION["class"]), VISION["class"]).label_names() == ("0", "1", "2", "3", "4")


def test_a_new_task_with_a_tokenizer(tmp_path):
    both = texting.joint()
    made = regard.task("transformer-tiny", tokenizer=both, source_vocab_size=400, target_vocab_size=400)
    made.save(tmp_path / "model")
    assert regard.load(tmp_path / "model").translate("the dog", max_length=3) == made.translate("the dog", max_length=3)
    named = regard.task("vit-tiny", num_labels=3, label_names=LABELS)
    assert named.labels == LABELS


LENGTHS = st.lists(st.integers(0, 40), max_size=60)


@given(LENGTHS, st.integers(1, 100))
def test_every_row_once_and_no_batch_too_large(lengths, tokens):
    found = list(length_batches(lengths, tokens))
    assert sorted(number for batch in found for number in batch) == list(range(len(lengths)))
    for batch in found:
        assert len(batch) == 1 or len(batch) * max(lengths[number] for number in batch) <= tokens
    longest = [max(lengths[number] for number in batch) for batch in found]
    assert longest == sorted(longest, reverse=True)
    for batch, following in pairwise(found):  # as few as can be: one more row would be too much
        assert (len(batch) + 1) * lengths[batch[0]] > tokens
        assert min(lengths[number] for number in batch) >= max(lengths[number] for number in following)


@given(st.lists(st.integers(0, 200), max_size=100))
def test_groups_of_similar_lengths(lengths):
    found = similar_lengths(lengths)
    assert sorted(number for group in found for number in group) == list(range(len(lengths)))
    for group in found:
        counts = [lengths[number] for number in group]
        assert counts == sorted(counts, reverse=True)
        others = sum(count < SIMILAR * counts[0] for count in counts)
        assert (len(counts) - others) * counts[0] < MIN_GROUP_TOKENS or not others  # only to fill the group up
        assert not others or (len(counts) - 1) * counts[0] < MIN_GROUP_TOKENS


@given(LENGTHS)
def test_results_come_in_the_order_given(lengths):
    rows = list(enumerate(lengths))
    seen = []

    def work(some):
        seen.append(len(some))
        return [("done", row) for row in some]

    assert map_batches(rows, lengths, work, 50) == [("done", row) for row in rows]
    assert seen == [len(batch) for batch in length_batches(lengths, 50)]


@pytest.fixture
def four_threads():
    """As many threads of torch as a machine with four cores has."""
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_workers_get_as_many_batches_of_about_the_same_size(workers):
    lengths = [5 + number * 7 % 31 for number in range(500)]
    batches = even_batches(lengths, 600 * workers, workers)
    sizes = [len(batch) * max(lengths[number] for number in batch) for batch in batches]
    assert sorted(number for batch in batches for number in batch) == [*range(500)]
    assert not len(batches) % workers
    assert 0.7 * max(sizes) < min(sizes) <= max(sizes) <= 600
    assert even_batches([9, 9], 4, workers) == [[0], [1]]  # each longer than a batch
    assert even_batches([], 4, workers) == []


def test_batches_at_the_same_time(four_threads):
    together, sizes = Barrier(2, timeout=30), []  # both workers wait for each other, so both must be running

    def work(some):
        together.wait()
        sizes.append(len(some))
        return [(row, torch.get_num_threads()) for row in some]

    rows = [*range(4 * MIN_WORKER_TOKENS)]
    found = map_batches(rows, [1] * len(rows), work, 2 * MIN_WORKER_TOKENS, workers=2)
    assert found == [(row, 1) for row in rows]
    assert sizes == [MIN_WORKER_TOKENS] * 4  # so the batches of both together have no more tokens than are allowed
    assert torch.get_num_threads() == 4
    assert ThreadPoolExecutor().submit(torch.get_num_threads).result() == 4  # a thread that begins later


def test_few_tokens_are_not_divided(four_threads):
    found = map_batches([1, 2], [MIN_WORKER_TOKENS - 1] * 2, lambda some: [torch.get_num_threads()] * len(some),
                        workers=4)
    assert found == [4, 4]
    assert map_batches([], [], lambda some: some, workers=4) == []


def test_an_error_in_a_worker(four_threads):
    def work(some):
        if 3 in some:
            raise ValueError("row 3")
        return some

    with pytest.raises(ValueError, match="row 3"):
        map_batches([*range(8)], [MIN_WORKER_TOKENS] * 8, work, workers=2)
    assert torch.get_num_threads() == 4


def test_how_many_batches_at_the_same_time(four_threads):
    model = texting.translator().model
    assert search_workers(model, 100) == 4
    assert search_workers(model, 1) == 1
    with torch.autocast("cpu", torch.bfloat16):
        assert search_workers(model, 100) == 1
    with next(iter(find_taps(model).values())).listen(print):
        assert search_workers(model, 100) == 1
    hook = model.encoder.register_forward_hook(lambda *_: None)
    assert search_workers(model, 100) == 1
    hook.remove()
    assert search_workers(model, 100) == 4
    assert search_workers(nn.Linear(2, 2, device="meta"), 100) == 1
    torch.set_num_threads(MAX_WORKERS + 1)
    assert search_workers(model, 100) == 1


def test_what_may_be_given():
    assert as_texts("texts", "a b") == ["a b"]
    assert as_texts("texts", ("a", "b")) == ["a", "b"]
    assert as_texts("texts", []) == []
    for wrong, said in ((5, "an int"), (b"a", "a bytes"), (None, "a NoneType")):
        with pytest.raises(ValueError, match=f"`texts` must be a text, or a list of texts, but is {said}"):
            as_texts("texts", wrong)
    with pytest.raises(ValueError, match=r"`texts\[1\]` must be a text, but is an? int"):
        as_texts("texts", ["a", 5])
    for wrong, name in (("\ud800", "texts"), (["\ud800"], "texts"), (["a", "b\ud800"], "texts[1]")):
        assert_named(lambda wrong=wrong: as_texts("texts", wrong), [f"`{name}`", "U+D800", "character"])


def test_one_of_several_is_named_by_its_number():
    assert (element_name("rows", 1, "ab"), element_name("rows", 0, "a")) == ("rows[1]", "rows")


class Counting:
    @one_or_many
    def lengths(self, words: Sequence[str], *, times: int = 1) -> list[int]:
        """How long each is."""
        return [len(word) * times for word in words]


def test_a_method_of_several_takes_one():
    counting = Counting()
    assert counting.lengths("abc") == 3
    assert counting.lengths(("abc", "d"), times=2) == [6, 2]
    assert counting.lengths([]) == []
    assert Counting.lengths.__doc__ == "How long each is."
    for wrong in (5, b"ab", ["a", 1]):
        with pytest.raises(ValueError, match=r"`words(\[1\])?` must be a text"):
            counting.lengths(wrong)
    with pytest.raises(TypeError, match="time"):
        counting.lengths("a", time=2)


SPECIAL = SpecialTokens(end=(2,), padding=0)


def test_all_of_it_comes_back():
    whole = ModelDescription(READING["first"], SPECIAL, LABELS, "f" * 64, checked_record(RECORD))
    assert read_description(parse_document(whole.text(), "config.toml")) == whole
    bare = ModelDescription(LANGUAGE["attention"], SPECIAL)
    assert read_description(parse_document(bare.text(), "config.toml")) == bare


def test_a_tokenizer_of_which_nothing_is_told_but_its_sha256():
    given = ModelDescription(LANGUAGE["attention"], SPECIAL, tokenizer="f" * 64)
    found = read_description(parse_document(given.text(), "config.toml"))
    assert found == given
    assert found.record == {}


def test_a_tokenizer_must_have_its_sha256():
    text = ModelDescription(LANGUAGE["attention"], SPECIAL).text()
    with pytest.raises(ConfigError, match=r'"sha256" in \[tokenizer\]: expected the sha256 of the tokenizer'):
        read_description(parse_document(text + '\n[tokenizer]\nkind = "bpe"\n', "config.toml"))


def test_all_mistakes_are_told_at_once_with_their_lines():
    text = ModelDescription(LANGUAGE["attention"], SPECIAL).text().replace("tie_word_embeddings = true",
                                                                           "tie_word_embedings = true")
    text = "data = 3\n" + text + "\n[trainig]\nseed = 1\n"
    lines = {word: text[:text.index(word)].count("\n") + 1 for word in ("data", "tie_word_embedings", "trainig")}
    with pytest.raises(ConfigError) as error:
        read_description(parse_document(text, "config.toml"))
    assert [*error.value.problems] == [
        f'config.toml:{lines["data"]}: "data": expected a table, but got 3',
        f'config.toml:{lines["tie_word_embedings"]}: unknown key "tie_word_embedings" in [model]; '
        'did you mean "tie_word_embeddings"?',
        f'config.toml:{lines["trainig"]}: unknown table "trainig"; did you mean "training"?',
    ]


def test_a_small_decoder_gets_larger_batches():
    sizes = [1, SMALL_DECODER // MAX_BATCH_FACTOR // 2, SMALL_DECODER // 2, SMALL_DECODER, 3 * SMALL_DECODER]
    found = [search_limits(nn.Linear(size, 1, bias=False), 1000, 5).tokens for size in sizes]
    assert found == [factor * MAX_BATCH_TOKENS for factor in (MAX_BATCH_FACTOR, MAX_BATCH_FACTOR, 2, 1, 1)]
    assert search_limits(nn.Linear(1, 1, device="meta"), 1000, 5) == (MAX_BATCH_TOKENS, None)
    assert search_limits(nn.Linear(1, 1), 8000, 5).tokens == 2 * MAX_BATCH_TOKENS
    assert search_limits(nn.Linear(1, 1), 10**6, 5).tokens == MAX_BATCH_TOKENS
    model = nn.Module()
    model.encoder, model.decoder = nn.Linear(SMALL_DECODER, 1), nn.Linear(1, 1)  # what counts is the decoder
    assert search_limits(model, 1000, 5).tokens == MAX_BATCH_FACTOR * MAX_BATCH_TOKENS


def test_a_batch_has_a_bounded_number_of_hypotheses():
    model = nn.Linear(1, 1)
    assert [search_limits(model, 1000, count).rows for count in (1, 5, 2 * MAX_HYPOTHESES)] == [
        MAX_HYPOTHESES, MAX_HYPOTHESES // 5, 1]
    lengths = [1] * 40 + [30, 20, 10]
    batches = [*length_batches(lengths, 60, 7)]
    assert sorted(number for batch in batches for number in batch) == [*range(43)]
    assert [len(batch) for batch in batches] == [2, 6, 7, 7, 7, 7, 7]
    for workers in (2, 3):
        sizes = [len(batch) for batch in even_batches(lengths, 60 * workers, workers, 7)]
        assert sum(sizes) == 43
        assert max(sizes) <= 7
    assert map_batches([*range(20)], [1] * 20, lambda some: [len(some)] * len(some), max_rows=8) == [8] * 16 + [4] * 4
