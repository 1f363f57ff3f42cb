"""What `regard translate` asks of what translates: the options of the translation, checked together, as one value.

Whatever cannot be done is said before a model is loaded, or at the latest before a text is read. Options that change
results are in `table`, by which the journal of a file knows whether a call is the same. It knows no files of text.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli import models, searching

if TYPE_CHECKING:
    from regard.tasks.glossary.terms import Glossary
    from regard.tasks.results import Translation
    from regard.tasks.searches import Search
    from regard.tasks.translates import Translates

TORCH, CTRANSLATE2 = "torch", "ctranslate2"
ENGINES = (TORCH, CTRANSLATE2)
ENGINE = "What computes"
BEAMS = 5


@dataclass(frozen=True)
class Wishes:
    """What a translation must be like, and how it is chosen."""

    nbest: Annotated[int, typer.Option("-n", "--nbest", metavar="N", min=1, help="How many translations of each "
                     "text, at most as many as --beam, 5 where nothing is said; with --sample how many are drawn. Each "
                     "has the number of its text in front.")] = 1
    mbr: Annotated[int | None, typer.Option("--mbr", metavar="N", min=1, show_default=False, help="Of N samples, or "
                   "where --beam is given of the N best, take the one that is most like the others (minimum Bayes "
                   "risk); its score is its expected chrF.")] = None
    prefix: Annotated[str, typer.Option("--prefix", metavar="TEXT", rich_help_panel=searching.LENGTHS,
                      show_default=False, help="A text that every translation begins with.")] = ""
    glossary: Annotated[str | None, typer.Option("--glossary", metavar="FILE", rich_help_panel=searching.LENGTHS,
                        show_default=False, help="Terms that must be kept to: on each line a word of the source, a "
                        "tab, and what it becomes. A word on several lines may become any of them.")] = None


@dataclass(frozen=True)
class Following(searching.Following):
    """How beam search goes, for a model that reads a source."""

    coverage: Annotated[float | None, typer.Option("--coverage", metavar="NUMBER", min=0, show_default=False,
                        rich_help_panel=searching.SEARCH, help="How much a translation loses that leaves part of the "
                        "text unseen, the beta of Wu et al. 2016.")] = None


@dataclass(frozen=True)
class Engine:
    """What computes."""

    engine: Annotated[str, typer.Option("--engine", metavar="NAME", rich_help_panel=ENGINE, help="torch, or "
                      "ctranslate2, which is fast on a CPU: the model is exported for it once, into its "
                      "folder.")] = TORCH
    quantization: Annotated[str | None, typer.Option("--quantization", metavar="NAME", rich_help_panel=ENGINE,
                            show_default=False, help="For ctranslate2, as what numbers it stores matrices: float32, as "
                            "where nothing is said, float16, bfloat16 or int8.")] = None
    device: Annotated[str, typer.Option("--device", metavar="NAME", rich_help_panel=ENGINE, help="cpu, cuda, or auto: "
                      "a GPU where there is one.")] = models.AUTO

    def check(self) -> None:
        """Refuse an engine, or a quantization, that there is not, and a quantization for torch."""
        from regard import checks

        checks.pick("--engine", self.engine, dict.fromkeys(ENGINES))
        if self.quantization is not None and self.engine != CTRANSLATE2:
            models.fail(f"--quantization is for --engine {CTRANSLATE2}.")
        if self.quantization is not None:
            from regard.storage.ctranslate2.writing import QUANTIZATIONS

            checks.pick("--quantization", self.quantization, QUANTIZATIONS)

    def opened(self, model: str) -> "Translates":
        """What translates with the model in a folder."""
        from regard.tasks.translating import Translator

        if self.engine == TORCH:
            task = models.opened(model, self.device, "Translator")
            assert isinstance(task, Translator)
            return task
        from regard.tasks import engines, exporting

        try:
            return engines.opened(model, quantization=self.quantization or "float32", tell=models.say,
                                  device=models.chosen(self.device))
        except exporting.ExportError as error:
            models.fail(str(error), 1)


@dataclass(frozen=True)
class Asked:
    """A search, and what else a translation follows from."""

    search: "Search"
    most_alike: bool
    """Of all that is found, the one that is most like the others."""
    prefix: str
    terms: "Glossary | None"
    engine: Engine

    def opened(self, model: str) -> "Translates":
        """What translates with the model in a folder. What it cannot do is refused before any text is read."""
        if self.engine.engine == CTRANSLATE2:  # before an export is made
            from regard.tasks import engines

            if self.most_alike:
                engines.check_mbr()
            engines.check(self.search, glossary=self.terms)
        translator = self.engine.opened(model)
        translator.check(self.search, prefix=self.prefix, glossary=self.terms)
        return translator

    def translations(self, translator: "Translates", texts: list[str]) -> "list[Translation]":
        """Of each text what is best, with the others beside it."""
        if self.most_alike:
            return translator.mbr(texts, self.search, prefix=self.prefix, glossary=self.terms)
        return translator.searched(texts, self.search, prefix=self.prefix, glossary=self.terms)

    def check_placeholders(self) -> None:
        """Refuse placeholders that texts do not have: where those of texts are kept, all others are taken out."""
        from regard.tasks.placeholders.finding import placeholders

        entries = {} if self.terms is None else self.terms.entries
        required = [("--prefix", "", self.prefix)]
        required += [("--glossary", source, target) for source, targets in entries.items() for target in targets]
        for option, source, target in required:
            if placeholders(target) != placeholders(source):
                models.fail(f"{option} must be without placeholders of its own, but has {target!r:.80}. A translation "
                            "has those of its text, and no others.")

    def table(self) -> dict[str, Any]:
        """All that results depend on, but for the model: words and numbers by name."""
        engine = self.engine.engine
        known = None if self.terms is None else {source: [*targets] for source, targets in self.terms.entries.items()}
        return self.search.table() | {
            "mbr": self.most_alike, "prefix": self.prefix, "glossary": known, "engine": engine,
            "quantization": None if engine == TORCH else self.engine.quantization or "float32"}


def asked(wishes: Wishes, following: Following, drawing: searching.Drawing, bounds: searching.Bounds,
          engine: Engine) -> Asked:
    """All options as one value; a message and the exit code 2 where they do not go together."""
    from regard.tasks.glossary.terms import Glossary

    engine.check()
    if wishes.mbr is not None and wishes.nbest > wishes.mbr:
        models.fail(f"--nbest must be at most --mbr, {wishes.mbr}, but is {wishes.nbest} instead.")
    draws = drawing.sample or (wishes.mbr is not None and following.beam is None)
    count = wishes.nbest if wishes.mbr is None else wishes.mbr
    terms = None if wishes.glossary is None else Glossary.read(wishes.glossary)
    if draws:
        remedy = searching.DRAWS if drawing.sample else "--mbr draws, but where --beam is given."
        searching.refuse(following, remedy, glossary=wishes.glossary)
        search: Search = searching.draws(drawing, bounds, count)
    else:
        searching.refuse(drawing, "Give --sample, which draws.")
        if wishes.mbr is not None and wishes.mbr > (following.beam or BEAMS):
            models.fail(f"--mbr must be at most --beam, {following.beam}, but is {wishes.mbr} instead.")
        search = searching.beams(following, bounds, count, BEAMS, coverage=following.coverage)
    return Asked(search, wishes.mbr is not None, wishes.prefix, terms, engine)
