"""Training tokenizers: the same result every time, for every text and vocabulary."""

import os
import subprocess
import sys

import pytest

from regard import config, toml
from regard.data.tokenizer import training
from regard.data.tokenizer.training import (
    BpeConfig,
    BytesConfig,
    CharactersConfig,
    TokenizerConfig,
    UnigramConfig,
    train_joint_tokenizer,
    train_separate_tokenizers,
    train_tokenizer,
)

SUBWORDS = pytest.mark.parametrize("config", [UnigramConfig, BpeConfig])
PROGRAM = """
from regard.data import phrasebook
from regard.data.tokenizer.training import BpeConfig, UnigramConfig
from regard.data.tokenizer.training import train_tokenizer
texts = [pair.source for pair in phrasebook.pairs(200)]
for config in (UnigramConfig, BpeConfig):
    print(train_tokenizer(texts, config(vocab_size=500, input_sentence_size=150)).tokenizer.sha256)
"""


def test_another_process_with_another_seed_of_hashes_trains_the_same():
    runs = [subprocess.run([sys.executable, "-c", PROGRAM], env={**os.environ, "PYTHONHASHSEED": seed}, check=True,
                           capture_output=True, text=True) for seed in ("1", "2")]
    assert runs[0].stdout == runs[1].stdout
    assert len(runs[0].stdout.split()) == 2
    assert runs[0].stderr == ""


@SUBWORDS
def test_the_vocabulary_is_as_large_as_asked(corpus, config):
    trained = train_tokenizer(corpus, config(vocab_size=512))
    assert trained.tokenizer.size == 512
    assert trained.notes == ()


@SUBWORDS
@pytest.mark.parametrize("texts", [["Hello."], ["a"], ["</s>"], ["語"], ["a b", "b a"]])
def test_a_vocabulary_larger_than_the_text_allows_is_made_smaller_and_said(config, texts):
    trained = train_tokenizer(texts, config(vocab_size=32_000))
    assert 261 < trained.tokenizer.size < 300
    for size in (32_000, 10**12):
        (note,) = train_tokenizer(texts, config(vocab_size=size)).notes
        assert f"{trained.tokenizer.size} tokens instead of {size:,}" in note
    for text in (*texts, "something else"):
        assert trained.tokenizer.decode(trained.tokenizer.encode(text)) == text


@SUBWORDS
@pytest.mark.parametrize("texts", [[], [""], [" ", "\n\t"], iter(())])
def test_nothing_to_learn_from(config, texts):
    with pytest.raises(ValueError, match="no text to train a tokenizer on"):
        train_tokenizer(texts, config())


def test_no_characters_to_learn_from():
    with pytest.raises(ValueError, match="no text to train a tokenizer on"):
        train_tokenizer([""], CharactersConfig())


@SUBWORDS
def test_a_vocabulary_too_small_for_the_characters(config):
    letters = "".join(map(chr, range(0x4E00, 0x4E80)))
    with pytest.raises(ValueError, match=r"`vocab_size` must be at least 3\d\d, for the characters .* but is 300"):
        train_tokenizer([letters], config(vocab_size=300, character_coverage=1.0))


@pytest.mark.thorough
@SUBWORDS
@pytest.mark.timeout(30)
def test_of_equal_lines_two_are_shown_so_that_repetition_takes_no_time(config, corpus):
    once, twice, often = (train_tokenizer([*corpus[:100], *["a zebra"] * count],
                                          config(vocab_size=450)).tokenizer.sha256
                          for count in (1, 2, 20_000))
    assert once != twice == often
    for texts in (corpus * 50, ["-" * 3_000_000, "a b c"], ["the dog " * 200_000], ["語" * 1000] * 1000 + ["a"]):
        train_tokenizer(texts, config(vocab_size=500))


def test_one_text_in_the_place_of_several():
    with pytest.raises(ValueError, match="`texts` must be several texts, but is one text instead"):
        train_tokenizer("a text", UnigramConfig())


def test_what_goes_wrong_in_the_source_is_not_swallowed():
    def source():
        yield "a text"
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        train_tokenizer(source(), UnigramConfig())
    with pytest.raises(ValueError, match="lone surrogate"):
        train_tokenizer(["a\ud800"], UnigramConfig())


@SUBWORDS
def test_nothing_is_said_on_the_way(config, corpus, capfd):
    train_tokenizer(corpus, config(vocab_size=600))
    train_tokenizer(["x"], config(vocab_size=600))
    assert capfd.readouterr() == ("", "")


@SUBWORDS
def test_lines_that_sentencepiece_would_pass_over_are_learned_from(config):
    for text in ("zebra\x00zebra", "zebra▅zebra", "zebra\tzebra", "zebra▁zebra", "zebra " * 4000, "zebra" * 4000):
        assert len(text) < 20 or len(text) > 10 * training.LINE_CHARACTERS
        tokenizer = train_tokenizer([text, "apple"], config(normalization="exact")).tokenizer
        pieces = tokenizer.pieces(tokenizer.encode("zebra"))
        assert not any(piece.startswith("<0x") for piece in pieces)
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_all_of_a_long_text_is_shown_in_parts_cut_at_spaces():
    for text in ("zebra" * 4000, "a zebra and " * 500 + "x" * 3000 + " y"):
        lines = [*training._training_lines(text)]
        assert "".join(lines) == " " + text
        assert max(map(len, lines)) <= training.LINE_CHARACTERS
    assert {word for line in training._training_lines("a zebra and " * 500) for word in line.split()} == {"a", "zebra",
                                                                                                          "and"}


@SUBWORDS
def test_a_space_is_a_piece_however_rare(config):
    tokenizer = train_tokenizer(["語" * 1000] * 30 + ["a b"], config(character_coverage=0.98)).tokenizer
    assert tokenizer.decode(tokenizer.encode("a  ▁ b")) == "a ▁ b"
    assert "".join(tokenizer.pieces(tokenizer.encode("語 語"))) == "▁語▁語"


@SUBWORDS
def test_control_symbols_in_the_text_are_text(config):
    texts = ["a </s> b <pad> <0x41> <mask>"] * 40
    tokenizer = train_tokenizer(texts, config(vocab_size=290)).tokenizer
    assert tokenizer.decode(tokenizer.encode(texts[0])) == texts[0]


def test_of_many_texts_some_are_drawn_each_with_the_same_chance(corpus):
    config = UnigramConfig(vocab_size=400, input_sentence_size=100)
    trained = train_tokenizer(corpus, config)
    (note,) = trained.notes
    assert f"100 of {len(corpus):,} texts" in note
    assert train_tokenizer(iter(corpus), config).tokenizer.sha256 == trained.tokenizer.sha256
    other = train_tokenizer(corpus, UnigramConfig(vocab_size=400, input_sentence_size=100, seed=1))
    assert other.tokenizer.sha256 != trained.tokenizer.sha256
    seen = [0] * 40
    for seed in range(400):
        for text in training._reservoir_sample(iter(map(str, range(40))),
                                               UnigramConfig(input_sentence_size=10, seed=seed))[0]:
            seen[int(text)] += 1
    assert all(60 < count < 145 for count in seen)  # 100 on average, with a deviation of 9


def test_digits_can_be_apart():
    texts = ["in 1999", "in 1998", "in 1990"] * 30
    whole, apart = (train_tokenizer(texts, UnigramConfig(split_digits=split)).tokenizer for split in (False, True))
    digits = ["1", "9", "9", "9"]
    assert [piece for piece in apart.pieces(apart.encode("in 1999")) if piece.isdigit()] == digits
    assert [piece for piece in whole.pieces(whole.encode("in 1999")) if piece.isdigit()] != digits


def test_characters_are_counted():
    trained = train_tokenizer(["abc ab", "a▁"], CharactersConfig())
    assert trained.tokenizer.characters == ("a", "b", " ", "c")
    assert trained.notes == ()
    few = train_tokenizer(["abc ab", "a▁"], CharactersConfig(vocab_size=263))
    assert few.tokenizer.characters == ("a", "b")
    (note,) = few.notes
    assert "2 of 4 characters" in note
    assert few.tokenizer.decode(few.tokenizer.encode("abc")) == "abc"


def test_bytes_need_no_texts():
    assert train_tokenizer([], BytesConfig()).tokenizer.size == 261


def test_joint_is_one_tokenizer_and_separate_are_two(corpus):
    sources, targets = corpus[0:200:2], corpus[1:200:2]
    joint = train_joint_tokenizer(sources, targets, BpeConfig(vocab_size=400))
    assert joint.tokenizer.joint
    assert joint.tokenizer.source.sha256 == train_tokenizer(sources + targets,
                                                            BpeConfig(vocab_size=400)).tokenizer.sha256
    separate = train_separate_tokenizers(sources, ["a"], BpeConfig(vocab_size=400), BpeConfig(vocab_size=401))
    assert not separate.tokenizer.joint
    assert separate.tokenizer.source.sha256 == train_tokenizer(sources, BpeConfig(vocab_size=400)).tokenizer.sha256
    assert [note.split(":")[0] for note in separate.notes] == ["Target"]


@pytest.mark.parametrize("settings", [
    UnigramConfig(vocab_size=4000, character_coverage=1.0, split_digits=True),
    BpeConfig(normalization="nfc", input_sentence_size=5),
    CharactersConfig(vocab_size=300), CharactersConfig(), BytesConfig(normalization="line"),
])
def test_a_config_is_written_and_read(settings):
    read = toml.parse_document(config.to_toml({"tokenizer": settings}), "train.toml")
    assert config.read_config(TokenizerConfig, read, ("tokenizer",)) == settings


def test_all_that_is_wrong_is_told():
    text = '[tokenizer]\nkind = "unigram"\nvocab_size = 10\nnormalization = "nfkc"\ncharacter_coverag = 1.0\n'
    with pytest.raises(ValueError, match="vocab_size") as error:
        config.read_config(TokenizerConfig, toml.parse_document(text, "train.toml"), ("tokenizer",))
    for part in ("train.toml:3", "at least 262", "train.toml:4", '"nfc"', "train.toml:5",
                 'did you mean "character_coverage"?'):
        assert part in str(error.value)
