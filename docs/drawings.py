"""Pictures of the course: what each lecture computes, drawn with the parts of regard. No model is trained for them.

    python docs/drawings.py [NAME ...] [-o docs/pictures/road]

The same code gives the same pictures. They need the extras `plot` and `images`, and one needs the digits of
scikit-learn. Screenshots of trained models are made by pictures.py.
"""

import argparse
import io
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

import regard
from regard.blocks.feed_forward import PlainFeedForward
from regard.inspection.pictures import canvas, flow_picture, position_picture, render_figure
from regard.inspection.pictures.canvas import ColourScale
from regard.position.encoding import LinearEncoding, SinusoidalEncoding
from regard.recurrence.gradient_flow import gradient_flow

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PANEL, GAP, BELOW = 1.55, 0.3, 0.62
"""Inches of a map, and of the gaps beside and below it."""
DPI, COLOURS = 110, 256
"""Pixels per inch, and the number of colours of a file, which keeps it small."""


def main() -> int:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    arguments.add_argument("names", nargs="*", choices=[*DRAWINGS, []], metavar="NAME", help=", ".join(DRAWINGS))
    arguments.add_argument("-o", "--output", type=Path, default=Path(__file__).resolve().parent / "pictures" / "road")
    given = arguments.parse_args()
    given.output.mkdir(parents=True, exist_ok=True)
    for name in given.names or DRAWINGS:
        path = given.output / f"{name}.png"
        path.write_bytes(drawn(name))
        print(path)
    return 0


def drawn(name: str) -> bytes:
    """The picture of this name as PNG; the random state is restored afterwards."""
    from PIL import Image

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        figure = DRAWINGS[name]()
    figure.set_dpi(DPI)
    with Image.open(io.BytesIO(render_figure(figure, "png"))) as image, io.BytesIO() as file:
        image.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(file, "PNG", optimize=True)
        return file.getvalue()


def recurrence() -> "Figure":
    """Gradient norms of freshly initialised cells."""
    x = torch.randn(8, 100, 64)
    names = {"vanilla RNN": "rnn", "LSTM": "lstm", "GRU": "gru", "MUT1": "mut1"}
    return flow_picture({shown: gradient_flow(regard.Recurrence(64, cell=cell), x) for shown, cell in names.items()},
                        title="Gradient norm of the last state, k steps back in time")


def encoder_decoder() -> "Figure":
    """How much each output token depends on each source token, with one context vector and with attention."""
    source = regard.Tokens.of([list(range(1, 8))])
    target = regard.Tokens.of([[0, 1, 2, 3, 4, 5, 6]])
    maps = {}
    for shown, recipe in (("one context vector", "seq2seq"), ("attention", "seq2seq-attention")):
        model = regard.build(recipe, source_vocab_size=10, target_vocab_size=10, width=64).eval()
        read: list[Tensor] = []
        table = next(part for part in model.modules() if isinstance(part, nn.Embedding))  # the first is the source's
        with table.register_forward_hook(lambda part, given, result, read=read: read.append(result)):
            logits = model(source, target)
        maps[shown] = shares(logits, read[0])
    return strip(maps, "Dependence of output tokens (rows) on source tokens (columns)", label="share")


def layer() -> "Figure":
    """The same queries and keys under every score and normaliser."""
    query, key, x = torch.randn(1, 7, 16), torch.randn(1, 9, 16), torch.randn(16)
    scores: dict[str, Any] = {"dot": "dot", "scaled_dot": "scaled_dot", "scaled_dot_d": "scaled_dot_d",
                              "additive": regard.Additive(x), "bilinear": regard.Bilinear(torch.eye(16) / 3)}
    maps = {shown: regard.attention_weights(query, key, score=score)[0] for shown, score in scores.items()}
    maps |= {f"scaled_dot, {name}": regard.attention_weights(query, key, normalize=name)[0]
             for name in ("relu", "relu_sum", "sigmoid")}
    return strip(maps, "Attention weights of 7 queries and 9 keys: five scores, then three normalisers", across=4)


def cross() -> "Figure":
    """Rows are queries of one sequence, columns keys of another."""
    attention = regard.Attention(32, heads=1, context_width=48)
    with regard.watch(attention) as records:
        attention(torch.randn(1, 5, 32), torch.randn(1, 11, 48))
    return strip({"5 tokens of X attend to 11 of X′": records[records.names()[0]].weights()[0, 0]}, "Cross-attention")


def self_attention() -> "Figure":
    """Tokens in another order: the weights are those of before, in that order."""
    attention, x = regard.Attention(32, heads=1), 2 * torch.randn(1, 7, 32)
    order = torch.tensor([4, 0, 6, 2, 5, 1, 3])
    maps = {}
    for shown, given in (("tokens", x), ("shuffled", x[:, order])):
        with regard.watch(attention) as records:
            attention(given)
        maps[shown] = records[records.names()[0]].weights()[0, 0]
    maps["shuffled, put back"] = maps["shuffled"][order.argsort()][:, order.argsort()]
    return strip(maps, "Self-attention is permutation equivariant")


def position() -> "Figure":
    """Encodings of 100 positions."""
    positions = torch.arange(100)
    return position_picture({"linear": LinearEncoding(0.02, width=32)(positions).detach(),
                             "sinusoidal": SinusoidalEncoding(32)(positions)})


def heads() -> "Figure":
    """Masks, which are values, as matrices."""
    masks = {"Causal()": regard.Causal(), "Window(2, 1)": regard.Window(2, 1),
             "Causal() & Window(3, 0)": regard.Causal() & regard.Window(3, 0),
             "Packed([3, 5])": regard.Packed([3, 5]),
             "Causal() & Packed([3, 5])": regard.Causal() & regard.Packed([3, 5]),
             "~Causal()": ~regard.Causal()}
    maps = {shown: mask.matrix(8, 8).float().reshape(8, 8) for shown, mask in masks.items()}
    maps["Padding(5)"] = regard.Padding(5).matrix(8, 8).float().reshape(8, 8)
    maps["Causal(), 3 queries"] = regard.Causal().matrix(3, 8).float()
    return strip(maps, "Rows: queries; columns: keys; dark: may attend", across=4, label="may attend")


def three_ways() -> "Figure":
    """How much each output token depends on each input token, with new weights."""
    mixers: dict[str, nn.Module] = {
        "recurrence (LSTM)": regard.Recurrence(32, cell="lstm"),
        "convolution, kernel 3": regard.Convolution(32, kernel_size=3),
        "self-attention, causal": regard.SelfAttention(regard.Attention(32, heads=4)),
        "RWKV-7": _reading(regard.RWKV7(32, head_width=16))}
    maps = {}
    for shown, mixer in mixers.items():
        x = torch.randn(1, 16, 32, requires_grad=True)
        maps[shown] = shares(mixer(x), x)
    return strip(maps, "Dependence of output tokens (rows) on input tokens (columns)", across=4, label="share")


def _reading(mixer: regard.RWKV7) -> regard.RWKV7:
    """The same mixer with an output projection that is not zero, as it is in a new layer."""
    nn.init.normal_(mixer.output.weight, std=0.1)
    return mixer


def fourth_way() -> "Figure":
    """The maps of RWKV with new weights: channels of version 4, and heads of version 7, which are signed."""
    x, maps = torch.randn(1, 16, 64), {}
    four, seven = regard.RWKV4(64), regard.RWKV7(64, head_width=32, layers=2)
    with regard.watch(four) as records:
        four(x)
    channels = records["self"].channels()[0]
    maps |= {f"RWKV-4, channel {number}": channels[number] for number in (8, 56)}
    maps["RWKV-4, mean over channels"] = channels.mean(0)
    with regard.watch(seven) as records:
        seven(x)
    found = {f"RWKV-7, head {number}": records["self"].weights()[0, number] for number in range(2)}
    found["RWKV-7, bonus of head 0"] = torch.diag(records["self"].bonus[0, 0])
    maps |= {name: one / one.abs().max() for name, one in found.items()}
    return strip(maps, "Rows: results; columns: values. Maps of RWKV-7 are divided by their largest number")


def block() -> "Figure":
    """The norm of the gradient at each of 24 blocks, with both positions of the norm."""
    flows = {}
    for shown, order in (("post-norm", "post"), ("pre-norm", "pre")):
        blocks = [regard.Block(regard.SelfAttention(regard.Attention(64, heads=4)), PlainFeedForward(64, 256), 64,
                               norm_position=order) for _ in range(24)]
        x, states = torch.randn(4, 20, 64, requires_grad=True), []
        for one in blocks:
            states.append(x)
            x = one(x)
        x = nn.functional.layer_norm(x, (64,))
        gradients = torch.autograd.grad((x * torch.randn_like(x)).sum(), states)
        norms = [gradient.flatten(1).norm(dim=1) for gradient in reversed(gradients)]
        flows[shown] = torch.stack(norms) / norms[0]
    figure = flow_picture(flows, title="Gradient norm in a stack of 24 new blocks", label="relative to the top")
    figure.axes[0].set_xlabel("blocks below the top")
    return figure


def beyond_text() -> "Figure":
    """A digit of 8 × 8 pixels, split into patches of 2 × 2, and these as rows."""
    from sklearn.datasets import load_digits

    image = torch.tensor(load_digits().images[3] / 16)
    patches = image.reshape(4, 2, 4, 2).transpose(1, 2)
    apart = torch.zeros(4, 4, 3, 3).double()
    apart[..., :2, :2] = patches
    maps = {"8 × 8 pixels": image, "16 patches": apart.transpose(1, 2).reshape(12, 12)[:11, :11],
            "16 tokens of width 4": patches.reshape(16, 4)}
    return strip(maps, "An image as a sequence of patches", label="pixel value")


def agents() -> "Figure":
    """Pairs of the same agent, and the weights of plain and of agent-aware attention, 3 agents × 4 steps."""
    torch.manual_seed(0)
    number = torch.arange(12) % 3
    x, layer = torch.randn(1, 12, 16), regard.AgentAwareAttention(16, heads=1)
    same = regard.attention_weights(layer.agent_queries(x, None), layer.agent_keys(x, None)[0], score=layer.score)
    aware = regard.attention_weights(layer.agent_queries(x, number), layer.agent_keys(x, number)[0], score=layer.score)
    pairs = (number[:, None] == number).double() * float(aware.detach().max())
    maps = {"same agent": pairs, "plain attention": same[0, 0], "agent-aware attention": aware[0, 0]}
    return strip(maps, "Tokens of three agents in four steps")


def shares(results: Tensor, given: Tensor) -> Tensor:
    """The norms of the gradients of each result (1, N, D) in each token that was given, (1, M, D); rows sum to 1."""
    rows = [torch.autograd.grad(results[0, place].square().sum(), given, retain_graph=True)[0][0].norm(dim=-1)
            for place in range(results.shape[1])]
    return torch.stack(rows) / torch.stack(rows).sum(-1, keepdim=True)


def strip(maps: Mapping[str, Tensor], title: str, *, across: int = 3, label: str = "weight") -> "Figure":
    """Maps beside each other, all on one scale, each with its name."""
    values = {name: given.detach().double().numpy() for name, given in maps.items()}
    scale = ColourScale.of(np.concatenate([one.ravel() for one in values.values()]))
    with canvas.new_figure() as figure:
        image = None
        for number, (name, one) in enumerate(values.items()):
            left, top = number % across * (PANEL + GAP), number // across * (PANEL + BELOW)
            cell = PANEL / max(one.shape)
            axes = canvas.add_panel(figure, left, top, cell * one.shape[1], cell * one.shape[0])
            image = canvas.draw_cells(axes, one, scale)
            axes.set_title(name, fontsize=canvas.LABEL_SIZE, parse_math=False)
            axes.set_xticks([])
            axes.set_yticks([])
        assert image is not None
        canvas.add_colour_bar(figure, image, min(across, len(values)) * (PANEL + GAP) - GAP + 0.15, 0, PANEL, label)
        return canvas.finish_figure(figure, title)


DRAWINGS: dict[str, Callable[[], "Figure"]] = {
    "recurrence": recurrence, "encoder-decoder": encoder_decoder, "layer": layer, "cross": cross,
    "self-attention": self_attention, "position": position, "heads": heads, "three-ways": three_ways, "block": block,
    "beyond-text": beyond_text, "agents": agents, "fourth-way": fourth_way,
}

if __name__ == "__main__":
    sys.exit(main())
