"""Draw the picture of attention in proteins for the pages, from numbers of protein_attention.py.

    python benchmarks/protein_picture.py docs/pictures/proteins.json -o docs/pictures/proteins.png
    python benchmarks/protein_picture.py HELIX/attention.json STRAND/attention.json -o picture.png --keep numbers.json

Left: helices, from the first file. Right: strands, from the last one. Above each chart a sketch shows the residues that
are meant. No model is needed; the same numbers give the same picture.
"""

import argparse
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PANEL_WIDTH, PANEL_HEIGHT, SKETCH_HEIGHT, GAP = 3.3, 2.1, 1.05, 0.75
"""Inches."""
DPI, COLOURS = 130, 128
RESIDUES_A_TURN = 3.6
HELIX_TURN = ((-4.5, -2.5), (2.5, 4.5))
"""The distances of one turn, which are shaded."""
SHADE, OWN, SEEN = "#e9e3d3", "#d55e00", "#0072b2"
HEAD = {"arrowstyle": "-|>", "color": SEEN, "linewidth": 1.2, "shrinkA": 6, "shrinkB": 6}


def sketch_helix(axes: "Axes") -> None:
    """A helix seen from its side, with a residue and those one turn before it."""
    from regard.inspection.pictures import canvas

    def at(number: float) -> tuple[float, float]:
        return number, float(np.cos(2 * np.pi * number / RESIDUES_A_TURN))

    own, seen = 10, (6, 7)
    curve = np.linspace(0, 14, 300)
    axes.plot(curve, np.cos(2 * np.pi * curve / RESIDUES_A_TURN), color=canvas.LINE, linewidth=1.6, zorder=1)
    for number in range(15):
        colour = OWN if number == own else SEEN if number in seen else canvas.LINE
        axes.plot(*at(number), "o", color=colour, markersize=9 if number in (own, *seen) else 6, zorder=2)
    for number in seen:
        axes.annotate("", at(number), at(own), arrowprops={**HEAD, "connectionstyle": "arc3,rad=-0.25"})
    for number, name, above in ((own, "i", 0.42), (6, "i − 4", -0.95), (7, "i − 3", 0.42)):
        x, y = at(number)
        axes.text(x, y + above, name, ha="center", fontsize=8, color=OWN if number == own else SEEN)
    axes.set(xlim=(-1, 15), ylim=(-1.9, 1.9))


def sketch_hairpin(axes: "Axes") -> None:
    """Two strands side by side with a turn between them, a residue, and its partner."""
    from regard.inspection.pictures import canvas

    turn = np.linspace(np.pi / 2, -np.pi / 2, 50)
    x = np.concatenate([np.arange(2, 11), 10.5 + 1.6 * np.cos(turn), np.arange(10, 1, -1)])
    y = np.concatenate([np.full(9, 0.8), 0.8 * np.sin(turn), np.full(9, -0.8)])
    axes.plot(x, y, color=canvas.LINE, linewidth=1.6, zorder=1)
    for row in (0.8, -0.8):
        for number in range(2, 11):
            shown = number == 5
            axes.plot(number, row, "o", color=(OWN if row > 0 else SEEN) if shown else canvas.LINE,
                      markersize=9 if shown else 6, zorder=2)
    axes.annotate("", (5, -0.8), (5, 0.8), arrowprops=HEAD)
    axes.text(5, 1.25, "i", ha="center", fontsize=8, color=OWN)
    axes.text(5, -1.75, "partner", ha="center", fontsize=8, color=SEEN)
    axes.set(xlim=(-1, 15), ylim=(-1.9, 1.9))


def draw(helix: dict[str, Any], hairpin: dict[str, Any]) -> bytes:
    """The picture as PNG."""
    from PIL import Image

    from regard.inspection.pictures import canvas, render_figure

    charts = [
        ("Helix: one turn back", sketch_helix, helix["distances"], HELIX_TURN,
         "distance in residues (negative: towards the start of the chain)",
         {"residues in helices": helix["helix"], "residues in strands": helix["strand"],
          "residues in coils": helix["coil"]}),
        ("Hairpin of two strands: the residue opposite", sketch_hairpin, hairpin["distance from the partner"],
         ((-1.5, 1.5),), "distance from the partner in residues",
         {"residues around the partner": hairpin["weight"],
          "other residues of strands, at the same distance": hairpin["strands"],
          "residues on the other side, at the same distance": hairpin["mirrored"]}),
    ]
    with canvas.new_figure() as figure:
        for number, (title, sketch, x, shaded, label, lines) in enumerate(charts):
            left = number * (PANEL_WIDTH + GAP)
            top = canvas.add_panel(figure, left, 0, PANEL_WIDTH, SKETCH_HEIGHT)
            top.set_title(title, fontsize=canvas.TITLE_SIZE - 1)
            top.set_axis_off()
            sketch(top)
            axes = canvas.add_panel(figure, left, SKETCH_HEIGHT + 0.1, PANEL_WIDTH, PANEL_HEIGHT)
            for low, high in shaded:
                axes.axvspan(low, high, color=SHADE, linewidth=0)
            for at, (name, values) in enumerate(lines.items()):
                axes.plot(x, 100 * np.array(values, float), label=name, color=canvas.LINE_COLOURS[at], marker="osD"[at],
                          markersize=3.5, linewidth=1.4, linestyle=canvas.LINE_STYLES[at])
            axes.set_ylim(bottom=0)
            axes.set_xlabel(label)
            if number == 0:
                axes.set_ylabel("mean attention weight in %")
            axes.set_xticks(range(x[0], x[-1] + 1, 4 if number == 0 else 2))
            axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.2))
        finished = canvas.finish_figure(figure, "")
    finished.set_dpi(DPI)
    with Image.open(io.BytesIO(render_figure(finished, "png"))) as image, io.BytesIO() as file:
        image.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(file, "PNG", optimize=True)
        return file.getvalue()


def main() -> None:
    """Read the numbers, and draw them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("numbers", type=Path, nargs="+", help="attention.json of one model, or of two")
    parser.add_argument("-o", "--output", type=Path, required=True, help="the PNG file")
    parser.add_argument("--keep", type=Path, help="also write what is drawn into this JSON file")
    arguments = parser.parse_args()
    first, last = (json.loads(arguments.numbers[at].read_text()) for at in (0, -1))
    helix, hairpin = ({"model": given.get("model"), **given[name]}
                      for given, name in ((first, "helix"), (last, "hairpin")))
    arguments.output.write_bytes(draw(helix, hairpin))
    if arguments.keep is not None:
        arguments.keep.write_text(json.dumps({"helix": helix, "hairpin": hairpin}) + "\n")


if __name__ == "__main__":
    main()
