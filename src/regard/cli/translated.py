"""What `regard translate` writes of a translation: a line of text, or of JSON, with what was asked for beside it.

In text the columns are divided by tabs: the number of the text where there are several translations of each, the
translation, its score and those of its words, its alignment. It does not know how translations come about.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

from regard.cli import models
from regard.cli.meter import Meter

if TYPE_CHECKING:
    from collections.abc import Callable

    from regard.data.pair import Where
    from regard.tasks.alignment.words import Alignment
    from regard.tasks.placeholders.keeping import Kept
    from regard.tasks.results import Translation


class Details(NamedTuple):
    """What is asked for beside the translations."""

    nbest: int = 1
    scores: bool = False
    align: bool = False
    as_json: bool = False

    @property
    def inside(self) -> bool:
        """Whether it is something that only the model itself can tell."""
        return self.nbest > 1 or self.scores or self.align


class Looked(NamedTuple):
    """The translations of a text, the best first, and their alignments, where they were asked for."""

    translations: "tuple[Translation, ...]"
    alignments: "tuple[Alignment, ...]"


def looked_into(found: "Callable[[list[str]], list[Translation]]",
                align: "Callable[[list[str], list[Translation]], list[Alignment]] | None", nbest: int,
                texts: list[str]) -> list[Looked]:
    """The translations of texts as the model wrote them, so many at most, and aligned where that is asked for."""
    each = [(one, *one.alternatives)[:nbest] for one in found(texts)]
    if align is None:
        return [Looked(some, ()) for some in each]
    alignments = iter(align([text for text, some in zip(texts, each, strict=True) for _ in some],
                            [one for some in each for one in some]))
    return [Looked(some, tuple(next(alignments) for _ in some)) for some in each]


def write(number: int, text: str, found: "Looked | Kept | None", details: Details) -> None:
    """What came of a text; None where it could not be translated."""
    if details.as_json:
        models.write_json({"source": text, **_table(found, details)})
    elif not isinstance(found, Looked):
        models.write("" if found is None else found.text)
    else:
        for place, one in enumerate(found.translations):
            columns = [str(number)] * (details.nbest > 1) + [one.text.replace("\t", " ")]
            if details.scores:
                columns += [f"{one.score:.4f}", " ".join(f"{word.score:.4f}" for word in one.words)]
            if details.align:
                columns.append(found.alignments[place].pharaoh())
            models.write("\t".join(columns))


def _table(found: "Looked | Kept | None", details: Details) -> dict[str, Any]:
    if found is None:
        return {"text": None}
    if not isinstance(found, Looked):
        return {"text": found.text, "score": found.score, "cut": found.cut}
    every = []
    for place, one in enumerate(found.translations):
        every.append({"text": one.text, "score": one.score, "cut": one.cut})
        if details.scores:
            every[-1]["words"] = [word._asdict() for word in one.words]
        if details.align:
            every[-1]["alignment"] = found.alignments[place].table()
    return {**every[0], **({"alternatives": every[1:]} if details.nbest > 1 else {})}


def say_untouched(count: int) -> None:
    """Say how many texts came out as they went in, where there were any."""
    if count:
        models.say(f"{count:,} {'text stays' if count == 1 else 'texts stay'} as before: no translation of "
                   f"{'its' if count == 1 else 'theirs'} kept all placeholders.")


class Shown:
    """Shows on stderr how the translation of a file goes: a `regard.tasks.documents.Watcher`."""

    def __init__(self, meter: Meter) -> None:
        self.meter, self.count = meter, 0
        """Of entries that failed."""

    def begun(self, done: int, total: int) -> None:
        """Say where it goes on."""
        if done:
            models.say(f"Going on behind the first {done:,} of {total:,} entries, which are done.")
        self.meter.begin(done, total)

    def went(self, done: int) -> None:
        """Show how many are done."""
        self.meter.show(done)

    def failed(self, where: "Where", error: ValueError) -> None:
        """Name what cannot be translated."""
        self.count += 1
        self.meter.clear()
        models.say(f"Error: {where}: {error}")
