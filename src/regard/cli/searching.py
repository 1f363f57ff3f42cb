"""The options of a search, and the value that is made of them: `Beam` or `Sampling`.

    --beam, --nbest, --length-penalty, --coverage, --groups, --diversity     beam search
    --sample, --temperature, --top-k, --top-p, --min-p, --seed               drawing
    --limit, --least, --no-repeat                                            both

An option that has no meaning beside another is refused, and not passed over. It knows no model, and not what is done
with the value.
"""

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli import models

if TYPE_CHECKING:
    from regard.tasks.searches import Beam, Sampling

SEARCH, DRAWING, LENGTHS = "Beam search", "Drawing by chance", "What may be written"
DRAWS = "--sample draws; beam search is without it."


@dataclass(frozen=True)
class Following:
    """How beam search goes; None where nothing was said."""

    beam: Annotated[int | None, typer.Option("--beam", metavar="N", min=1, show_default=False, rich_help_panel=SEARCH,
                    help="How many beginnings are followed side by side; 1 is the fastest.")] = None
    length_penalty: Annotated[str | None, typer.Option("--length-penalty", metavar="NAME", rich_help_panel=SEARCH,
                              show_default=False, help="How lengths count: none, as with one beam; mean, as with "
                              "several; or a number, the alpha of Wu et al. 2016.")] = None
    groups: Annotated[int | None, typer.Option("--groups", metavar="N", min=1, rich_help_panel=SEARCH,
                      show_default=False, help="Part the beams into groups that are to differ.")] = None
    diversity: Annotated[float | None, typer.Option("--diversity", metavar="NUMBER", min=0, rich_help_panel=SEARCH,
                         show_default=False, help="What a token costs that a group before has taken; 0.5 where "
                         "nothing is said.")] = None


@dataclass(frozen=True)
class Drawing:
    """How is drawn; None where nothing was said."""

    sample: Annotated[bool, typer.Option("--sample", rich_help_panel=DRAWING, help="Draw by chance, instead of looking "
                      "for the most probable. The same seed gives the same.")] = False
    temperature: Annotated[float | None, typer.Option("--temperature", metavar="NUMBER", rich_help_panel=DRAWING,
                           show_default=False, help="Below 1 what is probable is drawn more often, above 1 "
                           "less.")] = None
    top_k: Annotated[int | None, typer.Option("--top-k", metavar="N", min=1, rich_help_panel=DRAWING,
                     show_default=False, help="Only from the N most probable tokens.")] = None
    top_p: Annotated[float | None, typer.Option("--top-p", metavar="P", rich_help_panel=DRAWING, show_default=False,
                     help="Only from the most probable tokens that together have the probability P.")] = None
    min_p: Annotated[float | None, typer.Option("--min-p", metavar="P", rich_help_panel=DRAWING, show_default=False,
                     help="Only tokens that have at least P times the probability of the first.")] = None
    seed: Annotated[int | None, typer.Option("--seed", metavar="N", min=0, rich_help_panel=DRAWING,
                    show_default=False, help="Another seed than 0 gives other texts.")] = None


@dataclass(frozen=True)
class Bounds:
    """What may be written, however it is found."""

    limit: Annotated[int | None, typer.Option("--limit", metavar="N", min=0, rich_help_panel=LENGTHS,
                     show_default=False, help="At most so many tokens.")] = None
    least: Annotated[int, typer.Option("--least", metavar="N", min=0, rich_help_panel=LENGTHS, show_default=False,
                     help="At least so many tokens.")] = 0
    no_repeat: Annotated[int | None, typer.Option("--no-repeat", metavar="N", min=1, rich_help_panel=LENGTHS,
                         show_default=False, help="No sequence of N tokens twice.")] = None


def beams(given: Following, bounds: Bounds, nbest: int, usual: int, **more: Any) -> "Beam":
    """The beam search of these options.

    Args:
        usual: how many beams there are where nothing is said.
    """
    from regard.tasks.searches import Beam

    count = usual if given.beam is None else given.beam
    if nbest > count:
        models.fail(f"--nbest must be at most --beam, {count}, but is {nbest} instead.")
    if given.diversity is not None and (given.groups or 1) == 1:
        models.fail("--diversity is for --groups: give how many there are.")
    options = {"groups": given.groups, "diversity": given.diversity}
    return Beam(beams=count, nbest=nbest, length_penalty=_penalty(given.length_penalty, count), limit=bounds.limit,
                least=bounds.least, no_repeat=bounds.no_repeat, **_said(options), **more)


def draws(given: Drawing, bounds: Bounds, tries: int) -> "Sampling":
    """The sampling of these options."""
    from regard.tasks.searches import Sampling

    options = {field.name: getattr(given, field.name) for field in fields(given) if field.name != "sample"}
    return Sampling(tries=tries, limit=bounds.limit, least=bounds.least, no_repeat=bounds.no_repeat, **_said(options))


def refuse(group: Following | Drawing, remedy: str, **more: object) -> None:
    """Refuse options of a group, and others, that were given and have no meaning here."""
    given = {field.name: getattr(group, field.name) for field in fields(group)} | more
    names = [f"--{name.replace('_', '-')}" for name, value in given.items() if value is not None and value is not False]
    if names:
        models.fail(f"{listed(names)} {'has' if len(names) == 1 else 'have'} no meaning here. {remedy}")


def _penalty(name: str | None, count: int) -> str | float:
    if name is None:
        return "mean" if count > 1 else "none"
    try:
        return float(name)
    except ValueError:
        return name


def _said(options: dict[str, Any]) -> dict[str, Any]:
    """What was said; the rest is as usual."""
    return {name: value for name, value in options.items() if value is not None}


def listed(names: list[str]) -> str:
    """Names of options in a sentence."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
