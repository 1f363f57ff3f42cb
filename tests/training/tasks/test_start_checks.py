"""Does the data fit the model that is fine-tuned? Each check, against models whose answer is known."""

import numpy as np
import pytest
import torch

import regard
from regard.data.languages import LanguagePair
from regard.data.sources.text import DataError, SentencePair
from regard.data.tokenizer.interface import PairTokenizer
from regard.data.tokenizer.subwords import ByteTokenizer
from regard.data.tokenizer.training import UnigramConfig, train_tokenizer
from regard.models.build import model_config
from regard.tasks.load import make_task
from regard.training.starting_point import load_start
from regard.training.tasks import start_checks

PAIRS = [("good day number one", "bonjour numéro un"), ("the dog sleeps", "le chien dort"), ("a cat", "un chat"),
         ("we eat", "nous mangeons"), ("they are here", "ils sont ici"), ("who runs", "qui court")]


def translator(languages=None, controls=(), **changes):
    """A new translator of bytes."""
    tokenizer = ByteTokenizer()
    if controls:
        tokenizer = tokenizer.with_controls(controls)
    config = model_config("transformer-tiny", source_vocab_size=tokenizer.size, target_vocab_size=tokenizer.size,
                          width=16, **{f"{side}.{key}": value for side in ("encoder", "decoder") for key, value in (
                              ("layers", 1), ("mixer.heads", 2), ("feed_forward.ffn_width", 24))},
                          **{"decoder.cross.heads": 2}, **changes)
    torch.manual_seed(0)
    task = make_task(config.build(), config, tokenizer=PairTokenizer(tokenizer, tokenizer))
    if languages is not None:
        task.source_lang, task.target_lang = languages
    return task


def start(**options):
    return load_start(translator(**options), "seq2seq")


def test_languages_that_agree():
    model = start(languages=("en", "fr-CA"))
    for data in (None, LanguagePair("en", "fr"), LanguagePair("eng", "fra"), LanguagePair("en-GB", "fr")):
        assert start_checks.check_languages(model, data, (None, None), "pairs.tsv") is None
    assert start_checks.check_languages(start(), LanguagePair("en", "de"), (None, None), "pairs.tsv") is None


def test_languages_that_contradict():
    model = start(languages=("en", "fr"))
    with pytest.raises(DataError, match=r"pairs\.tsv.*other direction"):
        start_checks.check_languages(model, LanguagePair("fr", "en"), (None, None), "pairs.tsv")
    with pytest.raises(DataError, match=r"pairs\.tsv.*--languages en-de"):
        start_checks.check_languages(model, LanguagePair("en", "de"), (None, None), "pairs.tsv")
    note = start_checks.check_languages(model, LanguagePair("en", "de"), ("en", "de"), "pairs.tsv")
    assert note is not None
    assert "German" in note


def test_losses_of_both_directions_against_plain_sums(monkeypatch):
    """Per character of what is written, each target with its end."""
    model = translator()

    def loss(task, pairs):
        from regard.tasks.evaluation import TokenLoss

        return TokenLoss(sum(3.0 * len(target) + len(source) for source, target in pairs), 1)

    monkeypatch.setattr(start_checks, "translation_loss", loss)
    found = start_checks.direction_losses(model, PAIRS)
    left, right = (sum(len(pair[side]) for pair in PAIRS) for side in (0, 1))
    assert found.given == pytest.approx((3 * right + left) / (right + len(PAIRS)))
    assert found.exchanged == pytest.approx((3 * left + right) / (left + len(PAIRS)))


@pytest.mark.parametrize(("given", "exchanged", "wrong"), [(2.0, 1.0, True), (2.0, 1.9, False), (1.0, 2.0, False)])
def test_the_direction_is_told_by_the_model(monkeypatch, given, exchanged, wrong):
    monkeypatch.setattr(start_checks, "direction_losses",
                        lambda task, pairs: start_checks.DirectionLosses(given, exchanged))
    pairs = [SentencePair(*pair, None) for pair in PAIRS]
    if wrong:
        with pytest.raises(DataError, match=r"pairs\.tsv") as raised:
            start_checks.check_direction(start(), pairs, (), "pairs.tsv")
        assert f"{exchanged:.2f}" in str(raised.value)
        start_checks.check_direction(start(), pairs[:2], (), "pairs.tsv")  # too few to tell
    else:
        start_checks.check_direction(start(), pairs, (), "pairs.tsv")


def test_languages_that_the_model_does_not_know_are_no_wrong_direction(monkeypatch):
    pairs = [SentencePair(*pair, None) for pair in PAIRS]
    for given, exchanged in ((13.45, 9.52), (9.52, 13.45)):
        monkeypatch.setattr(start_checks, "direction_losses",
                            lambda task, pairs, both=(given, exchanged): start_checks.DirectionLosses(*both))
        note = start_checks.check_direction(start(), pairs, (), "pairs.tsv")
        assert all(part in note for part in ("pairs.tsv", f"{given:.2f}", f"{exchanged:.2f}"))
    monkeypatch.setattr(start_checks, "direction_losses", lambda task, pairs: start_checks.DirectionLosses(1.0, 9.0))
    assert start_checks.check_direction(start(), pairs, (), "pairs.tsv") is None


@pytest.mark.thorough
def test_a_model_that_has_learned_one_direction(tmp_path):
    """It refuses the same pairs exchanged, and takes others of the same direction."""
    from regard.data import phrasebook

    some = [(pair.source, pair.target) for pair in phrasebook.pairs(200, seed=0, max_words=5)]
    task = regard.train(some, tmp_path / "base", device="cpu", steps=120, lr=5e-3, batch_tokens=600, settings={
        "model.encoder.layers": 1, "model.decoder.layers": 1, "model.width": 32, "tokenizer.vocab_size": 400,
        "training.rdrop": 0.0, "training.schedule.warmup_steps": 5, "training.ema_decay": 0.0,
        "training.validation.max_examples": 2})
    others = [(pair.source, pair.target) for pair in phrasebook.pairs(60, seed=8, max_words=5)]
    short = {"training.schedule.max_steps": 1, "training.validation.max_examples": 2}
    with pytest.raises(DataError, match="direction"):
        regard.train([(target, source) for source, target in others], tmp_path / "wrong", from_=task, device="cpu",
                     settings=short)
    assert not (tmp_path / "wrong").exists()
    regard.train(others, tmp_path / "right", from_=task, device="cpu", settings=short)


def test_sentences_beyond_the_positions(tmp_path):
    model = translator(**{"embedding.positions.kind": "learned", "embedding.positions.max_positions": 30})
    rows = [("short text", "court"), ("x" * 40, "long enough"), ("also short", "y" * 35)]
    for some, words in ((rows, ["1 source of 3 pairs", "41 tokens"]),
                        (rows[::2], ["1 target of 2 pairs", "36 tokens"])):
        with pytest.raises(DataError, match="30 positions") as raised:
            regard.train(some, tmp_path / "new", from_=model, device="cpu", steps=1)
        assert all(word in str(raised.value) for word in words), raised.value
    assert not (tmp_path / "new").exists()


def test_several_target_languages():
    """The control token of the data's language; without one, or with another, the languages are named."""
    tokenizer = start(controls=("<2fr>", "<2de>", "<bt>")).pair_tokenizer
    assert start_checks.direction_controls(tokenizer, "fr", "many") == ("<2fr>",)
    assert start_checks.direction_controls(tokenizer, "de-AT", "many") == ("<2de>",)
    assert start_checks.direction_controls(start().pair_tokenizer, None, "one") == ()
    with pytest.raises(DataError, match="de, fr") as raised:
        start_checks.direction_controls(tokenizer, None, "many")
    assert "--languages" in str(raised.value)
    with pytest.raises(DataError, match="de, fr"):
        start_checks.direction_controls(tokenizer, "it", "many")


def test_a_model_with_several_target_languages_is_trained_with_its_control_token(tmp_path):
    model = translator(controls=("<2fr>", "<2de>"))
    with pytest.raises(DataError, match="--languages"):
        regard.train(PAIRS * 4, tmp_path / "new", from_=model, device="cpu", steps=1)
    found = regard.train(PAIRS * 4, tmp_path / "new", from_=model, device="cpu", steps=1, target_lang="fr",
                         source_lang="en")
    assert found.tokenizer.source.controls == model.tokenizer.source.controls


def test_tokenizers_with_bytes_write_everything():
    texts = ["кот", "🦊", "abc"]
    tokenizer = train_tokenizer(["the cat sleeps", "a dog"] * 5, UnigramConfig(vocab_size=280)).tokenizer
    assert start_checks.check_characters(tokenizer, texts, "x", "text") is None


def test_unknown_characters_are_counted_literally():
    """With a tokenizer that knows a few letters."""
    tokenizers = pytest.importorskip("tokenizers")
    from regard.data.tokenizer.loading import JsonTokenizer
    from regard.special_tokens import SpecialTokens

    inner = tokenizers.Tokenizer(tokenizers.models.BPE({"<unk>": 0, "a": 1, "b": 2}, [], unk_token="<unk>"))
    tokenizer = JsonTokenizer(inner.to_str().encode(), SpecialTokens(unknown=0))
    rng = np.random.default_rng(0)
    texts = ["".join(rng.choice(list("ab"), 5)) for _ in range(95)]
    assert start_checks.check_characters(tokenizer, texts, "x", "text") is None
    note = start_checks.check_characters(tokenizer, [*texts, "aéb", "ñña", "éa"], "data.txt", "text")
    assert note is not None
    assert "2 characters" in note
    assert "3 of 98 texts" in note
    assert "U+00E9" in note
    assert "U+00F1" in note
    with pytest.raises(DataError, match=r"data\.txt"):
        start_checks.check_characters(tokenizer, ["aéb", *texts[:10]], "data.txt", "text")
