"""The engine of CTranslate2: what the translator itself gives, in its order, whatever stands beside a text."""

import json
import shutil

import ending
import pytest
import texting
import torch

import regard
from regard.tasks import ctranslate2_engine
from regard.tasks import export as exporting
from regard.tasks.ctranslate2_engine import EXPORT_FOLDER, CTranslate2Engine, open_ctranslate2
from regard.tasks.search import Beam

pytest.importorskip("ctranslate2")
TEXTS = [source for source, _ in texting.pairs()[:24]]


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """A translator and its engine."""
    place = tmp_path_factory.mktemp("engine") / "model"
    ending.translator().save(place)
    return regard.load(place), open_ctranslate2(place, threads=2)


@pytest.fixture
def folder(tmp_path):
    ending.translator().save(tmp_path / "model")
    return tmp_path / "model"


def test_greedy_search_is_ours(both):
    translator, engine = both
    options = {"beams": 1, "length_penalty": "none", "max_length": 12}
    found, want = engine.translate(TEXTS, **options), translator.translate(TEXTS, **options)
    assert [one.ids for one in found] == [one.ids for one in want]
    assert [one.text for one in found] == [one.text for one in want]
    assert [one.cut for one in found] == [one.cut for one in want]
    assert len({len(one.ids) for one in found}) > 2
    assert 0 < sum(one.cut for one in found) < len(TEXTS)


@pytest.mark.parametrize("begun", ["", "le"])
def test_what_ends_with_the_last_token_that_it_may_have_is_not_cut(both, begun):
    """A limit does not count the end: for each text that of its own length, and one less, which cuts it."""
    translator, engine = both
    options, given = {"beams": 1, "length_penalty": "none", "prefix": begun}, translator.tokenizer.target.encode(begun)
    whole = [(text, one) for text, one in zip(TEXTS, translator.translate(TEXTS, max_length=12, **options), strict=True)
             if one.ids and not one.cut]
    shorter = [(text, one) for text, one in whole if len(one.ids) > max(1, len(given))]
    assert len(whole) > 2
    assert shorter
    for text, one in whole:
        found = engine.translate(text, max_length=len(one.ids), **options)
        assert (found.ids, found.cut) == (one.ids, False)
        assert found.score == pytest.approx(sum(one.log_probabilities[len(given):]), abs=0.01)
    for text, one in shorter:
        found = engine.translate(text, max_length=len(one.ids) - 1, **options)
        assert (found.ids, found.cut) == (one.ids[:-1], True)
        assert found.score == pytest.approx(sum(one.log_probabilities[len(given):-2]), abs=0.01)


def test_of_several_translations_each_is_cut_or_not(both):
    """None is longer than the limit; the best is first; one that has an end is told so."""
    _, engine = both
    seen = set()
    for text in TEXTS:
        for limit in (1, 2, 4):
            one = engine.translate(text, beams=4, nbest=4, max_length=limit, length_penalty="none")
            every = [one, *one.alternatives]
            assert max(len(each.ids) for each in every) <= limit
            assert [each.score for each in every] == sorted((each.score for each in every), reverse=True)
            assert len({each.ids for each in every}) == len(every)
            assert all(len(each.ids) == limit for each in every if each.cut)
            seen |= {(len(each.ids) == limit, each.cut) for each in every}
    assert seen == {(True, True), (True, False), (False, False)}


@pytest.mark.parametrize("penalty", ["none", "mean"])
@pytest.mark.parametrize("beams", [1, 4])
def test_scores_are_those_of_our_model(both, penalty, beams):
    """But for what is never written, which has a probability in ours: little, here."""
    translator, engine = both
    for text, one in zip(TEXTS, engine.translate(TEXTS, beams=beams, length_penalty=penalty, max_length=12),
                         strict=True):
        source = translator.tokenizer.encode_sources([text])[0]
        read = [2, *one.ids]
        memory = translator.model.encode(translator.tokens([source]))
        with torch.no_grad():
            logits = translator.model.decode(translator.tokens([read]), memory)[0]
            logits[:, 0] = -torch.inf  # padding
            logs = logits.log_softmax(-1)
        ids = [*one.ids] if one.cut else [*one.ids, 3]
        logs = [float(logs[at, id_]) for at, id_ in enumerate(ids)]
        want = sum(logs) / (len(logs) if penalty == "mean" else 1)
        assert one.score == pytest.approx(want, abs=1e-3)


def test_several_translations_of_a_text(both):
    _, engine = both
    one = engine.translate(TEXTS[0], beams=4, nbest=3, max_length=12)
    assert len(one.alternatives) == 2
    assert len({one.ids, *(other.ids for other in one.alternatives)}) == 3
    assert one.score >= one.alternatives[0].score >= one.alternatives[1].score


def test_what_comes_of_a_text_does_not_depend_on_the_others(both):
    _, engine = both
    given = [TEXTS[0], "", *TEXTS[1:6], " \u00a0", " ".join(TEXTS[6:14])]
    together = engine.translate(given, beams=3)
    for text, one in zip(given, together, strict=True):
        alone = engine.translate(text, beams=3)
        assert (alone.ids, alone.text, alone.cut) == (one.ids, one.text, one.cut)
    assert together[1].text == together[7].text == ""
    assert [one.ids for one in engine.translate(given[::-1], beams=3)] == [one.ids for one in together[::-1]]
    assert engine.translate([]) == []


def test_limits(both):
    _, engine = both
    endless = {len(one.ids) for one in engine.translate(TEXTS, beams=1, max_length=3)}
    assert max(endless) == 3
    assert engine.positions == 2048
    with pytest.raises(ValueError, match=r"`texts\[1\]` must be at most 2048 tokens long"):
        engine.translate(["a cat", "cat " * 3000])


@pytest.mark.parametrize(("options", "message"), [
    ({"length_penalty": 0.6}, '`length_penalty` must be "none" or "mean"'), ({"nbest": 6}, "`nbest` must be at most"),
    ({"beams": 0}, "`beams`"), ({"max_length": 0}, "`max_length`"),
])
def test_wrong_calls(both, options, message):
    with pytest.raises(ValueError, match=message):
        both[1].translate("a cat", **options)
    with pytest.raises(ValueError, match="`texts` must be a text"):
        both[1].translate(3)


@pytest.mark.parametrize("options", [{"min_length": 5}, {"min_length": 9}, {"no_repeat_ngram_size": 1},
                                     {"no_repeat_ngram_size": 3},
                                     {"min_length": 4, "no_repeat_ngram_size": 2}, {"prefix": "le chien"},
                                     {"prefix": "le gros chien", "min_length": 7}, {"prefix": "le le",
                                                                                    "no_repeat_ngram_size": 1},
                                     {"prefix": ["un", "", "le gros"] * 8}])
def test_what_it_can_do_is_what_ours_does(both, options):
    translator, engine = both
    asked = {"beams": 1, "length_penalty": "none", "max_length": 12, **options}
    found, want = engine.translate(TEXTS, **asked), translator.translate(TEXTS, **asked)
    assert [(one.ids, one.text, one.cut) for one in found] == [
        (one.ids, one.text, one.cut) for one in want]
    assert [one.ids for one in found] != [one.ids for one in engine.translate(TEXTS, beams=1, length_penalty="none",
                                                                              max_length=12)]
    if options.keys() == {"prefix"}:  # what is forbidden has no probability there, so that scores differ
        given = [options["prefix"]] * 24 if isinstance(options["prefix"], str) else options["prefix"]
        behind = [one.log_probabilities[len(translator.tokenizer.target.encode(prefix)):]
                  for one, prefix in zip(want, given, strict=True)]
        assert [one.score for one in found] == pytest.approx([sum(logs) for logs in behind], abs=0.01)
        means = engine.translate(TEXTS, **asked | {"length_penalty": "mean"})
        assert [one.score for one in means] == pytest.approx([sum(logs) / len(logs) for logs in behind], abs=0.01)


@pytest.mark.parametrize(("ask", "what"), [
    (lambda engine: engine.sample("a cat"), "sampling"), (lambda engine: engine.mbr("a cat"), "mbr"),
    (lambda engine: engine.mbr("a cat", Beam()), "mbr"),
    (lambda engine: engine.translate("a cat", coverage_penalty=0.2), "coverage_penalty"),
    (lambda engine: engine.translate("a cat", beams=4, num_beam_groups=2), "num_beam_groups"),
    (lambda engine: engine.translate("a cat", glossary={"cat": "chat"}), "glossary"),
])
def test_what_it_cannot_do(both, ask, what):
    with pytest.raises(ValueError, match=f"`{what}` .*CTranslate2.*torch"):
        ask(both[1])


def test_at_least_so_many_is_not_held_up_by_a_limit_that_nobody_gave(both):
    assert len(both[1].translate("a cat", min_length=90).ids) >= 90


def test_a_system_that_does_not_tell_which_cores_are_ours(folder, monkeypatch):
    monkeypatch.delattr("os.sched_getaffinity")
    assert open_ctranslate2(folder).translate("").text == ""


@pytest.mark.thorough
@pytest.mark.parametrize(("quantization", "beams", "tokens"), [
    ("float32", 1, 6144), ("float32", 5, 2048), ("float16", 5, 2048), ("int8", 1, 512), ("int8", 5, 384)])
def test_batches_have_like_sizes_and_at_most_so_many_tokens(folder, monkeypatch, quantization, beams, tokens):
    engine, asked = open_ctranslate2(folder, quantization=quantization, threads=3), []

    class Inner:
        def translate_batch(self, sources, begun, **options):
            asked.append((max(map(len, sources)), len(sources), options["max_batch_size"], options["batch_type"]))
            return plain.translate_batch(sources, begun, **options)

    plain = engine.inner
    monkeypatch.setattr(engine, "inner", Inner())
    engine.translate(["a cat sees a dog " * 2] * 1301 + ["a cat"], beams=beams, max_length=2)
    assert asked
    for longest, count, size, kind in asked:
        assert kind == "examples"
        assert size * longest <= tokens
        needed = -(-count // (tokens // longest))
        batches = needed + -needed % 3  # each thread has as many
        assert (size - 1) * batches < count <= size * batches  # no more in one than all would have if all were alike


def test_few_sentences_are_shared_among_the_threads():
    rows = [ctranslate2_engine.EngineRow([1] * length, [], 9) for length in (3, 9, 4, 1, 5)]
    assert [ctranslate2_engine._batch_size(rows, 100, threads) for threads in (1, 2, 3, 8)] == [5, 3, 2, 1]
    assert ctranslate2_engine._batch_size(rows[:1], 100, 4) == 1


def test_a_source_that_is_longer_than_a_batch_may_be_is_one_by_itself(folder, monkeypatch):
    engine, sizes, plain = open_ctranslate2(folder), [], ctranslate2_engine._batch_size
    want = [one.text for one in engine.translate(TEXTS)]
    monkeypatch.setattr(ctranslate2_engine, "_batch_size", lambda rows, tokens, threads: sizes.append(tokens) or plain(
        rows, tokens, threads))
    assert [one.text for one in engine.translate(TEXTS, batch_tokens=1)] == want
    assert {*sizes} == {1}
    with pytest.raises(ValueError, match="`batch_tokens` must be a whole number, at least 1"):
        engine.translate(TEXTS, batch_tokens=0)


def test_what_it_does_not_tell(both):
    one = both[1].translate("a cat", max_length=5)
    for what in ("words", "alignment"):
        with pytest.raises(ValueError, match=r"Translator|translator"):
            getattr(one, what)
    with pytest.raises(ValueError, match="`prefix` must be at most 2 tokens long"):
        both[1].translate("a cat", prefix="le chien et le chat", max_length=2)


def test_two_tokenizers(tmp_path):
    task = ending.translator(pair=texting.separate)
    task.save(tmp_path / "model")
    found = open_ctranslate2(tmp_path / "model").translate(TEXTS, beams=1, length_penalty="none", max_length=9)
    want = task.translate(TEXTS, beams=1, length_penalty="none", max_length=9)
    assert [one.text for one in found] == [one.text for one in want]


def test_the_export_is_made_once(folder, monkeypatch):
    made = []
    export = exporting.export
    monkeypatch.setattr(exporting, "export", lambda *given, **more: made.append(more) or export(*given, **more))
    told = []
    open_ctranslate2(folder, report=told.append)
    open_ctranslate2(folder, report=told.append)
    assert [one["quantization"] for one in made] == ["float32"]
    (message,) = told
    assert all(part in message for part in ("CTranslate2", "float32", str(folder / EXPORT_FOLDER)))
    open_ctranslate2(folder, quantization="int8")
    assert len(made) == 2
    assert json.loads((folder / EXPORT_FOLDER / exporting.RECORD_FILE).read_text())["quantization"] == "int8"
    ending.translator(6.0).save(folder)  # another model in the same folder
    open_ctranslate2(folder, quantization="int8")
    open_ctranslate2(folder, quantization="int8")
    assert len(made) == 3
    assert isinstance(regard.load(folder), regard.Translator)


@pytest.mark.parametrize(("mixer", "why"), [("additive", r"encoder\.mixer\.score: .*\"additive\""),
                                            ("rotary", r"encoder\.mixer\.position: .*\"rotary\"")])
def test_a_model_that_does_not_fit_is_refused_before_anything_begins(tmp_path, mixer, why):
    texting.translator(mixer=mixer).save(tmp_path / "model")
    told = []
    with pytest.raises(ValueError, match=f"CTranslate2 cannot run(.|\n)*{why}"):
        open_ctranslate2(tmp_path / "model", report=told.append)
    assert told == []
    assert not (tmp_path / "model" / EXPORT_FOLDER).exists()


def test_an_export_that_is_given(folder, tmp_path):
    task = regard.load(folder)
    exporting.export(task, "ctranslate2", tmp_path / "out", origin=exporting.model_identity(folder))
    engine = open_ctranslate2(folder, tmp_path / "out")
    assert isinstance(engine, CTranslate2Engine)
    assert not (folder / EXPORT_FOLDER).exists()
    shutil.copytree(folder, tmp_path / "other")
    ending.translator(6.0).save(tmp_path / "other")
    with pytest.raises(ValueError, match=r"is not an export of .*other"):
        open_ctranslate2(tmp_path / "other", tmp_path / "out")
    with pytest.raises(ValueError, match=r"export\.json|manifest"):
        open_ctranslate2(folder, folder)


def test_a_damaged_export_is_refused(folder):
    open_ctranslate2(folder)
    path = folder / EXPORT_FOLDER / "model.bin"
    data = bytearray(path.read_bytes())
    data[-9] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"model\.bin.*changed"):
        open_ctranslate2(folder)


def test_only_translators(tmp_path):
    texting.completer().save(tmp_path / "model")
    with pytest.raises(ValueError, match=r"model: .*Completer"):
        open_ctranslate2(tmp_path / "model")
    assert ctranslate2_engine.LENGTH_PENALTIES.keys() == {"none", "mean"}
