"""Looking measured: the cost of watching a model, of the influence of each word, and of an overview of long attention.

    python benchmarks/looking.py               every part
    python benchmarks/looking.py watching      one part: watching, foreign, hugging_face, influence or maps

Everything that is compared runs in this one call, in turns: only ratios count. In float32.
"""

from collections.abc import Callable
from functools import partial

import torch
from timing import main, medians, table
from torch import nn

import regard
from regard.data import phrasebook
from regard.data.tokenizer.interface import PairTokenizer
from regard.data.tokenizer.training import UnigramConfig, train_tokenizer
from regard.inspection.watch import AttentionRecords
from regard.tasks.translator import Translator
from regard.tokens import Tokens

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
REPEATS = 31


def watching() -> str:
    """A Transformer, small: all of a forward pass, watched and not."""
    rows = []
    for batch, length, padded in ((1, 32, False), (8, 32, True), (16, 64, True), (1, 512, False)):
        model = small()
        source, target = (tokens(batch, length, padded) for _ in range(2))
        rows.append(compared(f"Transformer-small, {batch} × {length}{', padded' if padded else ''}", model,
                             partial(model, source, target)))
    return table(["forward pass", "ms", "watched", "ratio"], rows)


def foreign() -> str:
    """The encoder of torch, whose fast path is taken in both."""
    layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
    model = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).to(DEVICE).eval()
    x = torch.randn(8, 64, 512, device=DEVICE)
    rows = [compared("torch.nn.TransformerEncoder, 8 × 64", model, lambda: model(x))]
    return table(["forward pass", "ms", "watched", "ratio"], rows)


def hugging_face() -> str:
    """Models of Hugging Face with fused attention, of 6 layers of the width 512, one sequence and a padded batch."""
    import transformers

    rows = []
    sizes = {"hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8, "intermediate_size": 2048,
             "vocab_size": 8000, "bos_token_id": 1, "eos_token_id": 2, "attn_implementation": "sdpa"}
    for name in ("bert", "gpt2", "llama"):
        model = transformers.AutoModel.from_config(transformers.AutoConfig.for_model(name, **sizes)).to(DEVICE).eval()
        for batch, length, padded in ((1, 32, False), (8, 64, True)):
            given = tokens(batch, length, padded)
            there = None if given.lengths is None else \
                (torch.arange(length, device=DEVICE) < given.lengths.unsqueeze(-1)).long()
            rows.append(compared(f"{name}, {batch} × {length}{', padded' if padded else ''}", model,
                                 partial(model, input_ids=given.ids, attention_mask=there)))
    return table(["forward pass", "ms", "watched", "ratio"], rows)


def influence() -> str:
    """The influence of the words of a sentence on its translation, against a translation with 5 beams.

    The models are untrained, so the length of the translation is set to that of the reference.
    """
    pairs = [*phrasebook.pairs(2000, split="train")]
    sides = [train_tokenizer([getattr(pair, side) for pair in pairs], UnigramConfig(vocab_size=2000)).tokenizer
             for side in ("source", "target")]
    both, rows = PairTokenizer(*sides), []
    for recipe in ("transformer-tiny", "transformer-small", "seq2seq-attention-tiny", "conv-tiny"):
        task = untrained(recipe, both)
        for words in (5, 10, 20):
            pair = next(pair for pair in pairs if len(both.source_words(pair.source)) == words)
            length = len(both.encode_targets([pair.target])[0])
            taken = medians({
                "plain": partial(task.translate, pair.source, min_length=length, max_length=length),
                "influence": partial(task.influence, pair.source, pair.target)}, device=DEVICE, repeats=REPEATS)
            rows.append([recipe, f"{words}", f"{length}", f"{taken['plain']:.1f}", f"{taken['influence']:.1f}",
                         f"{taken['influence'] / taken['plain']:.2f}"])
    return table(["model", "words", "target tokens", "translation, 5 beams, ms", "influence, ms", "ratio"], rows)


def untrained(recipe: str, both: PairTokenizer) -> Translator:
    """A translator with random weights."""
    share = {"share_embeddings": False} if recipe.startswith(("transformer", "conv")) else {}
    task = regard.task(recipe, tokenizer=both, source_vocab_size=both.source.size, target_vocab_size=both.target.size,
                       **share)
    assert isinstance(task, Translator)
    task.model.to(DEVICE)
    return task


def maps() -> str:
    """A map of 512 × 512 blocks against one attention of the same size, causal, 8 heads of 64."""
    rows = []
    for length in (4096, 16384):
        query, key, value = (torch.randn(1, 8, length, 64, device=DEVICE) for _ in range(3))
        look = regard.Look(query, key, mask=regard.Causal())
        taken = medians({"attention": lambda: regard.attend(query, key, value, mask=regard.Causal()),  # noqa: B023
                         "map": lambda: look.block_map(length // 512)},  # noqa: B023
                        device=DEVICE, repeats=3 if length > 4096 else 5)
        rows.append([f"{length:,}", f"{length // 512}", f"{taken['attention']:,.0f}", f"{taken['map']:,.0f}",
                     f"{taken['map'] / taken['attention']:.2f}"])
    return table(["tokens", "block", "attention, ms", "map, ms", "ratio"], rows)


def small() -> nn.Module:
    """The recipe `transformer-small` with vocabularies of 8,000."""
    return regard.build("transformer-small", source_vocab_size=8000, target_vocab_size=8000).to(DEVICE).eval()


def tokens(batch: int, length: int, padded: bool) -> Tokens:
    """Random ids; where padded, of random lengths from a half of it on."""
    ids = torch.randint(4, 8000, (batch, length), device=DEVICE)
    return Tokens(ids, torch.randint(length // 2, length + 1, (batch,), device=DEVICE) if padded else None)


def compared(name: str, model: nn.Module, run: Callable[[], object]) -> list[str]:
    """The row of a model that runs watched and not, in turns."""
    kept: list[AttentionRecords] = []

    @torch.inference_mode()
    def plain() -> None:
        run()

    @torch.inference_mode()
    def watched() -> None:
        kept.clear()
        with regard.watch(model) as seen:
            run()
        kept.append(seen)

    taken = medians({"plain": plain, "watched": watched}, device=DEVICE, repeats=REPEATS)
    return [name, f"{taken['plain']:.1f}", f"{taken['watched']:.1f}", f"{taken['watched'] / taken['plain']:.3f}"]


if __name__ == "__main__":
    main({"watching": watching, "foreign": foreign, "hugging_face": hugging_face, "influence": influence,
          "maps": maps}, __doc__, __file__, DEVICE)
