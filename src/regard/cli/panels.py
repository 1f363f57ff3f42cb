"""Many options of a command: groups of them as values, and help that shows them by groups.

    @expanded
    def complete(model: Model, drawn: Drawing) -> None: ...

An argument whose type is a dataclass stands for its fields, each of which is an option; the function is given the
value. `Panelled` writes the help of a command with a title over the options of each panel, as plain text. It knows no
option by itself.
"""

import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

from typer.core import TyperCommand


class Panelled(TyperCommand):
    """A command whose help has a section for each panel."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """The arguments, the options without a panel, and then panel by panel in the order of the first of each."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            panel = getattr(parameter, "rich_help_panel", None)
            title = panel or ("Arguments" if parameter.param_type_name == "argument" else "Options")
            if record is not None:
                sections.setdefault(title, []).append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def expanded(function: Callable[..., None]) -> Callable[..., None]:
    """The function with the fields of its dataclasses as arguments, all of them by name."""
    parameters, groups = list[inspect.Parameter](), dict[str, type]()
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        if isinstance(parameter.annotation, type) and is_dataclass(parameter.annotation):
            groups[parameter.name] = parameter.annotation
            hints = get_type_hints(parameter.annotation, include_extras=True)
            parameters += [inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default,
                                             annotation=hints[field.name]) for field in fields(parameter.annotation)]
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    def command(**given: Any) -> None:
        values = {name: group(**{field.name: given.pop(field.name) for field in fields(group)})
                  for name, group in groups.items()}
        function(**given, **values)

    command.__name__, command.__doc__ = function.__name__, function.__doc__
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command
