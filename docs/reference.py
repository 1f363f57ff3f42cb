"""The reference of the public names, from their signatures and docstrings: docs/reference/*.md.

    python docs/reference.py [-o docs/reference]

The pages are made when the site is built, and are not kept. Every name of `regard.__all__` stands in one of the groups
below; one that does not, or that has no docstring, is an error. It does not know what the names do.
"""

import argparse
import dataclasses
import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import regard

GROUPS = {
    "attention": ("Attention", [
        "attend", "attention_weights", "explain", "Attention", "BasicAttention", "PlainAttention",
        "Causal", "Padding", "Window", "Packed", "Placed", "Score", "Additive", "Bilinear", "Normalizer"]),
    "parts": ("Mixers, blocks and positions", [
        "SelfAttention", "Recurrence", "LSTMN", "Convolution", "Block", "Stack", "Rotary", "ALiBi", "RelativeBias",
        "BucketedBias"]),
    "models": ("Models", [
        "build", "Tokens", "PackedTokens", "EncoderDecoder", "Seq2Seq", "RecurrentEncoder", "OneContextDecoder",
        "AttendingDecoder", "LanguageModel", "MaskedModel", "Tagger", "SequenceClassifier", "ImageClassifier",
        "ConfigError"]),
    "searching": ("Searching", ["greedy", "beam", "sample", "mbr", "with_cross", "Hypothesis"]),
    "tasks": ("Tasks", [
        "load", "task", "Translator", "Completer", "Filler", "Classifier", "Embedder", "Translation", "Completion",
        "Beam", "Sampling", "Glossary", "Alignment"]),
    "looking": ("Looking", ["watch", "Look", "Trace", "heat_map"]),
}
"""Page: its title and its names."""
NOT_SHOWN = {"__version__"}
SPECIAL = ("__call__", "forward", "__enter__", "__exit__")
WIDE = 100
"""Characters of a signature on one line."""


def main() -> int:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    arguments.add_argument("-o", "--output", type=Path, default=Path(__file__).resolve().parent / "reference")
    given = arguments.parse_args()
    given.output.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (given.output / f"{name}.md").write_text(text, encoding="utf-8")
    return 0


def pages() -> dict[str, str]:
    """The text of every page by its name."""
    placed = [name for _, names in GROUPS.values() for name in names]
    missing, gone = set(regard.__all__) - {*placed, *NOT_SHOWN}, set(placed) - set(regard.__all__)
    if missing or gone or len(placed) != len(set(placed)):
        raise ValueError(f"GROUPS must have every public name once; without a place: {sorted(missing)}; "
                         f"no longer public: {sorted(gone)}")
    made = {page: f"# {title}\n\n" + "\n\n".join(entry(name) for name in names) + "\n"
            for page, (title, names) in GROUPS.items()}
    return {"index": index(), **made}


def index() -> str:
    """A table of all names, each with its first sentence."""
    lines = ["# Reference", "", "Every public name of `regard`, from its signature and its docstring. The words are "
             "those of the [glossary](../glossary.md); shapes have tokens as rows.", ""]
    for page, (title, names) in GROUPS.items():
        lines += [f"## {title}", "", "| name | |", "|---|---|"]
        for name in names:
            first = re.split(r"(?<=\.)\s|\n\n", documented(name, getattr(regard, name)))[0]
            lines.append(f"| [`{name}`]({page}.md#{anchor(name)}) | {cell(first)} |")
        lines.append("")
    return "\n".join(lines)


def entry(name: str) -> str:
    """One public name: where it is from, how it is called, what it says, and its methods."""
    thing = getattr(regard, name)
    text = [f"## `regard.{name}` {{#{anchor(name)}}}", f"from `{thing.__module__}`", block(name, thing),
            prose(documented(name, thing))]
    if inspect.isclass(thing):
        for member, shown in members(thing):
            text += [f"### `{name}.{member}` {{#{anchor(name)}-{anchor(member)}}}", *shown]
    return "\n\n".join(part for part in text if part)


def anchor(name: str) -> str:
    """The address of a name on its page; a name in small letters and one in large ones have different ones."""
    return name if name.islower() else f"{name}-class" if name.lower() in {"beam", "look"} else name


def members(kind: type) -> list[tuple[str, list[str]]]:
    """The public methods and properties of a class that `regard` itself wrote a docstring for."""
    found = []
    ours = [one for one in kind.__mro__ if one.__module__.startswith("regard")]
    for name in dict.fromkeys(name for one in ours for name in vars(one)):
        holder = next(one for one in kind.__mro__ if name in vars(one))
        value = vars(holder)[name]
        if (name.startswith("_") and name not in SPECIAL) or not holder.__module__.startswith("regard"):
            continue
        if isinstance(value, property):
            function, kind_of = value.fget, "property"
        else:
            function, kind_of = getattr(value, "__func__", value), ""
        said = function.__doc__ if inspect.isfunction(function) else None  # its own, not one of torch
        if said:
            shown = prose(inspect.cleandoc(said))
            found.append((name, ["a property", shown] if kind_of else [block(name, getattr(kind, name)), shown]))
    return found


def documented(name: str, thing: Any) -> str:
    """The docstring of the name itself."""
    said = inspect.getdoc(thing) if inspect.isclass(thing) or inspect.isfunction(thing) else None
    made = dataclasses.is_dataclass(thing) and (said or "").startswith(f"{name}(")  # what dataclasses write themselves
    if not said or made:
        raise ValueError(f"regard.{name} must have a docstring, of which the reference is made")
    return said


def block(name: str, thing: Callable[..., Any]) -> str:
    """How it is called, one argument a line where all would not fit on one."""
    try:
        given = inspect.signature(thing)
    except ValueError:  # exceptions have none
        return ""
    own = [one for one in given.parameters.values() if one.name != "self"]
    parts, starred = [], False
    for one in own:
        if one.kind is inspect.Parameter.KEYWORD_ONLY and not starred:
            parts.append("*")
            starred = True
        starred = starred or one.kind is inspect.Parameter.VAR_POSITIONAL
        parts.append(brief(str(one)))
    result = given.return_annotation
    ends = "" if result in (inspect.Signature.empty, None) else f" -> {brief(inspect.formatannotation(result))}"
    line = f"{name}({', '.join(parts)}){ends}"
    if len(line) > WIDE:
        line = f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){ends}"
    return f"```text\n{line}\n```"


def brief(text: str) -> str:
    """Types by their last names, and without the quotes of those that are not yet defined."""
    text = re.sub(r"<function (\w+) at 0x\w+>", r"\1", re.sub(r"<factory>|<object object at 0x\w+>", "...", text))
    text = re.sub(r"^(\*{0,2}\w+: )'([^']*)'", r"\1\2", text)
    return re.sub(r"\b(?:[a-z_]\w*\.)+(?=[A-Z])", "", text).replace('"', "")


def prose(said: str) -> str:
    """A docstring as Markdown: `Args:` and its like as tables, indented lines as they are."""
    parts, lines = [], said.split("\n")
    while lines:
        line = lines.pop(0)
        title = re.fullmatch(r"(Args|Returns|Raises|Yields):", line)
        if title:
            taken = []
            while lines and (not lines[0].strip() or lines[0].startswith("    ")):
                taken.append(lines.pop(0)[4:])
            parts.append(table(title[1], taken))
        elif line.startswith("    "):
            taken = [line]
            while lines and (lines[0].startswith("    ") or not lines[0].strip()):
                taken.append(lines.pop(0))
            while not taken[-1].strip():
                taken.pop()
            parts.append("```text\n" + "\n".join(one[4:] for one in taken) + "\n```")
        elif line.strip():
            taken = [line]
            while lines and lines[0].strip() and not lines[0].startswith("    ") and not lines[0].endswith("Args:"):
                taken.append(lines.pop(0))
            parts.append(escaped(" ".join(taken)))
    return "\n\n".join(parts)


def table(title: str, lines: list[str]) -> str:
    """Arguments and what is said of them; of a result there is only a sentence."""
    if title == "Returns":
        return "**Returns** " + escaped(" ".join(line.strip() for line in lines if line.strip()))
    rows: list[list[str]] = []
    for line in lines:
        found = re.match(r"(\*{0,2}\w+): (.*)", line)
        if found:
            rows.append([found[1], found[2]])
        elif rows and line.strip():
            rows[-1][1] += " " + line.strip()
    name = "argument" if title == "Args" else "error"
    return f"| {name} | |\n|---|---|\n" + "\n".join(f"| `{name}` | {cell(text)} |" for name, text in rows)


def cell(text: str) -> str:
    """A text in a cell of a table."""
    return escaped(" ".join(text.split())).replace("|", "\\|")


def escaped(text: str) -> str:
    """What Markdown would take for its own, outside of code, as what it is."""
    pieces = re.split(r"(`[^`]*`)", text)
    return "".join(piece if piece.startswith("`") else re.sub(r"([*_<\[\]])", r"\\\1", piece) for piece in pieces)


if __name__ == "__main__":
    sys.exit(main())
