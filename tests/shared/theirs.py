"""Small tokenizers as other people's language models have them."""

import pytest

from regard.data.tokenizer.loading import JsonTokenizer
from regard.special_tokens import SpecialTokens


def byte_level():
    """As GPT-2 has it: every token is some bytes."""
    tokenizers = pytest.importorskip("tokenizers")
    inner = tokenizers.Tokenizer(tokenizers.models.BPE())
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=300, initial_alphabet=inner.pre_tokenizer.alphabet(),
                                             show_progress=False)
    inner.train_from_iterator(["the dog sees a cat", "un été à l'école"] * 3, trainer)
    return JsonTokenizer(inner.to_str().encode(), SpecialTokens())


def byte_fallback():
    """As LLaMA has it: a run of single bytes is text only as a whole."""
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {"<unk>": 0, **{f"<0x{value:02X}>": value + 1 for value in range(256)}, "▁the": 257, "▁dog": 258,
                  "s": 259, "▁": 260}
    inner = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, [], byte_fallback=True, unk_token="<unk>"))
    decoders = tokenizers.decoders
    inner.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                       decoders.Strip(" ", 1, 0)])
    return JsonTokenizer(inner.to_str().encode(), SpecialTokens(unknown=0))
