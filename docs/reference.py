"""The reference of the public names, from their signatures and docstrings: docs/reference/*.md.

    python docs/reference.py [-o docs/reference]

The pages are generated when the site is built, and are not kept. Every name of `regard.__all__` is on one page: where a
page lists it, or by its module. A name without a page or without a docstring is an error. It does not know what the
names do.

A docstring has paragraphs, indented blocks, and sections. `Args:`, `Raises:` and documented attributes become tables,
`Returns:` a sentence, `Example:` a block of Python that a test runs. A public name in backticks becomes a link.
"""

import argparse
import ast
import dataclasses
import inspect
import pkgutil
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import regard


class Group(NamedTuple):
    """A page of the reference."""

    title: str
    says: str
    """What the names are for."""
    names: tuple[str, ...]
    """In the order in which they are shown."""
    modules: tuple[str, ...]
    """Where further names of this page are defined."""
    types: tuple[str, ...] = ()
    """Types that are not public names themselves, but that public names take or return."""


GROUPS = {
    "attention": Group(
        "Attention", "Attention with any score, normaliser and mask, as a function and as layers.",
        ("attend", "attention_weights", "explain", "Attention", "BasicAttention", "PlainAttention", "AxialAttention",
         "AgentAwareAttention", "Score", "Additive", "Bilinear", "AgentAware", "Normalizer"),
        ("regard.attention",), ("regard.kernels.dispatch.Explanation",)),
    "masks": Group(
        "Masks", "Which keys a query may attend to. Masks are values: `&`, `|` and `~` combine them, and True means "
        "may attend. Pass one as the argument `mask`.",
        ("Causal", "Padding", "Window", "Packed", "Placed"), ("regard.attention.mask",),
        ("regard.attention.mask.Mask",)),
    "positions": Group(
        "Positions", "Positions inside attention: a rotation of queries and keys, or a bias on the scores.",
        ("Rotary", "ALiBi", "RelativeBias", "BucketedBias"), ("regard.position",), ("regard.position.bias.Bias",)),
    "parts": Group(
        "Mixers and blocks", "A mixer exchanges information between tokens, (B, N, D) → (B, N, D), all at once or step "
        "by step with an explicit state. Blocks and stacks are made of mixers.",
        ("SelfAttention", "Recurrence", "LSTMN", "Convolution", "RWKV4", "RWKV7", "ChannelMix", "Block",
         "Stack"),
        ("regard.recurrence", "regard.convolution", "regard.blocks", "regard.mixer")),
    "models": Group(
        "Models", "Bare models on ids. `regard.build` makes one from a recipe.",
        ("build", "Tokens", "PackedTokens", "EncoderDecoder", "Seq2Seq", "RecurrentEncoder", "OneContextDecoder",
         "AttendingDecoder", "LanguageModel", "MaskedModel", "Tagger", "SequenceClassifier", "ImageClassifier",
         "EvoformerBlock", "ConfigError"),
        ("regard.models", "regard.tokens", "regard.toml", "regard.config"),
        ("regard.models.contract.Memory", "regard.models.contract.Step", "regard.models.protein.MSARowAttention",
         "regard.models.protein.MSAColumnAttention", "regard.models.protein.Transition",
         "regard.models.protein.OuterProductMean", "regard.models.protein.TriangleMultiplication",
         "regard.models.protein.TriangleAttention", "regard.models.protein.SharedDropout")),
    "search": Group(
        "Search", "Searches over ids, for every model that generates.",
        ("greedy", "beam", "sample", "mbr", "with_cross", "Hypothesis"), ("regard.decoding",),
        ("regard.decoding.mbr.MbrResult",)),
    "tasks": Group(
        "Training and tasks", "A task is a model with its tokenizer and its search: what `regard.load` returns.",
        ("train", "CallbackEvent", "StopTraining", "TrainingError", "load", "read_rwkv7", "task", "Translator",
         "Completer", "Filler", "Classifier", "Labeller", "Embedder", "Translation", "Completion",
         "Beam", "Sampling", "Glossary", "Alignment", "Influence"),
        ("regard.tasks", "regard.training", "regard.data"),
        ("regard.tasks.filler.FilledText", "regard.tasks.filler.BlankSuggestion", "regard.tasks.filler.TokenGuess",
         "regard.tasks.classifier.Label", "regard.tasks.labeller.Labelling", "regard.tasks.labeller.TokenLabel",
         "regard.tasks.labeller.LabelledSpan", "regard.tasks.heads.HeadReport", "regard.tasks.heads.HeadScores")),
    "inspection": Group(
        "Inspection", "Attention weights of a model that runs, their statistics and their files.",
        ("watch", "Look", "Trace", "heat_map"), ("regard.inspection", "regard.attention.look"),
        ("regard.inspection.watch.AttentionRecords", "regard.inspection.records.WeightMatrix",
         "regard.attention.look.Peaks")),
}
NOT_SHOWN = {"__version__"}
SPECIAL = ("__call__", "forward", "__enter__", "__exit__")
# Methods that other packages of regard call, and users do not.
INTERNAL = {
    "leading", "fits", "prepare", "map_parts", "span", "on_host", "check_sizes", "allowed",                # masks
    "check", "checked", "projected", "merge", "queries", "keys_and_values", "score", "scans", "problem",   # parts
    "reset_parameters", "step_features", "gates", "attend_heads", "finish",
    "notify", "check_eval_mode", "check_search", "check_mbr", "check_stream", "require_tokenizer",         # tasks
    "pair_tokenizer", "text_tokenizer", "start_id", "end_ids", "mask_id", "vocabularies", "tokens", "encode_blanks",
    "special_ids", "token_ids", "encoder",
    "encode_texts", "add_special_ids", "max_positions", "rows_per_text", "run", "constraints", "seeds", "filters",
}
INTERNAL_OF = {
    "Mask": {"aligned"}, "RecurrentDecoder": {"source", "context"}, "Memory": {"mask_for"},
    "AttentionRecords": {"call_count", "run_count", "record", "info", "why_empty"},
    "WeightMatrix": {"weights", "rows", "entropy", "row_max", "column_sums", "top_k", "block_map"},  # those of a Look
}
"""Further ones, by the class that defines them: the same name is public elsewhere."""
WIDE = 100
"""Characters of a signature on one line."""
LONG_UNION = 6
"""From this number of types on, a union is shown by the name that the source gives it."""
SECTION = r"(Args|Returns|Raises|Yields|Example):"


def main() -> int:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    arguments.add_argument("-o", "--output", type=Path, default=Path(__file__).resolve().parent / "reference")
    given = arguments.parse_args()
    given.output.mkdir(parents=True, exist_ok=True)
    made = pages()
    for old in given.output.glob("*.md"):
        if old.stem not in made:
            old.unlink()
    for name, text in made.items():
        (given.output / f"{name}.md").write_text(text, encoding="utf-8")
    return 0


def placed() -> dict[str, list[str]]:
    """The names of every page, those that it lists first."""
    listed = [name for group in GROUPS.values() for name in group.names]
    gone = set(listed) - set(regard.__all__)
    if gone or len(listed) != len(set(listed)):
        raise ValueError(f"GROUPS must list public names, each once; no longer public: {sorted(gone)}")
    found = {page: list(group.names) for page, group in GROUPS.items()}
    homes = {module: page for page, group in GROUPS.items() for module in group.modules}
    for name in regard.__all__:
        if name in listed or name in NOT_SHOWN:
            continue
        home = getattr(regard, name).__module__
        fitting = [module for module in homes if f"{home}.".startswith(f"{module}.")]
        if not fitting:
            raise ValueError(f"GROUPS must have a page for regard.{name} of {home}")
        found[homes[max(fitting, key=len)]].append(name)
    return found


def pages() -> dict[str, str]:
    """The text of every page by its name."""
    names = placed()
    links = {name: f"{page}.md#{anchor(name)}" for page, own in names.items() for name in own}
    for page, group in GROUPS.items():
        links |= {path.rpartition(".")[2]: f"{page}.md#{anchor(path.rpartition('.')[2])}" for path in group.types}
    shown: dict[Any, tuple[str, str]] = {}
    made = {"index": index(names, links)}
    for page, own in names.items():
        things = {f"regard.{name}": getattr(regard, name) for name in own}
        things |= {path: pkgutil.resolve_name(path) for path in GROUPS[page].types}
        entries = "\n\n".join(entry(path, thing, shown, links) for path, thing in things.items())
        made[page] = f"# {GROUPS[page].title}\n\n{linked(GROUPS[page].says, links)}\n\n{entries}\n"
    return made


def index(names: dict[str, list[str]], links: dict[str, str]) -> str:
    """A table of all names, each with its first sentence."""
    lines = ["# Reference", "", "Every public name of `regard`, from its signature and its docstring. The "
             "[glossary](../glossary.md) defines the terms.", "",
             "Shapes: B sequences of a batch, N and M tokens, D features, H heads, V tokens of the vocabulary; `...` "
             "are any leading dimensions. Tokens are rows.", ""]
    for page, own in names.items():
        lines += [f"## {GROUPS[page].title}", "", linked(GROUPS[page].says, links), ""]
        lines += ["| name | what it is |", "|---|---|"]
        for name in own:
            first = re.split(r"(?<=\.)(?<!al\.)\s|\n\n", documented(name, getattr(regard, name)))[0]
            lines.append(f"| [`{name}`]({links[name]}) | {cell(first, {})} |")
        lines.append("")
    return "\n".join(lines)


def entry(path: str, thing: Any, shown: dict[Any, tuple[str, str]], links: dict[str, str]) -> str:
    """One name: its kind and module, how it is called, what it says, its attributes and its methods."""
    name = path.rpartition(".")[2]
    kind = "function" if not inspect.isclass(thing) else "exception" if issubclass(thing, Exception) else "class"
    text = [f"## `{path}` {{#{anchor(name)}}}", f"{kind} in `{thing.__module__}`\n{{: .origin }}",
            block(name, thing), prose(documented(name, thing), links)]
    if inspect.isclass(thing):
        text.append(attributes(thing, links))
        others: dict[str, list[str]] = {}
        for member, function, said in members(thing):
            if function in shown:
                first, same = shown[function]
                others.setdefault(first, []).append(f"[`{member}`]({links[first]}-{anchor(same)})")
                continue
            shown[function] = name, member
            text += [f"### `{name}.{member}` {{#{anchor(name)}-{anchor(member)}}}", call(member, thing, function),
                     prose(said, links)]
        for first, places in others.items():
            text.append(f"As in [`{first}`]({links[first]}): {', '.join(places)}.")
    return "\n\n".join(part for part in text if part)


def anchor(name: str) -> str:
    """The address of a name on its page; a name in small letters and one in large ones have different ones."""
    name = name.strip("_")
    return name if name.islower() else f"{name}-class" if name.lower() in {"beam", "look"} else name


def members(kind: type) -> Iterator[tuple[str, Any, str]]:
    """The public methods and properties of a class that `regard` itself documents: name, function, docstring.

    A method without a docstring counts as the one that it overrides.
    """
    ours = [one for one in kind.__mro__ if one.__module__.startswith("regard")]
    hidden = INTERNAL.union(*(INTERNAL_OF.get(one.__name__, set()) for one in ours))
    for name in dict.fromkeys(name for one in ours for name in vars(one)):
        values = [vars(one)[name] for one in ours if name in vars(one)]
        if (name.startswith("_") and name not in SPECIAL) or name in hidden:
            continue
        functions = [one.fget if isinstance(one, property) else getattr(one, "__func__", one) for one in values]
        owner = next((one for one in functions if inspect.isfunction(one) and one.__doc__), None)
        if owner is not None and not owner.__doc__.startswith("The older name of"):
            yield name, owner, inspect.cleandoc(owner.__doc__)


def attributes(kind: type, links: dict[str, str]) -> str:
    """A table of the fields of a dataclass or a named tuple that a text below them explains."""
    fields = getattr(kind, "_fields", None) or getattr(kind, "__dataclass_fields__", ())
    rows = []
    for one in reversed(kind.__mro__):
        if not one.__module__.startswith("regard"):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(one))).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, below in zip(body.body, body.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) \
                    and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                kind_of = brief(ast.unparse(field.annotation)).strip("'")
                said = cell(str(below.value.value), links)
                if field.target.id in fields:
                    rows.append(f"| `{field.target.id}` | `{kind_of}` | {said} |".replace(" | None`", " \\| None`"))
    return "| attribute | type | meaning |\n|---|---|---|\n" + "\n".join(rows) if rows else ""


def documented(name: str, thing: Any) -> str:
    """The docstring of the name itself."""
    said = inspect.getdoc(thing) if inspect.isclass(thing) or inspect.isfunction(thing) else None
    made = dataclasses.is_dataclass(thing) and (said or "").startswith(f"{name}(")  # what dataclasses write themselves
    if not said or made:
        raise ValueError(f"regard.{name} must have a docstring, of which the reference is made")
    return said


def call(member: str, kind: type, function: Callable[..., Any]) -> str:
    """How a method is called; of a property its type."""
    found = next(vars(one)[member] for one in kind.__mro__ if member in vars(one))
    if not isinstance(found, property):
        return block(member, getattr(kind, member))
    result = inspect.signature(function).return_annotation
    return f"```python\n{member}: {brief(inspect.formatannotation(result))}   # property\n```"


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
    return f"```python\n{line}\n```"


def brief(text: str) -> str:
    """Types by their last names, long unions by theirs, and without the quotes of types that are not yet defined."""
    text = re.sub(r"<function (\w+) at 0x\w+>", r"\1", re.sub(r"<factory>|<object object at 0x\w+>", "...", text))
    text = re.sub(r"^(\*{0,2}\w+: )?'([^']*)'", r"\1\2", text)
    text = re.sub(r"\b(?:[a-z_]\w*\.)+(?=[A-Z])", "", text).replace('"', "")
    return re.sub(rf"\w+Config(?: \| \w+Config){{{LONG_UNION - 1},}}", "ModelConfig", text)


def prose(said: str, links: dict[str, str] | None = None) -> str:
    """A docstring as Markdown: `Args:` and its like as tables, indented lines as they are."""
    links = links or {}
    parts, lines = [], said.split("\n")
    while lines:
        line = lines.pop(0)
        title = re.fullmatch(SECTION, line)
        if title:
            parts.append(section(title[1], indented(lines), links))
        elif line.startswith("    "):
            lines.insert(0, line)
            parts.append("```text\n" + "\n".join(indented(lines)) + "\n```")
        elif line.strip():
            taken = [line]
            while lines and lines[0].strip() and not re.match(f"    |{SECTION}$", lines[0]):
                taken.append(lines.pop(0))
            parts.append(linked(" ".join(taken), links))
    return "\n\n".join(parts)


def indented(lines: list[str]) -> list[str]:
    """The indented lines at the beginning, which are taken away, without their indentation."""
    taken = []
    while lines and (lines[0].startswith("    ") or not lines[0].strip()):
        taken.append(lines.pop(0)[4:])
    while taken and not taken[-1].strip():
        taken.pop()
    return taken


def section(title: str, lines: list[str], links: dict[str, str]) -> str:
    """Arguments and errors as a table; a result is a sentence, an example is code."""
    if title == "Example":
        return "**Example**\n\n```python\n" + "\n".join(lines) + "\n```"
    if title in ("Returns", "Yields"):
        return f"**{title}** " + linked(" ".join(line.strip() for line in lines if line.strip()), links)
    rows: list[list[str]] = []
    for line in lines:
        found = re.match(r"(\*{0,2}\w+(?:, \*{0,2}\w+)*): (.*)", line)
        if found:
            rows.append([found[1], found[2]])
        elif rows and line.strip():
            rows[-1][1] += " " + line.strip()
    head = f"| {'argument' if title == 'Args' else 'error'} | meaning |\n|---|---|\n"
    names = [", ".join(f"`{one}`" for one in row[0].split(", ")) for row in rows]
    return head + "\n".join(f"| {name} | {cell(row[1], links)} |" for name, row in zip(names, rows, strict=True))


def cell(text: str, links: dict[str, str]) -> str:
    """A text in a cell of a table."""
    return linked(" ".join(text.split()), links).replace("|", "\\|")


def linked(text: str, links: dict[str, str]) -> str:
    """A text as Markdown, with a link where a public name is in backticks."""
    pieces = re.split(r"(`[^`]*`)", text)
    return "".join(code(piece, links) if piece.startswith("`") else escaped(piece) for piece in pieces)


def code(piece: str, links: dict[str, str]) -> str:
    """A piece of code in backticks, as a link if it is a public name or a call of one."""
    name = re.match(r"`(?:regard\.)?(\w+)(?:\([^`]*\))?`$", piece)
    return f"[{piece}]({links[name[1]]})" if name and name[1] in links else piece


def escaped(text: str) -> str:
    """What Markdown would take for its own, outside of code, as what it is."""
    return re.sub(r"([*_<\[\]$])", r"\\\1", text)


if __name__ == "__main__":
    sys.exit(main())
