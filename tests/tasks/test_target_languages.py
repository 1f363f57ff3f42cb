"""Translators for several languages: which one is chosen, and that its control token changes nothing else."""

import io
import json
from functools import cache

import pytest
import sentencepiece
import texting
import torch
from tiny import built, translating

from regard.data.tokenizer.interface import PairTokenizer
from regard.data.tokenizer.loading import MarianTokenizer
from regard.data.tokenizer.training import add_controls
from regard.tasks import export, traces
from regard.tasks.ctranslate2_engine import open_ctranslate2
from regard.tasks.evaluation import translation_loss
from regard.tasks.load import load, make_task
from regard.tasks.placeholder_translation import translate_with_placeholders
from regard.tasks.search import Sampling

TEXT = "the big dog sleeps."
RECORD = {"data": {"directions": ["en-fr", "fr-en", "en-de"]}}


@cache
def translator(names=("<2fr>", "<2en>", "<2de>"), joint=True):
    """An untrained model for three target languages."""
    both = add_controls((texting.joint if joint else texting.separate)(), names)
    config = translating(source_vocab_size=both.source.size, target_vocab_size=both.target.size)
    return make_task(built(config), config, tokenizer=both, record=RECORD)


@pytest.mark.parametrize("joint", [True, False])
def test_the_language_is_the_first_token_of_the_source(joint):
    task = translator(joint=joint)
    source = task.pair_tokenizer().source
    for code in ("fr", "en", "de"):
        row = [source.control_id(f"<2{code}>"), *source.encode(TEXT), task.pair_tokenizer().source_end]
        [best] = task.translate_ids([row], beams=1, max_length=6)
        found = task.translate(TEXT, to=code, beams=1, length_penalty="none", max_length=6)
        assert list(found.ids) == best[0].ids
        assert task.into(code).translate(TEXT, beams=1, length_penalty="none", max_length=6).ids == found.ids
        assert task.into(code).target_lang == code
        assert {*found.ids}.isdisjoint(source.controls.values())
    assert (task.target_lang, task.source_lang) == (None, None)
    assert task.target_languages == ("fr", "en", "de")
    assert [*map(str, task.directions)] == RECORD["data"]["directions"]


def test_every_method_takes_it():
    task = translator()
    view = task.into("fr")
    options = {"num_samples": 2, "seed": 3, "max_length": 5}
    assert task.sample([TEXT], to="fr", **options)[0].ids == view.sample([TEXT], **options)[0].ids
    among = Sampling(num_samples=3, seed=1, max_length=4)
    assert task.mbr(TEXT, among, to="fr").text == view.mbr(TEXT, among).text
    found = view.translate([TEXT], max_length=5)
    assert torch.equal(task.align([TEXT], found, to="fr")[0].weights, found[0].alignment.weights)
    assert torch.equal(task.aligned(TEXT, "le chien", to="fr").weights, view.aligned(TEXT, "le chien").weights)
    assert task.search([TEXT], among, to="fr")[0].ids == view.search([TEXT], among)[0].ids


@pytest.mark.parametrize("use", [
    lambda task: task.translate(TEXT), lambda task: task.sample(TEXT), lambda task: task.mbr(TEXT),
    lambda task: task.aligned(TEXT), lambda task: translation_loss(task, [(TEXT, "le chien")]),
    lambda task: traces.trace_translation(task, TEXT), lambda task: traces.trace_forced(task, TEXT, "le chien"),
])
def test_without_a_language_nothing_is_guessed(use):
    with pytest.raises(ValueError, match="fr, en, de"):
        use(translator())


def test_a_language_that_does_not_exist():
    with pytest.raises(ValueError, match=r"`to` .*fr, en, de.*\"xx\".*en-fr, fr-en, en-de"):
        translator().translate(TEXT, to="xx")
    with pytest.raises(ValueError, match="en-fr, fr-en, en-de"):
        translator().into(None)


def test_the_only_language_need_not_be_named():
    task = translator(("<2fr>",))
    assert task.translate(TEXT, max_length=5).ids == task.translate(TEXT, to="fr", max_length=5).ids
    assert task.into(None).target_lang == "fr"


def test_a_model_of_one_direction_takes_its_own():
    task = load_copy(texting.translator(), {"data": {"source_lang": "en", "target_lang": "fr"}})
    want = task.translate(TEXT, max_length=5).ids
    assert task.translate(TEXT, to="fr", max_length=5).ids == task.translate(TEXT, to="fra", max_length=5).ids == want
    with pytest.raises(ValueError, match=r"`to` .*\"fr\".*\"de\".*en-fr"):
        task.translate(TEXT, to="de")
    with pytest.raises(ValueError, match=r"`to` .*left out"):
        texting.translator().translate(TEXT, to="fr")


def load_copy(task, record):
    return make_task(task.model, task.config, tokenizer=task.tokenizer, record=record)


def test_words_stay_where_they_are():
    """The attention of a word is that of its tokens, which the control token moves by one."""
    task = translator().into("fr")
    [ids] = task.pair_tokenizer().encode_sources([TEXT])
    [attention] = task._pair_attention([(TEXT, task.pair_tokenizer().encode_targets(["le chien"])[0])])
    assert attention.cross.shape[-1] == len(ids)
    aligned = task.aligned(TEXT, "le chien", layer=0)
    mean = attention.cross[0].mean(0)
    for s, word in enumerate(attention.source):
        assert task.pair_tokenizer().source.decode(ids[word.first_token:word.last_token + 1]).strip() == \
            TEXT[word.start:word.end]
        for t, other in enumerate(attention.target):
            want = sum(float(mean[row, column]) for row in range(other.first_token, other.last_token + 1)
                       for column in range(word.first_token, word.last_token + 1))
            assert aligned.weights[t, s] == pytest.approx(want / (other.last_token - other.first_token + 1), abs=1e-6)


def test_traces_show_the_control_token_as_a_token():
    side = traces.trace_translation(translator().into("fr"), TEXT, beams=1).sides["source"]
    assert side.tokens[0] == "<2fr>"
    assert side.words[0].first_token == 1
    for word in side.words:
        tokens = "".join(side.tokens[word.first_token:word.last_token + 1])
        assert tokens.replace("▁", "") == side.text[word.start:word.end]


def test_terms_and_placeholders():
    task = translator().into("de")
    found = task.translate(TEXT, glossary={"dog": "chien"}, max_length=8)
    assert "chien" in found.text.casefold()
    [kept] = translate_with_placeholders(["the %s sleeps."], lambda some: task.translate(some, max_length=8),
                                         task.align)
    assert kept.text.count("%s") == 1


def test_a_folder_keeps_its_languages(tmp_path):
    translator().into("fr").save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert again.target_languages == ("fr", "en", "de")
    assert again.translate(TEXT, to="de", max_length=5).ids == translator().translate(TEXT, to="de", max_length=5).ids
    card = (tmp_path / "model" / "README.md").read_text()
    assert "--to fr" in card
    assert all(name in card for name in ("en-fr", "fr-en", "en-de"))
    assert "fr-de" in card  # zero-shot


@pytest.mark.thorough
def test_ctranslate2(tmp_path):
    pytest.importorskip("ctranslate2")
    task = translator()
    task.save(tmp_path / "model")
    engine = open_ctranslate2(tmp_path / "model", threads=1)
    for code in ("fr", "de"):
        want = task.translate(TEXT, to=code, beams=1, length_penalty="none", max_length=6)
        found = engine.translate([TEXT], to=code, beams=1, length_penalty="none", max_length=6)
        assert found[0].text == want.text
    with pytest.raises(ValueError, match="fr, en, de"):
        engine.translate([TEXT])
    with pytest.raises(ValueError, match="\"xx\""):
        engine.translate([TEXT], to="xx")
    report = export.export(task, "ctranslate2", tmp_path / "exported", texts=[TEXT])
    assert any("<2fr>" in note and str(task.pair_tokenizer().source.control_id("<2fr>")) in note
               for note in report.notes)


@pytest.mark.thorough
def test_transformers_get_no_tokenizer_that_text_could_forge(tmp_path):
    pytest.importorskip("transformers")
    both = add_controls(texting.joint(), ("<2fr>", "<2en>"))
    config = translating(order="post", source_vocab_size=both.source.size, target_vocab_size=both.source.size)
    try:
        report = export.export(make_task(built(config), config, tokenizer=both), "huggingface", tmp_path / "exported")
    except ValueError as error:
        pytest.skip(f"not an architecture of transformers: {error}")
    assert not (tmp_path / "exported" / "tokenizer.json").exists()
    assert any("<2fr>" in note for note in report.notes)


@cache
def marian():
    """A translator with the tokenizers of Marian, and its tokens for languages."""
    written = io.BytesIO()
    texts = [text for pair in texting.pairs(100) for text in pair]
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(texts), model_writer=written, vocab_size=200,
                                             hard_vocab_limit=False, bos_id=-1, minloglevel=2)
    inner = sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())
    names = ["</s>", "<unk>", *(inner.id_to_piece(id_) for id_ in range(2, inner.get_piece_size())), ">>fra<<",
             ">>deu<<", ">>zho_Hans<<", "<pad>"]
    one = MarianTokenizer(written.getvalue(), json.dumps({name: at for at, name in enumerate(names)}).encode())
    config = translating(source_vocab_size=one.size, target_vocab_size=one.size)
    return make_task(built(config), config, tokenizer=PairTokenizer(one, one))


@pytest.mark.parametrize("code", ["fr", "fra", "fre", "French"])
def test_languages_of_marian(code):
    task = marian()
    source = task.pair_tokenizer().source
    row = [source.control_id(">>fra<<"), *source.encode(TEXT), 0]
    found = task.translate(TEXT, to=code, beams=1, length_penalty="none", max_length=5)
    assert list(found.ids) == task.translate_ids([row], beams=1, max_length=5)[0][0].ids


def test_marian_without_a_language():
    with pytest.raises(ValueError, match="fra, deu, zho-Hans"):
        marian().translate(TEXT)
    assert marian().into("zh").target_lang == "zho-Hans"
