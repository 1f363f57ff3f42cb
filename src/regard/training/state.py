"""The state of an engine as a snapshot, and back: all that the next step depends on, and nothing else.

    model.*          parameters and buffers
    average.*        the mean of the parameters
    optimiser.*      the moments of every parameter
    carried.*        what the objective keeps from step to step; of several processes each has some rows of it
    engine.sums      what was counted and not told yet

Everything is compared before anything is taken in: the state of another model changes nothing. It knows names and
tensors. Files are not its business.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from regard.storage import modules
from regard.training.engine import Engine
from regard.training.processes import Processes
from regard.training.shards import Part, Stored
from regard.training.snapshot import Snapshot, optimiser_like, optimiser_state, resume_optimiser

CARRIED = "carried"
"""The part that is not known before the first step, and so cannot be compared."""


def snapshot(engine: Engine, values: Mapping[str, Any]) -> Snapshot:
    """The state of an engine now, with values beside it."""
    carried = {name: _part(tensor, engine.processes) for name, tensor in engine.objective.carried().items()}
    return Snapshot.of({**_parts(engine), CARRIED: carried}, values)


@torch.no_grad()
def resume(engine: Engine, stored: Stored) -> None:
    """Take in a stored state."""
    own = {f"{part}.{name}": entry for part, tensors in _parts(engine).items()
           for name, entry in modules.entries(tensors).items()}
    there = {name: entry for name, entry in stored.tensors.items() if not name.startswith(f"{CARRIED}.")}
    modules.match(own, there, origin="the checkpoint", owner="the training")
    weights = _weights(engine)
    found = stored.under("model", like=weights)
    if engine.average is not None:
        engine.average.resume(stored.under("average", like=engine.average.state()))
    like = optimiser_like(engine.optimiser, engine.names)
    moments = stored.under("optimiser", like=like)
    resume_optimiser(engine.optimiser, engine.names, {name: tensor.to(engine.device)
                                                      for name, tensor in moments.items()})
    for name, tensor in weights.items():
        tensor.copy_(found[name])
    engine.objective.resume({name: _own_rows(tensor, engine.processes).to(engine.device)
                             for name, tensor in stored.under(CARRIED).items()})
    engine.sums.copy_(stored.tensor("engine.sums"))


def _parts(engine: Engine) -> dict[str, Mapping[str, Tensor]]:
    """All tensors but those that are carried, by the part of the training that they belong to."""
    average = {} if engine.average is None else {"average": engine.average.state()}
    return {"model": _weights(engine), "optimiser": optimiser_state(engine.optimiser, engine.names),
            "engine": {"sums": engine.sums}, **average}


def _weights(engine: Engine) -> dict[str, Tensor]:
    """Parameters and buffers of the model, those with two names under the first alone."""
    seen: set[int] = set()
    found: dict[str, Tensor] = {}
    for name, tensor in engine.objective.model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            found[name] = tensor.detach()
    return found


def _part(tensor: Tensor, processes: Processes) -> Tensor | Part:
    """What this process carries, as a part of what all carry: the rows of the text are shared out in their order."""
    if processes.count == 1:
        return tensor
    rows = processes.sum(len(tensor))
    first = processes.rank * rows // processes.count
    return Part(tensor, (rows, *tensor.shape[1:]), (first, *[0] * (tensor.dim() - 1)))


def _own_rows(tensor: Tensor, processes: Processes) -> Tensor:
    """The rows of this process."""
    rows = len(tensor)
    return tensor[processes.rank * rows // processes.count:(processes.rank + 1) * rows // processes.count]
