"""A Transformer of random weights that writes as many tokens as it has read: realistic lengths without training.

Decoding is as long as what is written, and random weights write without end, or end by chance. Here all weights are
random but for some features that are set apart: those of the fastest sinusoids, which tell where a token stands, and
one that tells the end token from all others. No random weight reads or writes them, and the norms keep their size. One
head of the last cross-attention looks from each place of the target to the same place of the source, and hands on
whether the end stands there; the output layer reads it off. What is written before the end is random.

It is an ordinary model of the recipe "transformer", and every engine that can run one runs it.
"""

from typing import Any

import torch
from torch import nn

import regard
from regard import Translator
from regard.special_tokens import SpecialTokens
from regard.tokens import Tokens

PADDING, UNKNOWN, START, END = range(4)
FIRST = 5
"""The first id that is no special one."""
PLACES = 64
"""Features that tell where a token stands; heads are as wide."""
FLAG, NONE = 10.0, -6.0
"""The feature of the end token, and of all others: where nothing is handed on, the end is improbable."""
SHARP, LOUD = 5.0, 5.0
"""How well neighbouring places are told apart; how much of the feature is handed on."""
SPECIAL = SpecialTokens(padding=PADDING, unknown=UNKNOWN, start=START, end=(END,), mask=4)


@torch.no_grad()
def translator(recipe: str, vocabulary: int, *, tokenizer: Any = None, seed: int = 1) -> Translator:
    """The task of a model of this recipe ("transformer" or "transformer-small"), whose heads are 64 wide."""
    torch.manual_seed(seed)
    special = None if tokenizer is not None else SPECIAL
    task = regard.task(recipe, special=special, tokenizer=tokenizer, source_vocab_size=vocabulary,
                       target_vocab_size=vocabulary)
    assert isinstance(task, Translator)
    model, apart = task.model, slice(0, PLACES + 1)
    (end,) = task.special.end
    table = model.decoder.embedding.tokens.weight
    table[:, apart] = 0.0
    table[:, PLACES] = NONE / model.decoder.embedding.factor
    table[end, PLACES] = FLAG / model.decoder.embedding.factor
    for module in model.modules():
        if isinstance(module, nn.Linear) and module is not model.output:
            if module.in_features == table.shape[1]:
                module.weight[:, apart] = 0.0
            if module.out_features == table.shape[1]:
                module.weight[apart] = 0.0
    head = model.decoder.stack.blocks[-1].cross
    unit = torch.eye(PLACES)
    head.query.weight[:PLACES], head.key.weight[:PLACES], head.value.weight[:PLACES] = 0.0, 0.0, 0.0
    head.query.weight[:PLACES, :PLACES] = head.key.weight[:PLACES, :PLACES] = SHARP * unit
    head.value.weight[0, PLACES], head.value.bias[0] = 1.0, -NONE
    head.output.weight[:, :PLACES] = 0.0
    head.output.weight[PLACES, 0] = LOUD
    _even(model, apart, [[*torch.randint(FIRST, vocabulary, (24,)).tolist(), end] for _ in range(8)],
          task.start_id())
    return task


def _even(model: nn.Module, apart: slice, sources: list[list[int]], start: int) -> None:
    """Set the gains of all norms so that the features that are set apart keep their size."""
    def adjust(norm: nn.LayerNorm, given: tuple[torch.Tensor]) -> None:
        norm.weight[apart] = given[0].std(dim=-1).median()

    hooks = [module.register_forward_pre_hook(adjust) for module in model.modules() if isinstance(module, nn.LayerNorm)]
    model(Tokens.of(sources), Tokens.of([[start, *source[:-1]] for source in sources]))
    for hook in hooks:
        hook.remove()


def sources(count: int, vocabulary: int, *, seed: int = 2, mean: float = 3.05, spread: float = 0.6,
            end: int = END, length: int | None = None) -> list[list[int]]:
    """Rows of ids with the end behind them, of the lengths of running text: 25 tokens in the mean, at most 100.

    With a `length` all have as many, the end with them.
    """
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.exp(mean + spread * torch.randn(count, generator=draw)).clamp(3, 100).long().tolist()
    if length is not None:
        lengths = [length - 1] * count
    return [[*torch.randint(FIRST, vocabulary, (length,), generator=draw).tolist(), end] for length in lengths]
