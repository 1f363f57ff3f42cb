"""`watch`: what a model looks at while it runs as it always does.

    with regard.watch(model) as seen:
        model(tokens)
    seen["encoder.0.self"].weights()

Every attention layer has a tap, which hands out projected queries and keys, whatever backend runs: the watch keeps them
up to a limit, and computes nothing before it is asked for. Of a task (a translator, ...) it keeps what was read and
written; that is read again when it is asked for, so a search runs at full speed. A model that has no layer of regard's
is watched through `foreign`. What runs in compiled code, in a recorded CUDA graph or inside of torch.func
cannot be watched.
"""

import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from torch import nn

from regard import checks
from regard.inspection.seen.again import Readings, Witnessed
from regard.inspection.seen.keeping import Keeping
from regard.inspection.seen.seen import NotSeenError, Seen
from regard.inspection.seen.sides import About, patches
from regard.inspection.trace.parts import AnyLook
from regard.inspection.watching.foreign import watching
from regard.inspection.watching.names import Place, places
from regard.inspection.watching.taps import listening

LIMIT = "2GiB"
UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


@contextmanager
def watch(model: nn.Module | Witnessed, limit: str | int = LIMIT) -> Iterator[Seen]:
    """See what a model, or a task, looks at inside the `with` block, and after it.

    What it computes is the same to the last bit, on the same backend. What is seen stays readable afterwards.

    Args:
        model: a model or a layer of regard, a task such as a `Translator`, or a module that has
            `torch.nn.MultiheadAttention` or `scaled_dot_product_attention` in it, such as a model of Hugging Face.
        limit: how many bytes of queries and keys may be kept: "2GiB", "500MB", or a number. What is beyond is not kept,
            and a warning says so.
    """
    most = size(limit)
    if isinstance(model, nn.Module):
        runs = Runs(model, Keeping(most))
        with runs.watching():
            yield Seen(runs)
        runs.warn()
    elif isinstance(getattr(model, "witnesses", None), list) and isinstance(getattr(model, "model", None), nn.Module):
        readings = Readings(model.model, most)
        witness = readings.readings.append
        model.witnesses.append(witness)
        try:
            yield Seen(readings)
        finally:
            model.witnesses[:] = [one for one in model.witnesses if one is not witness]
    else:
        raise checks.wrong("model", "a model, a layer or a task", *checks.kind(model))


class Runs:
    """The looks of attentions that were kept while they ran: the call i has the run i of each."""

    def __init__(self, model: nn.Module, keeping: Keeping) -> None:
        self.model, self.keeping = model, keeping
        self.modules = dict(model.named_modules())
        _refuse_compiled(self.modules.values())
        self.found: dict[str, Place] = {place.name: place for place in places(model, self.modules)}
        self.tapped = bool(self.found)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Keep what runs inside the `with` block."""
        if self.tapped:
            with listening(self.found.values(), self.keeping):
                yield
        else:
            with watching(self.modules, self.keeping, self.found):
                yield

    def warn(self) -> None:
        """Say what was not kept, where there was no room for all."""
        lost = self.keeping.lost()
        if lost:
            names = ", ".join(f'"{name}" ({count} of {self.ran(name)})' for name, count in list(lost.items())[:6])
            more = f" and {len(lost) - 6} more" if len(lost) > 6 else ""
            said = (f"watch keeps at most {self.keeping.limit:,} bytes, so these runs were not kept: {names}{more}. "
                    "Give a larger limit, or fewer tokens.")
            warnings.warn(said, RuntimeWarning, stacklevel=4)

    @property
    def places(self) -> Mapping[str, Place]:
        """The attentions of the model."""
        return self.found

    def calls(self) -> int:
        """How often the attention ran that ran most."""
        return max(map(len, self.keeping.runs.values()), default=0)

    def ran(self, name: str) -> int:
        """How often this one ran."""
        return len(self.keeping.runs.get(name, ()))

    def look(self, name: str, call: int) -> AnyLook:
        """What was kept of this run."""
        look = self.keeping.look(name, call)
        if look is None:
            raise NotSeenError(f'Run {call} of "{name}" was not kept: there was no room for it in the limit of '
                               f"{self.keeping.limit:,} bytes. Give a larger limit to watch.")
        return look

    def about(self, call: int) -> About:
        """What is known of the tokens: nothing, but for images."""
        image = patches(self.model)
        return About() if image is None else About({"image": image})

    def why_nothing(self) -> str:
        """Why nothing was seen."""
        if not self.tapped:
            return ("Nothing was seen: no attention of this model ran inside the `with` block, or it is neither "
                    "torch.nn.MultiheadAttention nor scaled_dot_product_attention or softmax of (batch, heads, "
                    "queries, keys).")
        return ("Nothing was seen: the model did not run inside the `with` block, or it ran in compiled code, as a "
                "recorded CUDA graph or inside torch.func, where nobody can watch.")


def size(limit: str | int) -> int:
    """How many bytes that is."""
    if isinstance(limit, int) and not isinstance(limit, bool) and limit >= 0:
        return limit
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", limit) if isinstance(limit, str) else None
    if found is None or found[2].upper() not in UNITS:
        raise checks.wrong("limit", 'a number of bytes, or a size such as "2GiB" or "500MB"', repr(limit))
    return int(float(found[1]) * UNITS[found[2].upper()])


def _refuse_compiled(modules: Iterable[nn.Module]) -> None:
    for module in modules:
        if "_orig_mod" in module._modules or module._compiled_call_impl is not None:
            raise checks.wrong("model", "one that is not compiled", "compiled by torch.compile",
                               "Watch and run the model that it was made from: it computes the same.")
