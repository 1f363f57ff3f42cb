"""What the attentions of a model are called, and what each of them is.

    decoder.stack.blocks.2.cross          decoder.2.cross
    encoder.stack.blocks.0.mixer.layer    encoder.0.self
    stack.blocks.0.mixer.layer            encoder.0.self    of a model that only reads
    decoder.attention                     decoder.cross     of a recurrent decoder
    layer, mixer.layer, ""                self              of a mixer or a layer alone

What has another place, in a module of somebody's own, keeps the name of its module. It knows names, and from the module
whether it looks at its own input; it does not watch.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from regard.attention.mixing import SelfAttention
from regard.attention.tap import Tap
from regard.models.decoder import Decoder
from regard.models.seq2seq import RecurrentDecoder
from regard.recurrence.lstmn import LSTMN

SELF, CROSS = "self", "cross"
_BLOCK = re.compile(r"(?P<part>.*\.)?blocks\.(?P<layer>\d+)\.(?P<place>mixer|mixer\.layer|cross)")
_FOREIGN_CROSS = re.compile(r"cross|encoder_attn|encdec|multihead_attn", re.IGNORECASE)
_PART_OF_BLOCK = re.compile(r"block\.(\d+)\.layer\.\d+\.")
"""In T5, what is called a layer is a part of one: attention, or what is behind it."""
_NUMBER = re.compile(r"(?:^|\.)(\d+)(?=\.|$)")


@dataclass(frozen=True)
class Place:
    """One attention of a model."""

    name: str
    module: nn.Module
    kind: str | None
    """"self" or "cross"; None where that is not known before it runs."""
    layer: int | None
    """From 0."""

    @property
    def part(self) -> str:
        """The part of the model that it is in: "decoder" of "decoder.2.cross"."""
        return self.name.split(".")[0] if "." in self.name else ""

    @property
    def strict(self) -> bool:
        """Whether a token does not see itself, but only what is before it."""
        return isinstance(self.module, LSTMN)


def places(model: nn.Module, modules: Mapping[str, nn.Module] | None = None) -> list[Place]:
    """Every attention of a model that has a tap, in the order of its modules, each under a name of its own.

    `modules` are its modules by name, where somebody has them already: to find them takes a while.
    """
    modules = dict(model.named_modules()) if modules is None else modules
    found: list[Place] = []
    taken: set[str] = set()
    for path, module in modules.items():
        if not isinstance(module.__dict__.get("tap"), Tap):
            continue
        above = modules.get(path.rpartition(".")[0]) if path else None
        place = _place(path, module, above, "decoder" if isinstance(model, Decoder) else "encoder")
        if place.name in taken:
            place = Place(path, module, place.kind, place.layer)
        taken.add(place.name)
        found.append(place)
    return found


def foreign(path: str, module: nn.Module) -> Place:
    """An attention that is not regard's: it keeps its name, from which its kind and its layer are guessed."""
    numbers = _NUMBER.findall(_PART_OF_BLOCK.sub(r"block.\1.", path))
    kind = CROSS if _FOREIGN_CROSS.search(path.rpartition("layers")[2] or path) else SELF
    return Place(path or "attention", module, kind if path else None, int(numbers[-1]) if numbers else None)


def _place(path: str, module: nn.Module, above: nn.Module | None, whole: str) -> Place:
    """The place of a module with a tap; `whole` is what a model is called that has one stack, and no name for it."""
    own = isinstance(above, SelfAttention) or isinstance(module, LSTMN)
    block = _BLOCK.fullmatch(path)
    if block is not None:
        kind = CROSS if block["place"] == "cross" else SELF
        part = whole if block["part"] == "stack." else (block["part"] or "").removesuffix(".").removesuffix(".stack")
        return Place(".".join(filter(None, (part, block["layer"], kind))), module, kind, int(block["layer"]))
    if isinstance(above, RecurrentDecoder):
        return Place(f"{path.rpartition('.')[0]}.cross".removeprefix("."), module, CROSS, 0)
    if path in ("", "layer", "mixer", "mixer.layer"):
        return Place(SELF if own else "attention", module, SELF if own else None, 0)
    if path == "cross":
        return Place(CROSS, module, CROSS, 0)
    return Place(path, module, SELF if own else None, None)
