"""What somebody asked for, as a config: a recipe's name or file, and single values; checked before any data is read.

    document = asked(request, plan)              what was set, and nothing else
    filled(document, choices, document)          with choices where nothing was set

Misspelt keys and wrong values are all refused at once, each with its line. What only the data can tell (the vocabulary,
the size of the model, the number of steps) is left open. It does not know what is chosen, nor how.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any, get_args

from regard import checks, config
from regard.data.tokenizer.settings import TokenizerConfig
from regard.models.build import ModelConfig
from regard.recipes import catalog
from regard.toml import document as toml
from regard.toml.document import ConfigError, Document
from regard.toml.lines import KeyPath
from regard.training.choices.choice import Choice, sized, value
from regard.training.plans.plan import Plan, Request
from regard.training.settings import DataConfig, TrainingConfig

TABLES = {"recipe": str | None, "data": DataConfig | None, "tokenizer": TokenizerConfig | None, "model": ModelConfig,
          "training": TrainingConfig}
KINDS = {one.kind for one in get_args(ModelConfig)}
STEPS = "training.schedule.steps"
ANY = 10**9
"""Steps that stand for those which are not known yet."""


def asked(request: Request, plan: Plan) -> Document:
    """The config as far as somebody asked for it; a ConfigError has all that is wrong with it."""
    name = request.recipe
    if name is None:
        document = toml.given({}, "config")
    elif name.endswith(".toml") or "/" in name:
        document = toml.read(name)
    else:
        document = toml.given({"recipe": name}, "config")
    document = toml.changed(document, request.changes)
    _check(document, request, plan)
    return document


def filled(document: Document, choices: Sequence[Choice], given: Document) -> Document:
    """The document with what was chosen, where `given` has nothing. What was chosen before gives way."""
    return toml.changed(document, {choice.key: choice.value for choice in choices
                                   if value(given.tables, choice.key) is None and "." in choice.key})


def of_recipe(name: str) -> list[Choice]:
    """What a recipe says of the model."""
    return [Choice(f"model.{key}", each, name) for key, each in leaves(catalog.find(name).tables["model"])]


def in_sizes(recipe: str) -> list[str]:
    """A recipe in all sizes that its name leaves open."""
    return [sized(recipe, size) for size in catalog.sizes(recipe)] if recipe in catalog.names() else [recipe]


def leaves(tables: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key and value of everything that is no table."""
    for key, each in tables.items():
        if isinstance(each, Mapping):
            yield from leaves(each, f"{above}{key}.")
        else:
            yield f"{above}{key}", each


def _check(document: Document, request: Request, plan: Plan) -> None:
    """Refuse what is wrong whatever the data is."""
    named = document.tables.get("recipe")
    if value(document.tables, "model.kind") is not None or not isinstance(named, str | None):
        names: list[str | None] = [None]
    else:  # which recipe, and in which size, may not be known yet: what is right for one of them may be meant
        names = [size for recipe in ((named,) if named else plan.recipes) for size in in_sizes(recipe)]
    opened = [Choice(key, each, "") for key, each in {STEPS: ANY, **plan.open}.items()]
    whole = [filled(document, [*opened, *(of_recipe(name) if name else ())], document) for name in names]
    left = {tuple(choice.key.split(".")) for choice in opened if value(document.tables, choice.key) is None}
    kind = value(whole[0].tables, "model.kind")
    if kind in KINDS and kind not in plan.kinds:
        raise checks.wrong("model.kind", f"one for --task {request.task}, {' or '.join(plan.kinds)}",
                           f"{kind}{f', as the recipe {named} says' if named else ''}")
    faults = [_fault(each, left) for each in whole]
    if faults[0] is not None and None not in faults:
        raise faults[0]
    score = value(document.tables, "training.validation.score", "loss")
    if score not in plan.scores:
        raise checks.wrong("training.validation.score", f"one for --task {request.task}, {' or '.join(plan.scores)}",
                           score)
    for key, anyway in plan.unused.items():
        if value(document.tables, key, anyway) != anyway:
            raise checks.wrong(key, f"left out for --task {request.task}, which has no use for it",
                               value(document.tables, key))


def _fault(document: Document, left: Set[KeyPath]) -> ConfigError | None:
    """All that is wrong with a whole config, but for what is left open."""
    try:
        config.make_all(TABLES, document)
    except ConfigError as error:
        found = [problem for problem in error.found if problem.path not in left]
        return document.error(found) if found else None
    return None
