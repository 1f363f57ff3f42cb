"""Writing synthetic pairs: which texts, resumed without loss or repetition, and refused where it cannot be right."""

import errno
import json
import os
from dataclasses import replace
from types import SimpleNamespace

import pytest
import trained

from regard.data import phrasebook
from regard.data.filters import FilterConfig
from regard.data.languages import LanguagePair
from regard.data.sources.text import DataError, Location, SentencePair
from regard.training import synthesis
from regard.training.distributed import DistributedContext
from regard.training.folder_claim import FolderClaim
from regard.training.logging import Note
from regard.training.resolution import requested_config
from regard.training.synthesis import StageContext, TextSelection, write_pairs
from regard.training.tasks.interface import SynthesisRequest
from regard.training.tasks.sentence_pairs import synthetic_rates, synthetic_share
from regard.training.tasks.translation import TranslationSetup

TEXTS = [f"text {number}" for number in range(10)]


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(synthesis, "BLOCK_SIZE", 3)


@pytest.fixture
def context(tmp_path):
    return StageContext(trained.request("pairs.tsv", tmp_path), None, DistributedContext.alone(), None, [].append,
                        FolderClaim(), None)


def in_capitals(texts):
    return [SimpleNamespace(text=text.upper()) for text in texts]


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_pairs_are_written_on_the_right_sides(tmp_path, context, small_blocks):
    written = write_pairs(context, tmp_path / "a.jsonl", TEXTS, in_capitals, {}, text_is="target")
    assert lines(tmp_path / "a.jsonl") == [{"source": text.upper(), "target": text} for text in TEXTS]
    assert (written.written, written.failed, written.total) == (10, 0, 10)
    write_pairs(context, tmp_path / "b.jsonl", TEXTS, in_capitals, {}, text_is="source")
    assert lines(tmp_path / "b.jsonl") == [{"source": text, "target": text.upper()} for text in TEXTS]
    assert context.claim.kept
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jsonl", "b.jsonl"]


def test_what_was_written_before_a_failure_is_not_written_again(tmp_path, context, small_blocks):
    asked = []

    def failing(texts):
        if "text 6" in texts:
            raise KeyboardInterrupt
        return remembering(texts)

    def remembering(texts):
        asked.extend(texts)
        return in_capitals(texts)

    path = tmp_path / "a.jsonl"
    with pytest.raises(KeyboardInterrupt):
        write_pairs(context, path, TEXTS, failing, {"seed": 1}, text_is="source")
    assert asked == TEXTS[:6]
    assert not synthesis.is_written(path)
    write_pairs(context, path, TEXTS, remembering, {"seed": 1}, text_is="source")
    assert asked == TEXTS
    assert [line["target"] for line in lines(path)] == [text.upper() for text in TEXTS]
    assert synthesis.is_written(path)


def test_other_settings_and_a_damaged_journal_are_refused(tmp_path, context, small_blocks):
    path = tmp_path / "a.jsonl"

    def failing(texts):
        if "text 3" in texts:
            raise KeyboardInterrupt
        return in_capitals(texts)

    with pytest.raises(KeyboardInterrupt):
        write_pairs(context, path, TEXTS, failing, {"seed": 1}, text_is="source")
    with pytest.raises(DataError, match="seed was 1 and is 2"):
        write_pairs(context, path, TEXTS, in_capitals, {"seed": 2}, text_is="source")
    journal = tmp_path / "a.jsonl.progress" / "entries.jsonl"
    journal.write_bytes(journal.read_bytes().replace(b'"TEXT 1"', b'"TEXT 1'))
    with pytest.raises(DataError, match=r"entries\.jsonl"):
        write_pairs(context, path, TEXTS, in_capitals, {"seed": 1}, text_is="source")


def test_a_full_disk_is_an_error_that_names_the_file_and_can_be_resumed(tmp_path, context, small_blocks, monkeypatch):
    path, calls, sync = tmp_path / "a.jsonl", [], os.fsync

    def full(handle):
        calls.append(handle)
        if len(calls) == 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(handle)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)) as error:
        write_pairs(context, path, TEXTS, in_capitals, {}, text_is="source")
    assert error.value.filename.endswith("entries.jsonl")
    write_pairs(context, path, TEXTS, in_capitals, {}, text_is="source")
    assert len(lines(path)) == 10


def test_texts_that_the_model_refuses_are_left_out(tmp_path, context, small_blocks):
    def strict(texts):
        if any(text.endswith("4") for text in texts):
            raise ValueError("too long")
        return in_capitals(texts)

    written = write_pairs(context, tmp_path / "a.jsonl", TEXTS, strict, {}, text_is="source")
    assert written.failed == 1
    assert [line["source"] for line in lines(tmp_path / "a.jsonl")] == [*TEXTS[:4], *TEXTS[5:]]


def test_what_no_file_can_hold_is_removed(tmp_path, context):
    write_pairs(context, tmp_path / "a.jsonl", ["one"], lambda texts: [SimpleNamespace(text="a\0b\tc\r\nd")], {},
                text_is="target")
    assert lines(tmp_path / "a.jsonl") == [{"source": "ab c  d", "target": "one"}]


def test_time_ends_the_writing_after_a_block(tmp_path, context, small_blocks):
    written = write_pairs(context, tmp_path / "a.jsonl", TEXTS, in_capitals, {}, text_is="source", seconds=0.0)
    assert (written.written, written.total) == (3, 10)
    assert [line["source"] for line in lines(tmp_path / "a.jsonl")] == TEXTS[:3]


def test_a_copy_never_overwrites(tmp_path):
    pairs, output = tmp_path / "a.jsonl", tmp_path / "kept.tsv"
    pairs.write_text('{"source": "a b", "target": "c"}\n')
    synthesis.keep_pairs(pairs, str(output))
    assert output.read_text() == "a b\tc\n"
    synthesis.keep_pairs(pairs, str(output))  # as a killed process may leave it
    output.write_text("mine\n")
    with pytest.raises(DataError, match=r"kept\.tsv"):
        synthesis.keep_pairs(pairs, str(output))
    assert output.read_text() == "mine\n"


def test_selected_texts(tmp_path):
    path = tmp_path / "mono.txt"
    path.write_text("Guten Tag.\n\n  \nGuten Tag.\nGUTE Nacht!\neins zwei drei\nBis bald.\n", encoding="utf-8")
    selection = TextSelection([str(path)], FilterConfig(max_words=2), frozenset({synthesis.text_key("Gute Nacht.")}))
    assert list(selection) == ["Guten Tag.", "Bis bald."]
    assert selection.skipped == {"blank": 2, "duplicate": 1, "in the validation data": 1, "too long": 1}
    assert list(selection) == ["Guten Tag.", "Bis bald."]


def test_the_side_of_a_text_is_recognised():
    pairs = [SentencePair(pair.source, pair.target, Location("a", 1)) for pair in phrasebook.pairs(200, seed=1)]
    others = list(phrasebook.pairs(100, seed=2))
    assert synthesis.resembles_sources([pair.source for pair in others], pairs)
    assert not synthesis.resembles_sources([pair.target for pair in others], pairs)


def test_the_direction_of_a_model_is_recognised(monkeypatch):
    """By a loss, which here is the share of texts that do not begin with s."""
    pairs = [SentencePair("s one", "t eins", Location("a", 1)), SentencePair("s two", "t zwei", Location("a", 2))]
    model = SimpleNamespace(source_lang=None, target_lang=None)
    monkeypatch.setattr(synthesis, "translation_loss", lambda model, given: SimpleNamespace(
        mean=sum(not source.startswith("s") for source, _ in given) / len(given)))
    synthesis.check_direction("m", "--reverse", model, pairs)
    with pytest.raises(ValueError, match=r"--reverse m: .* 1\.00 .* 0\.00"):
        synthesis.check_direction("m", "--reverse", model, [pair._replace(source=pair.target, target=pair.source)
                                                            for pair in pairs])


@pytest.mark.parametrize("chosen", [True, False])
def test_a_model_for_other_languages_is_refused(chosen):
    def check(source, target, wanted):
        synthesis.check_languages("m", "--reverse", SimpleNamespace(source_lang=source, target_lang=target), wanted,
                                  chosen=chosen)

    with pytest.raises(ValueError, match=r"--reverse m: .*en-de.*de-en") as error:
        check("en", "de", LanguagePair("de", "en"))
    assert "--languages" not in str(error.value)  # it would be refused with them too
    for source, target in (("de", "en"), ("deu", "en-GB"), (None, "en"), ("mul", "en")):
        check(source, target, LanguagePair("de", "en"))
    check("en", "de", None)
    if chosen:  # a close language will do
        check("nl", "en", LanguagePair("de", "en"))
    else:
        with pytest.raises(ValueError, match=r"--reverse m: .*nl-en.*de-en.*--languages"):
            check("nl", "en", LanguagePair("de", "en"))


def test_a_model_that_repeats_or_copies_is_told_of_after_the_first_block(tmp_path, context, small_blocks, monkeypatch):
    said = []
    monkeypatch.setattr(synthesis, "BLOCK_SIZE", 6)
    context = replace(context, report=said.append)

    def warnings():
        return [event.text for event in said if isinstance(event, Note)]

    write_pairs(context, tmp_path / "a.jsonl", TEXTS, in_capitals, {}, text_is="source")  # copies, ignoring case
    assert len(warnings()) == 1
    assert "first 6 sentences" in warnings()[0]
    assert "100%" in warnings()[0]
    said.clear()
    write_pairs(context, tmp_path / "b.jsonl", TEXTS, lambda texts: [SimpleNamespace(text=f"is {text}")
                                                                   for text in texts], {}, text_is="source")
    assert not warnings()


def test_stages_are_not_resumed_without_their_options(tmp_path):
    trained.pairs(tmp_path / "pairs.tsv", 10)
    (tmp_path / "mono.txt").write_text("Bonjour.\n")
    request = trained.request(tmp_path / "pairs.tsv", tmp_path / "model",
                              synthesis=SynthesisRequest(monolingual=(str(tmp_path / "mono.txt"),)))
    document, alone = requested_config(request, TranslationSetup()), DistributedContext.alone()
    synthesis.check_no_stages(request, document, alone)  # nothing is stored
    synthesis.StagesRecord(request.output, alone).settings(request, document)
    with pytest.raises(DataError, match=r"--monolingual: mono\.txt is stored"):
        synthesis.check_no_stages(replace(request, synthesis=None, resume=True), document, alone)


@pytest.mark.parametrize(("counts", "share", "drawn"), [
    ((100, 100), None, (100, 100)), ((100, 900), None, (250, 750)), ((900, 100), None, (900, 100)),
    ((100, 300), 0.5, (200, 200)),
])
def test_rates_draw_as_many_pairs_as_there_are(counts, share, drawn):
    rates = synthetic_rates(counts, share)
    assert [count * rate for count, rate in zip(counts, rates, strict=True)] == pytest.approx(drawn)
    assert synthetic_share(counts) <= 0.75


@pytest.mark.parametrize(("options", "task", "found"), [
    ({"monolingual": ("a",), "teacher": "t"}, "seq2seq", "--teacher"), ({"reverse": "r"}, "seq2seq", "--reverse"),
    ({"teacher": "t", "share": 0.5}, "seq2seq", "--synthetic-share"),
    ({"keep": "k.tsv"}, "seq2seq", "--keep-synthetic"), ({"monolingual": ("a",), "share": 1.0}, "seq2seq", "1.0"),
    ({"monolingual": ("a",), "top_k": 0}, "seq2seq", "--top-k"),
    ({"monolingual": ("a",), "temperature": 0.0}, "seq2seq", "--temperature"),
    ({"monolingual": ("a",)}, "language", "language"), ({"teacher": "t", "keep": "no/such/k.tsv"}, "seq2seq", "k.tsv"),
])
def test_wrong_options_are_refused(tmp_path, options, task, found):
    with pytest.raises(ValueError, match=found):
        synthesis.check_synthesis(trained.request("pairs.tsv", tmp_path / "m", task=task,
                                                  synthesis=SynthesisRequest(**options)))


@pytest.mark.parametrize(("options", "other", "found"), [
    ({"monolingual": ("a",)}, {"start": "base"}, ("--monolingual", "--from")),
    ({"teacher": "t"}, {"start": "base"}, ("--teacher", "--from")),
    ({"teacher": "t"}, {"both_ways": True}, ("--teacher", "--both-ways")),
])
def test_what_cannot_be_combined_is_named(tmp_path, options, other, found):
    with pytest.raises(ValueError, match=rf"{found[0]}.*{found[1]}") as error:
        synthesis.check_synthesis(trained.request("pairs.tsv", tmp_path / "m", synthesis=SynthesisRequest(**options),
                                                  **other))
    assert ("--teacher" in str(error.value)) == ("teacher" in options)  # only what was given is named
