"""A unigram tokenizer as the files that `transformers` reads: tokenizer.json and tokenizer_config.json.

Pieces, ids, scores, byte fallback, normalisation and the leading space are expressed with the package `tokenizers`, so
a text gets the same ids. Two differences remain: a special token typed in a text is the token there, and plain text
here; and a typed ▁ is a space there. Other kinds of tokenizers cannot be written.
"""

import importlib
import importlib.util
import json
from collections.abc import Sequence
from typing import Any

from regard.data.tokenizer.subwords import NORMALIZATIONS, SPACE_SYMBOL, SentencePieceTokenizer, load_sentencepiece

TOKENIZER_FILE, TOKENIZER_CONFIG_FILE = "tokenizer.json", "tokenizer_config.json"
SPECIAL_TOKENS = {"pad_token": "padding", "unk_token": "unknown", "bos_token": "start", "mask_token": "mask"}
"""Names of special tokens in `transformers`, and ours; the end token is separate, because there may be several."""
WHITESPACE_PATTERN = (r"[\t-\r\x1c-\x20\x{85}\x{1680}\x{2000}-\x{2006}\x{2008}-\x{200a}\x{2028}\x{2029}\x{205f}"
                      r"\x{3000}]+")
"""White space, as `regard.data.tokenizer.subwords` has it, in their spelling."""


def is_exportable(tokenizer: object) -> bool:
    """Whether a tokenizer can be written in this format."""
    return (isinstance(tokenizer, SentencePieceTokenizer) and tokenizer.model == "unigram"
            and importlib.util.find_spec("tokenizers") is not None)


def tokenizer_files(tokenizer: SentencePieceTokenizer, *, end: int | None = None) -> dict[str, bytes]:
    """The files of a tokenizer; `end` is the id that is appended to every text."""
    names = tokenizer.pieces(range(tokenizer.size))
    special = tokenizer.special
    ids = {theirs: getattr(special, ours) for theirs, ours in SPECIAL_TOKENS.items()} | {"eos_token": special.end[0]}
    config: dict[str, Any] = {theirs: names[id_] for theirs, id_ in ids.items()}
    config |= {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    made = _build_tokenizer(tokenizer, names, sorted(special.ids()), end)
    return {TOKENIZER_FILE: made.to_str().encode(),
            TOKENIZER_CONFIG_FILE: json.dumps(config, ensure_ascii=False, indent=2).encode()}


def encode_texts(data: bytes, texts: Sequence[str]) -> list[list[int]]:
    """The ids that a tokenizer.json gives, without what stands around a text."""
    inner = importlib.import_module("tokenizers").Tokenizer.from_buffer(data)
    return [one.ids for one in inner.encode_batch([*texts], add_special_tokens=False)]


def _build_tokenizer(tokenizer: SentencePieceTokenizer, names: Sequence[str], special: Sequence[int],
                     end: int | None) -> Any:
    parts = importlib.import_module("tokenizers")
    scores = load_sentencepiece(tokenizer.data, "data")
    vocabulary = [(name, scores.get_score(id_)) for id_, name in enumerate(names)]
    made = parts.Tokenizer(parts.models.Unigram(vocabulary, tokenizer.special.unknown, True))
    made.normalizer = parts.normalizers.Sequence(_normalizers(parts, tokenizer.normalization))
    made.decoder = parts.decoders.Sequence([
        parts.decoders.Replace(SPACE_SYMBOL, " "), parts.decoders.ByteFallback(), parts.decoders.Fuse(),
        parts.decoders.Strip(" ", 1, 0)])
    made.add_special_tokens([names[id_] for id_ in special])
    if end is not None:
        made.post_processor = parts.processors.TemplateProcessing(single=f"$A {names[end]}",
                                                                  special_tokens=[(names[end], end)])
    return made


def _normalizers(parts: Any, normalisation: str) -> list[Any]:
    """The normalizers: our normalisation, the leading space, and ▁ for every space."""
    assert normalisation in NORMALIZATIONS
    steps = []
    if normalisation != "exact":
        steps.append(parts.normalizers.NFC())
    if normalisation == "line":
        steps += [parts.normalizers.Replace(parts.Regex(WHITESPACE_PATTERN), " "), parts.normalizers.Replace(
            parts.Regex("^ | $"), "")]
    return [*steps, parts.normalizers.Replace(" ", SPACE_SYMBOL), parts.normalizers.Prepend(SPACE_SYMBOL)]
