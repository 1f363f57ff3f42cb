"""Two trained translators on the same pairs: scores, whether the difference is an accident, sentence by sentence.

    compared(("a", first), ("b", second), pairs)      plain values, as JSON has them

What is told of each model by itself is what `regard evaluate` tells. It does not know folders, nor how it is shown.
"""

from collections.abc import Sequence
from typing import Any

from regard._version import __version__
from regard.comparison import bootstrap
from regard.tasks import evaluation
from regard.tasks.evaluation import Translated
from regard.tasks.translating import Translator

VERSION = 1
Table = dict[str, Any]
Named = tuple[str, Translator]


def compared(first: Named, second: Named, pairs: Sequence[tuple[str, str]], *, beams: int = 5,
             draws: int = bootstrap.DRAWS) -> Table:
    """Both models on these pairs (source, target); differences are those of the second to the first.

    The sentences begin with those where the second is better than the first by most, and end with the opposite.
    """
    found = [evaluation.translated(task, pairs, beams=beams) for _, task in (first, second)]
    references = [pair[1] for pair in pairs]
    made = [one.hypotheses for one in found]
    apart = bootstrap.paired(made[0], made[1], references, draws=draws)
    each = [bootstrap.sentence_scores(hypotheses, references) for hypotheses in made]
    sentences: list[Table] = [{"number": number, "source": source, "reference": target, "first": made[0][number],
                  "second": made[1][number], "first_chrf": each[0][number], "second_chrf": each[1][number],
                  "difference": each[1][number] - each[0][number]}
                 for number, (source, target) in enumerate(pairs)]
    sentences.sort(key=lambda sentence: -sentence["difference"])
    return {"kind": "models", "version": VERSION, "regard": __version__, "pairs": len(pairs), "beams": beams,
            "draws": draws,
            "models": [_model(name, task, one) for (name, task), one in zip((first, second), found, strict=True)],
            "difference": {score: one._asdict() for score, one in apart._asdict().items()},
            "same": sum(one == other for one, other in zip(*made, strict=True)), "sentences": sentences}


def _model(name: str, task: Translator, found: Translated) -> Table:
    return {"name": name, "parameters": task.config.parameters(), "bleu": found.scores.bleu, "chrf": found.scores.chrf,
            "loss": found.loss.mean, "cut": found.cut,
            "by_length": [bucket._asdict() for bucket in found.by_length],
            "signatures": {"bleu": found.scores.bleu_signature, "chrf": found.scores.chrf_signature}}
