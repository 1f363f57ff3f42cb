"""Where a tagger of proteins looks: at the turn of a helix, and at the partner of a residue in a hairpin.

    python benchmarks/protein_attention.py DATA MODEL -o FOLDER            MODEL: a tagger with attention layers
    python benchmarks/protein_attention.py DATA MODEL -o FOLDER --chains 20

DATA is that of benchmarks/proteins.py. Heads are chosen on the first training chains, and what is drawn and reported is
measured on the test chains (CB513), by their true structure.

Helices. A turn of a helix has 3.6 residues, so the residues 3 and 4 places away are its neighbours in space. The head
is chosen whose weight at these distances differs most between residues of helices and all others. Its mean weight by
distance is drawn for residues of helices, strands and coils (helix.svg), and for helices and strands as a ratio to that
of coils (helix-ratio.svg).

Strands. A hairpin is two runs of E, of three residues at least, with at most five residues of T, S or L between them.
Its strands are antiparallel: the partner of residue i is end + start - i, with the last residue of the first strand and
the first of the second. A head that knows this pays more attention to partners than to other residues at the same
distance. Its weight on partners, one residue to either side included, is divided by that on residues of strands at the
same distance from residues of strands that are not their partners, and by that of the same residues at the same
distance on the other side. The head is chosen whose smaller ratio is the largest. The profile around the partner
(hairpin.svg) and the map of one hairpin (hairpin-map.svg) are drawn. A ratio near 1 means that no head finds partners.
"""

import argparse
import gzip
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

MAX_DISTANCE = 12
"""Distances in residues that the pictures of helices show."""
HELIX_TURN = (3, 4)
MIN_STRAND, MAX_TURN, TURN_LABELS = 3, 5, "TSL"
REACH = 40
"""Largest distance of partners."""
PROFILE = 6
"""Residues around the partner that the profile shows."""
NEAR = 1
"""Residues to either side of the partner that count as partners."""
MIN_WEIGHT = 0.005
"""Mean weight on partners that a head needs to be chosen; uniform attention in a chain of 200 residues has it."""
MIN_DRAWN_PAIRS, MARGIN = 5, 3
"""Pairs of partners of the hairpin whose map is drawn, at least, and the residues around it that the map shows."""
GROUPS = {"helix": "HGI", "strand": "EB", "coil": "LST"}

Floats = NDArray[np.float64]


class Hairpin(NamedTuple):
    """Two strands with a turn between them: residues start to end, and from back to last, all of them inclusive."""

    start: int
    end: int
    back: int
    last: int

    @property
    def pairs(self) -> int:
        """The number of pairs of partners."""
        return min(self.end - self.start, self.last - self.back) + 1

    def partners(self) -> Iterator[tuple[int, int]]:
        """The pairs of partners, in both directions."""
        for step in range(self.pairs):
            yield self.end - step, self.back + step
            yield self.back + step, self.end - step


def find_hairpins(structure: str) -> list[Hairpin]:
    """The hairpins of a secondary structure in eight states."""
    runs, at = list[tuple[int, int]](), 0
    while at < len(structure):
        stop = at
        while stop < len(structure) and structure[stop] == structure[at]:
            stop += 1
        if structure[at] == "E" and stop - at >= MIN_STRAND:
            runs.append((at, stop - 1))
        at = stop
    return [Hairpin(start, end, back, last) for (start, end), (back, last) in pairwise(runs)
            if back - end - 1 <= MAX_TURN and {*structure[end + 1:back]} <= {*TURN_LABELS}]


def mean(total: Floats, count: Floats) -> Floats:
    """Means, NaN where there is nothing."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return total / count


@dataclass
class Sums:
    """Sums over chains of the weights of all heads (H, ...), and the counts of what was added."""

    heads: int
    by_distance: dict[str, Floats] = field(default_factory=dict)
    """The weight at each distance (H, 2 MAX_DISTANCE + 1) of the residues of a group."""
    distance_counts: dict[str, Floats] = field(default_factory=dict)
    hairpins: int = 0

    def __post_init__(self) -> None:
        for group in GROUPS:
            self.by_distance[group] = np.zeros((self.heads, 2 * MAX_DISTANCE + 1))
            self.distance_counts[group] = np.zeros(2 * MAX_DISTANCE + 1)
        self.partner, self.mirrored = (np.zeros((self.heads, 2 * PROFILE + 1)) for _ in range(2))
        self.partner_counts, self.mirrored_counts = (np.zeros(2 * PROFILE + 1) for _ in range(2))
        self.wanted = np.zeros((2 * PROFILE + 1, 2 * REACH + 1))
        """How often each distance occurs at each place of the profile."""
        self.strands = np.zeros((self.heads, 2 * REACH + 1))
        self.strand_counts = np.zeros(2 * REACH + 1)

    def add(self, weights: Floats, structure: str) -> None:
        """Add a chain with weights (H, N, N)."""
        length, place = len(structure), np.arange(len(structure))
        for offset in range(-MAX_DISTANCE, MAX_DISTANCE + 1):
            inside = (place + offset >= 0) & (place + offset < length)
            for group, members in GROUPS.items():
                rows = place[inside & np.isin([*structure], [*members])]
                self.by_distance[group][:, offset + MAX_DISTANCE] += weights[:, rows, rows + offset].sum(1)
                self.distance_counts[group][offset + MAX_DISTANCE] += len(rows)
        self._add_hairpins(weights, structure)

    def _add_hairpins(self, weights: Floats, structure: str) -> None:
        length, hairpins = len(structure), find_hairpins(structure)
        strand = np.array([letter == "E" for letter in structure])
        others = strand[:, None] & strand[None, :]
        pairs = [pair for hairpin in hairpins for pair in hairpin.partners()]
        for own, partner in pairs:  # the profile of a hairpin is no background
            others[own, max(0, partner - PROFILE):partner + PROFILE + 1] = False
        rows, columns = others.nonzero()
        near = np.abs(columns - rows) <= REACH
        rows, columns = rows[near], columns[near]
        np.add.at(self.strand_counts, columns - rows + REACH, 1.0)
        for head in range(self.heads):
            np.add.at(self.strands[head], columns - rows + REACH, weights[head, rows, columns])
        self.hairpins += len(hairpins)
        for own, partner in pairs:
            for step in range(-PROFILE, PROFILE + 1):
                other, mirrored = partner + step, 2 * own - partner - step
                if 0 <= other < length and abs(other - own) <= REACH:
                    self.partner[:, step + PROFILE] += weights[:, own, other]
                    self.partner_counts[step + PROFILE] += 1
                    self.wanted[step + PROFILE, other - own + REACH] += 1
                if 0 <= mirrored < length:
                    self.mirrored[:, step + PROFILE] += weights[:, own, mirrored]
                    self.mirrored_counts[step + PROFILE] += 1

    def distances(self, group: str) -> Floats:
        """The mean weight (H, distances) of the residues of a group."""
        return mean(self.by_distance[group], self.distance_counts[group])

    def profile(self) -> tuple[Floats, Floats, Floats]:
        """Mean weights (H, places) around the partner: there, between other residues of strands at the same distances,
        and at the same distances on the other side."""
        usual = np.nan_to_num(mean(self.strands, self.strand_counts))
        wanted = self.wanted * (self.strand_counts > 0)
        background = mean(usual @ wanted.T, wanted.sum(1))
        return mean(self.partner, self.partner_counts), background, mean(self.mirrored, self.mirrored_counts)


def read_chains(path: Path, count: int | None) -> list[tuple[str, str]]:
    """The first chains of a file, with their structure."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows = [line.rstrip("\n").split("\t") for line in file]
    return [(row[0], row[1]) for row in rows[:count]]


def attention(task: Any, chain: str) -> tuple[list[str], Floats]:
    """The names of all heads of a tagger, and their weights (H, N, N) for a chain."""
    from regard.tasks.traces import trace_input

    names, weights = list[str](), list[Floats]()
    for one in trace_input(task, chain).attentions:
        own = one.look.weights().float().numpy().astype(np.float64)
        names += [f"{one.name}, head {head + 1}" for head in range(len(own))]
        weights.append(own[:, -len(chain):, -len(chain):])
    return names, np.concatenate(weights)


def collect(task: Any, chains: Iterable[tuple[str, str]]) -> tuple[list[str], Sums]:
    """The sums over chains."""
    sums, names = None, list[str]()
    for chain, structure in chains:
        names, weights = attention(task, chain)
        sums = sums or Sums(len(names))
        sums.add(weights, structure)
    assert sums is not None
    return names, sums


def helix_difference(sums: Sums) -> Floats:
    """How much more weight each head has on a turn of a helix than elsewhere, (H,)."""
    turn = [MAX_DISTANCE + sign * one for one in HELIX_TURN for sign in (-1, 1)]
    means = {group: sums.distances(group)[:, turn].mean(1) for group in GROUPS}
    return np.asarray(means["helix"] - np.maximum(means["strand"], means["coil"]))


def partner_ratios(sums: Sums) -> tuple[Floats, Floats]:
    """The weight of each head on partners, divided by that on other residues of strands at the same distance, and by
    that of the same residues at the same distance on the other side, (H,) each.

    Both are 0 for heads that hardly look at partners.
    """
    near = slice(PROFILE - NEAR, PROFILE + NEAR + 1)
    there, background, mirrored = (values[:, near].mean(1) for values in sums.profile())
    looks = there >= MIN_WEIGHT
    return np.where(looks, mean(there, background), 0.0), np.where(looks, mean(there, mirrored), 0.0)


def listed(values: Floats) -> list[float | None]:
    """Numbers of JSON; null for NaN."""
    return [None if np.isnan(one) else float(f"{one:.5g}") for one in values.tolist()]


def draw_helix(name: str, head: int, sums: Sums, output: Path) -> dict[str, Any]:
    """Draw the weights of a head by distance, and the ratio to coils."""
    from regard.inspection.pictures.svg import ChartLine, lines_svg

    span = np.arange(-MAX_DISTANCE, MAX_DISTANCE + 1)
    means = {group: sums.distances(group)[head] for group in GROUPS}
    ratios = {group: mean(means[group], means["coil"]) for group in ("helix", "strand")}
    x_label = "distance in residues"
    (output / "helix.svg").write_text(lines_svg(
        [ChartLine(group, span, values) for group, values in means.items()], x_label=x_label,
        y_label="mean attention weight", title=f"Attention by distance, {name}", y_min=0.0), encoding="utf-8")
    (output / "helix-ratio.svg").write_text(lines_svg(
        [*(ChartLine(f"{group} / coil", span, values) for group, values in ratios.items()),
         ChartLine("equal", span, np.ones(len(span)))], x_label=x_label, y_label="ratio of attention weights",
        title=f"Attention by distance, ratio to coils, {name}", y_min=0.0), encoding="utf-8")
    turn = [MAX_DISTANCE + sign * one for one in HELIX_TURN for sign in (-1, 1)]
    return {"head": name, "distances": span.tolist(), **{group: listed(values) for group, values in means.items()},
            "turn": {group: float(values[turn].mean()) for group, values in means.items()},
            "turn helix / coil": float(means["helix"][turn].mean() / means["coil"][turn].mean()),
            "turn strand / coil": float(means["strand"][turn].mean() / means["coil"][turn].mean())}


def draw_profile(name: str, head: int, sums: Sums, output: Path) -> dict[str, Any]:
    """Draw the weights of a head around the partners of residues."""
    from regard.inspection.pictures.svg import ChartLine, lines_svg

    span = np.arange(-PROFILE, PROFILE + 1)
    there, background, mirrored = (values[head] for values in sums.profile())
    (output / "hairpin.svg").write_text(lines_svg(
        [ChartLine("hairpin", span, there), ChartLine("other residues of strands, same distance", span, background),
         ChartLine("other side, same distance", span, mirrored)], x_label="distance from the partner in residues",
        y_label="mean attention weight", title=f"Attention around the partner, {name}", y_min=0.0), encoding="utf-8")
    near = slice(PROFILE - NEAR, PROFILE + NEAR + 1)
    return {"head": name, "hairpins": sums.hairpins, "distance from the partner": span.tolist(),
            "weight": listed(there), "strands": listed(background), "mirrored": listed(mirrored),
            "ratio to strands": float(there[near].mean() / background[near].mean()),
            "ratio to mirrored": float(there[near].mean() / mirrored[near].mean())}


def draw_map(task: Any, name: str, head: int, chains: Sequence[tuple[str, str]], output: Path) -> dict[str, Any]:
    """Draw the weights of a head within one hairpin: that with the largest share of attention on partners."""
    from regard.inspection.pictures.svg import heat_svg

    best: tuple[float, int, Hairpin] | None = None
    for number, (chain, structure) in enumerate(chains):
        hairpins = [one for one in find_hairpins(structure) if one.pairs >= MIN_DRAWN_PAIRS]
        weights = attention(task, chain)[1][head] if hairpins else np.zeros((0, 0))
        for hairpin in hairpins:
            pairs = [*hairpin.partners()]
            share = float(np.mean([weights[own, max(0, other - NEAR):other + NEAR + 1].sum() for own, other in pairs]))
            if best is None or share > best[0]:
                best = share, number, hairpin
    if best is None:
        return {}
    share, number, hairpin = best
    chain, structure = chains[number]
    first = max(0, hairpin.end - hairpin.pairs + 1 - MARGIN)
    stop = min(len(chain), hairpin.back + hairpin.pairs + MARGIN)
    words = [f"{residue}{first + at + 1} {label}" for at, (residue, label) in
             enumerate(zip(chain[first:stop], structure[first:stop], strict=True))]
    weights = attention(task, chain)[1][head, first:stop, first:stop]
    (output / "hairpin-map.svg").write_text(heat_svg(weights, words, words, title=f"A hairpin, {name}"),
                                            encoding="utf-8")
    return {"chain": number, "residues": chain[first:stop], "structure": structure[first:stop],
            "hairpin": [one - first for one in hairpin], "share on partners": share,
            "weights": [listed(row) for row in weights]}


def main() -> None:
    """Choose heads on training chains, draw them on test chains."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True, help="the folder of the pictures and numbers")
    parser.add_argument("--chains", type=int, default=200, help="training chains, and test chains")
    arguments = parser.parse_args()
    import regard

    task = regard.Labeller.load(arguments.model)
    training, test = (read_chains(arguments.data / f"{name}.tsv.gz", arguments.chains) for name in ("train", "cb513"))
    names, chosen_on = collect(task, training)
    _, sums = collect(task, test)
    arguments.output.mkdir(parents=True, exist_ok=True)
    helix, ratios = int(np.argmax(helix_difference(chosen_on))), np.minimum(*partner_ratios(chosen_on))
    hairpin = int(np.nanargmax(ratios))
    found = {"model": arguments.model.name, "chains": len(test), "heads": len(names),
             "helix": draw_helix(names[helix], helix, sums, arguments.output),
             "hairpin": {**draw_profile(names[hairpin], hairpin, sums, arguments.output),
                         "smaller ratio on training chains": float(ratios[hairpin])},
             "smaller ratios of all heads": dict(zip(names, listed(np.minimum(*partner_ratios(sums))), strict=True)),
             "map": draw_map(task, names[hairpin], hairpin, test, arguments.output)}
    (arguments.output / "attention.json").write_text(json.dumps(found, indent=1) + "\n")
    print(f"{names[helix]}: weight 3 and 4 residues away, helix / coil {found['helix']['turn helix / coil']:.2f}. "
          f"{names[hairpin]}: weight on partners / other residues of strands "
          f"{found['hairpin']['ratio to strands']:.2f}, / other side {found['hairpin']['ratio to mirrored']:.2f}.")


if __name__ == "__main__":
    main()
