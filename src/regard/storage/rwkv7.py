"""Reader of RWKV-7 files: tensors under the names of RWKV-LM become a `LanguageModel` of ours.

    emb.weight, blocks.I.ln0/ln1/ln2/att/ffn.*, ln_out.*, head.weight     RWKV-LM, the released models; I from 0
    e.weight, lnIa, rwkvI, rosaI.o.bias, lnIb, ffnI.*, lno.*, o.*         its small demonstrations; I from 1

The config follows from the shapes. In the demonstrations, rosaI.o.bias is a constant that is added to the residual
after the time mix, which is a bias of its last product; no other tensor of rosaI acts, nor lnIc. In both, the first
layer may have v0, v1 and v2, which do not act: its values are the first. `RWKV7File.ignored` names all of these. A
tensor of any other name is refused, because the model would not be the one that was trained.

A .pth file is opened by torch's loader for weights only, which refuses everything but tensors.
"""

import os
import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from regard.blocks.stack import StackConfig
from regard.checks import plural
from regard.models.embedding import EmbeddingConfig
from regard.models.language import LanguageModel, LanguageModelConfig
from regard.rwkv.channel_mix import ChannelMixConfig
from regard.rwkv.time_mix import RWKV7Config
from regard.storage.weights import build_module, read_tensors

LINEAR = ("receptance", "key", "value", "output")
VECTORS = ("x_r", "x_w", "x_k", "x_v", "x_a", "x_g", "w0", "a0", "v0", "k_k", "k_a", "r_k")
MATRICES = ("w1", "w2", "a1", "a2", "v1", "v2", "g1", "g2")


class Layout(NamedTuple):
    """The names of one kind of file, as patterns whose group is the number of the layer."""

    first: int
    """The number of the first layer."""
    shape_of: str
    """The name of a layer's r_k, with {} for its number."""
    rules: tuple[tuple[str, str], ...]
    """Pairs of a pattern and our name, with {} for the layer, from 0, and \\2 for the rest."""
    ignored: tuple[str, ...]
    """Patterns of tensors that do not act."""


TIME_MIX = "|".join([*(f"{name}\\.weight" for name in LINEAR), r"ln_x\.(?:weight|bias)", *VECTORS, *MATRICES])
BLOCK = "decoder.stack.blocks.{}"
RWKV_LM = Layout(0, "blocks.{}.att.r_k", (
    (r"emb\.weight()", "decoder.embedding.tokens.weight"),
    (r"blocks\.0\.ln0\.()(weight|bias)", r"decoder.embedding.norm.\2"),
    (r"blocks\.(\d+)\.ln1\.(weight|bias)", rf"{BLOCK}.around_mixer.norm.\2"),
    (r"blocks\.(\d+)\.ln2\.(weight|bias)", rf"{BLOCK}.around_feed_forward.norm.\2"),
    (rf"blocks\.(\d+)\.att\.({TIME_MIX})", rf"{BLOCK}.mixer.\2"),
    (r"blocks\.(\d+)\.ffn\.(x_k|key\.weight|value\.weight)", rf"{BLOCK}.feed_forward.\2"),
    (r"ln_out\.()(weight|bias)", r"decoder.stack.last_norm.\2"),
    (r"head\.()(weight|bias)", r"decoder.output.\2"),
), (r"blocks\.0\.att\.v[012]",))
DEMONSTRATION = Layout(1, "rwkv{}.r_k", (
    (r"e\.weight()", "decoder.embedding.tokens.weight"),
    (r"ln(\d+)a\.(weight|bias)", rf"{BLOCK}.around_mixer.norm.\2"),
    (r"ln(\d+)b\.(weight|bias)", rf"{BLOCK}.around_feed_forward.norm.\2"),
    (rf"rwkv(\d+)\.({TIME_MIX})", rf"{BLOCK}.mixer.\2"),
    (r"rosa(\d+)\.o\.(bias)", rf"{BLOCK}.mixer.output.\2"),
    (r"ffn(\d+)\.(x_k|key\.weight|value\.weight)", rf"{BLOCK}.feed_forward.\2"),
    (r"lno\.()(weight|bias)", r"decoder.stack.last_norm.\2"),
    (r"o\.()(weight|bias)", r"decoder.output.\2"),
), (r"rwkv1\.v[012]", r"ln\d+c\.(?:weight|bias)", r"rosa\d+\.(?!o\.bias$).*"))


@dataclass(frozen=True)
class RWKV7File:
    """An RWKV-7 model that was read from a file, and what was not used of the file."""

    model: LanguageModel
    """In float32 and evaluation mode."""
    config: LanguageModelConfig
    ignored: tuple[str, ...]
    """The tensors of the file that do not act, by name."""


def read_rwkv7(path: str | os.PathLike[str]) -> RWKV7File:
    """Read an RWKV-7 language model from a .safetensors or .pth file; a ValueError says why it cannot be read.

    Args:
        path: a file in the layout of RWKV-LM's released models, or of its small demonstrations.
    """
    path = Path(path)
    tensors = _read_pth(path) if path.suffix.lower() == ".pth" else read_tensors(path)
    layout = next((one for one in (RWKV_LM, DEMONSTRATION) if one.shape_of.format(one.first) in tensors), None)
    if layout is None:
        raise ValueError(f"{path}: not an RWKV-7 file: it has neither {RWKV_LM.shape_of.format(0)!r} nor "
                         f"{DEMONSTRATION.shape_of.format(1)!r}.")
    ours, ignored = _rename(tensors, layout, path)
    r_k = tensors[layout.shape_of.format(layout.first)]
    config = _config_of(ours, r_k, path)
    for name, tensor in tensors.items():
        if name.endswith(".r_k") and tensor.shape != r_k.shape:
            raise ValueError(f"{path}: {name!r} is of shape {tuple(tensor.shape)}, and that of the first layer of "
                             f"shape {tuple(r_k.shape)}: all layers must have the same heads.")
    model = build_module(config.build, ours, origin=str(path), owner="an RWKV-7 model of these shapes").eval()
    assert isinstance(model, LanguageModel)
    return RWKV7File(model, config, ignored)


def _read_pth(path: Path) -> dict[str, Tensor]:
    """The tensors of a file that torch.save wrote; nothing but tensors is loaded from it."""
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror or error}.") from None
    except pickle.UnpicklingError as error:
        # torch's own words advise to load the file with its code.
        found = re.search(r"(?i)unsupported (?:global: )?(?:global|class) ([\w.]+)", str(error))
        raise ValueError(f"{path}: torch's loader for weights refuses this file: it has "
                         f"{f'the Python object {found[1]}' if found else 'something'} that is not a tensor, or is "
                         "damaged. Convert its tensors to safetensors.") from None
    except (RuntimeError, EOFError, KeyError, IndexError) as error:
        reason = next(iter(str(error).splitlines()), "").split(". ")[0] or "it ends too early"
        raise ValueError(f"{path}: torch's loader for weights refuses this file, which is damaged or incomplete: "
                         f"{reason:.200}.") from None
    if not isinstance(found, dict) or not all(isinstance(one, Tensor) for one in found.values()):
        raise ValueError(f"{path}: must have tensors by name, but has a {type(found).__name__}.")
    return {str(name): tensor for name, tensor in found.items()}


def _rename(tensors: Mapping[str, Tensor], layout: Layout, path: Path) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """The tensors under our names and in our shapes, and the names of those that do not act."""
    ours, ignored, unknown = dict[str, Tensor](), list[str](), list[str]()
    for name, tensor in tensors.items():
        if any(re.fullmatch(pattern, name) for pattern in layout.ignored):
            ignored.append(name)
            continue
        rule = next(((found, target) for pattern, target in layout.rules if (found := re.fullmatch(pattern, name))),
                    None)
        if rule is None:
            unknown.append(name)
            continue
        found, target = rule
        rest = found[2] if found.re.groups > 1 else ""
        number = int(found[1]) - layout.first if found[1] else 0
        ours[target.replace("{}", str(number)).replace("\\2", rest)] = tensor.flatten() if rest in {
            *VECTORS, "x_k"} else tensor
    if unknown:
        raise ValueError(f"{path}: {plural(len(unknown), 'tensor')} with a name that RWKV-7 does not have, so that the "
                         "model would not be the one that was trained: "
                         f"{', '.join(unknown[:10])}{', …' if len(unknown) > 10 else ''}.")
    return ours, tuple(sorted(ignored))


def _config_of(ours: Mapping[str, Tensor], r_k: Tensor, path: Path) -> LanguageModelConfig:
    """The config that the shapes imply."""
    layers = 1 + max(int(found[1]) for name in ours if (found := re.match(r"decoder\.stack\.blocks\.(\d+)\.", name)))
    last = BLOCK.format(layers - 1)

    def size(name: str, dim: int) -> int:
        if name not in ours or ours[name].dim() <= dim:
            raise ValueError(f"{path}: the tensor of our {name!r} is missing, or has fewer than "
                             f"{plural(dim + 1, 'dimension')}.")
        if not ours[name].shape[dim]:
            raise ValueError(f"{path}: the tensor of our {name!r} is empty, of shape {tuple(ours[name].shape)}.")
        return ours[name].shape[dim]

    if r_k.dim() != 2 or not r_k.numel():
        raise ValueError(f"{path}: r_k must be of shape (heads, features), but is {tuple(r_k.shape)}.")
    value_rank = size(f"{last}.mixer.v1", 1) if layers > 1 else None
    mixer = RWKV7Config(head_width=r_k.shape[1], decay_rank=size(f"{last}.mixer.w1", 1),
                        learning_rate_rank=size(f"{last}.mixer.a1", 1), value_rank=value_rank,
                        gate_rank=size(f"{last}.mixer.g1", 1), output_bias=f"{last}.mixer.output.bias" in ours)
    stack = StackConfig(layers=layers, mixer=mixer,
                        channel_mix=ChannelMixConfig(ffn_width=size(f"{last}.feed_forward.key.weight", 0)))
    vocab_size, width = (size("decoder.embedding.tokens.weight", dim) for dim in (0, 1))
    if width % r_k.shape[1]:
        raise ValueError(f"{path}: the width {width} must be a multiple of the {r_k.shape[1]} features of a head.")
    norm = "layer" if "decoder.embedding.norm.weight" in ours else None
    return LanguageModelConfig(vocab_size=vocab_size, width=width, tie_word_embeddings=False,
                               output_bias="decoder.output.bias" in ours, embedding=EmbeddingConfig(norm=norm),
                               stack=stack)
