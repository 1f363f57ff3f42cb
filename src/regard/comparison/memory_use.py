"""What one step of a training holds in memory, counted tensor by tensor.

Parameters, their gradients and the two moments of Adam, and what the forward pass keeps for the backward pass, for one
batch. It is counted and not asked of the system, which would tell the most that the process ever had, whatever the
model: so it is the same on every machine and in every order of trainings. What an operation needs only while it runs is
not in it. It does not train.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.models.contract import IGNORED, Tokens
from regard.tasks.translating import Translator
from regard.training.loss import token_loss

COPIES = 4
"""Numbers that training has for each parameter: itself, its gradient, and two moments."""


def step_memory(task: Translator, pairs: Sequence[tuple[str, str]]) -> int:
    """Bytes, for a batch of these pairs, padded."""
    both, model = task.pair_tokenizer(), task.model
    sources = both.source_ids([pair[0] for pair in pairs])
    targets = [[task.start(), *ids] for ids in both.target_ids([pair[1] for pair in pairs])]
    parameters = [*model.parameters()]
    own = {parameter.untyped_storage().data_ptr() for parameter in parameters}
    kept: dict[int, int] = {}

    def count(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    read, written = (Tokens.of(rows).to(task.device) for rows in (sources, targets))
    labels = written.ids.roll(-1, 1)  # which ones they are does not matter here, but that there are as many
    labels[labels == IGNORED] = 0
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        loss = token_loss(model.features(read, written), model.output, labels, 0.0)  # type: ignore[operator,arg-type]
        assert loss.total.requires_grad
    return COPIES * sum(parameter.nbytes for parameter in parameters) + sum(kept.values())
