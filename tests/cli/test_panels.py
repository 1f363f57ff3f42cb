"""Groups of options as values, and help by groups."""

from dataclasses import dataclass
from typing import Annotated

import typer
from typer.testing import CliRunner

from regard.cli.options import PanelCommand, expand_options


@dataclass(frozen=True)
class Colour:
    red: Annotated[int, typer.Option("--red", metavar="N", min=0, help="How red.", rich_help_panel="Colours")] = 3
    plain: Annotated[bool, typer.Option("--plain", help="None at all.", rich_help_panel="Colours")] = False


def app(given):
    made = typer.Typer(rich_markup_mode=None, add_completion=False)

    @expand_options
    def paint(name: Annotated[str, typer.Argument(help="What.")], *, colour: Colour,
              fast: Annotated[bool, typer.Option("--fast", help="Soon.")] = False) -> None:
        """Paint it."""
        given.append((name, colour, fast))

    made.command(cls=PanelCommand)(paint)
    return made


def called(*arguments):
    given = []
    result = CliRunner().invoke(app(given), list(arguments))
    return result, given


def test_options_become_a_value():
    assert called("x")[1] == [("x", Colour(), False)]
    assert called("x", "--red", "5", "--plain", "--fast")[1] == [("x", Colour(5, True), True)]
    result, given = called("x", "--red", "-1")
    assert (result.exit_code, given) == (2, [])


def test_help_is_by_panels():
    text = called("--help")[0].output
    heads = [line.strip(":") for line in text.splitlines() if line.endswith(":")]
    assert heads == ["Arguments", "Options", "Colours"]
    assert "Paint it." in text
    for option in ("--red", "--plain"):
        assert text.index("Colours:") < text.index(option)
    assert text.index("--fast") < text.index("Colours:")
