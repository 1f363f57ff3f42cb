"""Two claims of translation, on the phrasebook: one context vector is too little for long sentences and attention
repairs it; attention finds which words belong together, wherever they stand.

The recurrent encoder-decoder is trained with attention and without, on the same pairs, for the same steps. Alignments
are read off the one with attention as `benchmarks/alignment.py` does it, and compared with the phrasebook's own links,
and with a guess that knows nothing: the diagonal.
"""

import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from alignment import RECIPES, rate, trained

from claimed.claim import Claim, Numbers, Rows, Verdict
from regard.data import phrasebook
from regard.data.phrasebook import AlignedPair
from regard.tasks.alignment import alignment_error_rate
from regard.tasks.evaluation import bleu
from regard.tasks.translator import Translator

WITHOUT, WITH = "seq2seq-tiny", "seq2seq-attention-tiny"
NAMES = {WITHOUT: "one context vector", WITH: "attention"}


def bottleneck(pairs: int = 30_000, steps: int = 600, tested: int = 400, edges: Sequence[int] = (8, 12)) -> Numbers:
    """BLEU of both, by the words of the source, punctuation counted."""
    test = [*phrasebook.pairs(tested, split="test")]
    groups = _grouped(test, edges)
    found: dict[str, dict[str, float]] = {}
    for recipe in (WITHOUT, WITH):
        task = _model(recipe, pairs, steps)
        found[recipe] = {name: _bleu(task, own) for name, own in groups.items()}
    return {"bleu": found, "pairs": {name: len(own) for name, own in groups.items()}, "steps": steps}


def judge_bottleneck(found: Numbers) -> Verdict:
    """Without attention a smaller share is kept from the shortest to the longest, and attention is better there.

    Shares, because a model that knows little has little to lose: in points, the better one always loses more.
    """
    groups = list(found["pairs"])
    short, long = groups[0], groups[-1]
    kept = {name: found["bleu"][name][long] / max(found["bleu"][name][short], 1e-9) for name in (WITHOUT, WITH)}
    gained = found["bleu"][WITH][long] - found["bleu"][WITHOUT][long]
    return Verdict(kept[WITHOUT] < kept[WITH] and gained > 0,
                   f"from {short} to {long} words one context vector keeps {kept[WITHOUT]:.0%} of its BLEU, attention "
                   f"{kept[WITH]:.0%}; on the long ones attention is {gained:+.1f} BLEU better")


def shown_bottleneck(found: Numbers) -> tuple[list[str], Rows]:
    return ["model", *(f"{name} words ({count})" for name, count in found["pairs"].items())], [
        [NAMES[recipe], *(f"{own[name]:.1f}" for name in found["pairs"])] for recipe, own in found["bleu"].items()]


def order(pairs: int = 30_000, steps: int = 600, tested: int = 200) -> Numbers:
    """The alignment error rate of attention and of the diagonal, for all sentences and for those that change order."""
    task = _model(WITH, pairs, steps)
    held = [(pair.source, pair.target) for pair in phrasebook.pairs(200, split="validation")]
    chosen = task.choose_alignment(held)
    every = [*phrasebook.pairs(tested, split="test")]
    sets = {"all": every, "words change places": [pair for pair in every if _crosses(pair)]}
    return {"error": {name: {"attention": rate(task, own, chosen), "diagonal": _diagonal(own)}
                      for name, own in sets.items()},
            "pairs": {name: len(own) for name, own in sets.items()}, "steps": steps}


def judge_order(found: Numbers) -> Verdict:
    """Attention makes fewer mistakes than the diagonal, also where words change places."""
    held = all(own["attention"] < own["diagonal"] for own in found["error"].values())
    own = found["error"]["words change places"]
    return Verdict(held, f"where words change places, {own['attention']:.0%} of the links read off attention are wrong "
                   f"or missed, and {own['diagonal']:.0%} of those on the diagonal")


def shown_order(found: Numbers) -> tuple[list[str], Rows]:
    return ["sentences", "pairs", "error of attention", "error of the diagonal"], [
        [name, str(found["pairs"][name]), f"{own['attention']:.1%}", f"{own['diagonal']:.1%}"]
        for name, own in found["error"].items()]


@cache
def _model(recipe: str, pairs: int, steps: int) -> Translator:
    """A trained model; both claims may ask for the same."""
    RECIPES.setdefault(WITHOUT, RECIPES[WITH])  # type: ignore[attr-defined]
    with tempfile.TemporaryDirectory() as place:
        return trained(recipe, Path(place), pairs, steps, None)


def _grouped(pairs: Sequence[AlignedPair], edges: Sequence[int]) -> dict[str, list[AlignedPair]]:
    """Pairs by the words of the source: up to the first edge, up to the second, and so on, and above the last."""
    starts, ends = [0, *edges], [*edges, None]
    groups = {}
    for start, end in zip(starts, ends, strict=True):
        name = f"> {start}" if end is None else f"≤ {end}" if start == 0 else f"{start + 1}-{end}"
        groups[name] = [pair for pair in pairs
                        if start < len(pair.source_words) and (end is None or len(pair.source_words) <= end)]
    return {name: own for name, own in groups.items() if own}


def _bleu(task: Translator, pairs: Sequence[AlignedPair]) -> float:
    made = task.translate([pair.source for pair in pairs], beams=1, length_penalty="none")
    return bleu([one.text for one in made], [pair.target for pair in pairs]).value


def _crosses(pair: AlignedPair) -> bool:
    """Whether two links cross: the one further on in the source is before the other in the target."""
    return any(one[0] < other[0] and one[1] > other[1] for one in pair.alignment for other in pair.alignment)


def _diagonal(pairs: Sequence[AlignedPair]) -> float:
    """The error rate of linking every target word to the source word at the same share of the sentence."""
    found = []
    for pair in pairs:
        sources, targets = len(pair.source_words), len(pair.target_words)
        found.append({((2 * place + 1) * sources // (2 * targets), place) for place in range(targets)})
    return alignment_error_rate(found, [pair.alignment for pair in pairs])


CLAIMS = {
    "bottleneck": Claim("One context vector breaks down on long sentences, and attention repairs it.", bottleneck,
                        judge_bottleneck, shown_bottleneck),
    "order": Claim("Attention finds the order of words: which belong together, wherever they stand.", order,
                   judge_order, shown_order),
}
