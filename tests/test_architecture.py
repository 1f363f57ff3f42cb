"""The rules of the house, kept by machine.

Each rule is a function from a tree of files ({path: text}) to a list of complaints. It runs on this repository, where
it must find nothing, and on small bad examples, where it must find something: a rule that cannot fail is no rule.
docs/architecture.md shows the house that these rules keep.
"""

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Top to bottom. A module may import from the rows below its own and from its own package; two names in one row may not
# import each other. "regard" is the table of public names, so only the command line, which stands above it, may use it.
LAYERS = (
    ("__main__",),
    ("cli",),
    ("regard",),
    ("serving",),
    ("comparison",),
    ("training",),
    ("tasks",),
    ("inspection",),
    ("decoding",),
    ("storage",),
    ("data",),
    ("models",),
    ("blocks",),
    ("recurrence", "convolution", "rwkv"),
    ("tokens",),
    ("attention",),
    ("position",),
    ("kernels",),
    ("mixer", "special_tokens"),
    ("config",),
    ("toml", "allocation"),
    ("terminal",),
    ("checks", "_version"),
    ("reference",),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
MAY_USE_REFERENCE = {"src/regard/cli/tour.py"}
LONGEST = 800

Files = dict[str, str]


def tree(*folders: str) -> Files:
    """Every Python file of the repository under these folders."""
    paths = (path for folder in folders for path in sorted((ROOT / folder).rglob("*.py")))
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in paths}


@cache
def parsed(text: str) -> ast.Module:
    """The syntax tree of a file, which most rules look at."""
    return ast.parse(text)


@pytest.fixture(scope="module", autouse=True)
def _trees_are_forgotten():
    yield
    parsed.cache_clear()


def module(path: str) -> str:
    """src/regard/attention/mask.py → regard.attention.mask; a package's __init__.py → the package."""
    return path.removeprefix("src/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def imports(path: str, files: Files) -> Iterator[tuple[int, str]]:
    """Line and dotted name of every import in a file, wherever in it, relative ones resolved."""
    modules = set(map(module, files))
    package = module(path) if path.endswith("__init__.py") else module(path).rpartition(".")[0]
    for node in ast.walk(parsed(files[path])):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package.split(".")[: len(package.split(".")) - node.level + 1]) if node.level else ""
            source = ".".join(filter(None, (base, node.module)))
            for alias in node.names:
                inner = f"{source}.{alias.name}"
                yield node.lineno, inner if inner in modules or inner.removeprefix("regard.") in LEVEL else source


def layer(name: str) -> str:
    """The layer of a dotted name: regard.attention.mask → attention; regard → regard."""
    return name.split(".")[1] if "." in name else name


def upward_imports(files: Files) -> list[str]:
    """Imports go downward only."""
    complaints = []
    for path in files:
        own = layer(module(path))
        if path == "src/regard/__init__.py":
            continue  # it names everything, and imports it only when asked
        if own not in LEVEL:
            complaints.append(f"{path}: {own} has no place in LAYERS")
            continue
        for line, name in imports(path, files):
            if name.split(".")[0] != "regard" or layer(name) == own:
                continue
            if LEVEL.get(layer(name), -1) <= LEVEL[own]:
                complaints.append(f"{path}:{line}: {own} may not import {name}")
    return complaints


def impure_reference(files: Files) -> list[str]:
    """The oracle imports NumPy, the standard library and itself."""
    pure = {"numpy", *sys.stdlib_module_names}
    return [
        f"{path}:{line}: the reference may not import {name}"
        for path in files
        if path.startswith("src/regard/reference/")
        for line, name in imports(path, files)
        if name.split(".")[0] not in pure and not f"{name}.".startswith("regard.reference.")
    ]


def users_of_reference(files: Files) -> list[str]:
    """Nothing is computed with the oracle: only tests and the demo compare with it."""
    return [
        f"{path}:{line}: only tests and the demo may import the reference"
        for path in files
        if not path.startswith("src/regard/reference/") and path not in MAY_USE_REFERENCE
        for line, name in imports(path, files)
        if f"{name}.".startswith("regard.reference.")
    ]


def launched_elsewhere(files: Files) -> list[str]:
    """Triton kernels, `kernel[grid](...)`, are launched by `regard.kernels.launch`: on the device of their tensors."""
    found = []
    for path, text in files.items():
        if not path.startswith("src/regard/kernels/") or path.endswith("/launch.py"):
            continue
        for node in ast.walk(parsed(text)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript):
                name = ast.unparse(node.func.value)
                if name not in ("list", "dict", "tuple", "set", "deque"):  # list[int]() makes a list
                    found.append(f"{path}:{node.lineno}: {name} is launched, and not by kernels.launch")
    return found


def without_docstring(files: Files) -> list[str]:
    """Every module says at its top what it is for."""
    texts = {path: ast.get_docstring(parsed(text)) for path, text in files.items()}
    return [f"{path}: no docstring at the top" for path, text in texts.items() if not text]


def too_long(files: Files) -> list[str]:
    """A file answers one question; at this length it answers two."""
    lengths = {path: len(text.splitlines()) for path, text in files.items()}
    return [f"{path}: {length} lines, at most {LONGEST}" for path, length in lengths.items() if length > LONGEST]


def names_used_twice(files: Files) -> list[str]:
    """No two classes share a name: one word, one meaning."""
    homes = defaultdict(list)
    for path, text in files.items():
        for node in ast.walk(parsed(text)):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(f"{path}:{node.lineno}")
    return [f"class {name}: {', '.join(places)}" for name, places in homes.items() if len(places) > 1]


def blind_excepts(files: Files) -> list[str]:
    """An except clause names what it expects."""
    complaints = []
    for path, text in files.items():
        for node in ast.walk(parsed(text)):
            if isinstance(node, ast.ExceptHandler):
                caught = {part.id for part in ast.walk(node.type) if isinstance(part, ast.Name)} if node.type else {""}
                if caught & {"", "Exception", "BaseException"}:
                    complaints.append(f"{path}:{node.lineno}: name the exceptions that are expected")
    return complaints


def prints(files: Files) -> list[str]:
    """The library prints nothing: results are returned, messages go to the logger "regard". A script may print."""
    complaints = []
    for path, text in files.items():
        if path.startswith("src/regard/cli/"):
            continue
        tree = parsed(text)
        script = [node for part in tree.body if isinstance(part, ast.If) and "__name__" in ast.unparse(part.test)
                  for node in ast.walk(part)]
        complaints += [
            f"{path}:{node.lineno}: only the command line may print"
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and node not in script
            and ast.unparse(node.func) in ("print", "sys.stdout.write", "sys.stderr.write")
        ]
    return complaints


def promises(files: Files) -> list[str]:
    """No note of what is still to be done: it belongs elsewhere, or is done now."""
    words = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "X" + "XX")) + r")\b")
    return [
        f"{path}:{number}: {match[0]}"
        for path, text in files.items()
        for number, line in enumerate(text.splitlines(), 1)
        if (match := words.search(line))
    ]


def repository() -> Files:
    """All that the rules look at."""
    return tree("src", "tests", "benchmarks")


def under(files: Files, *tops: str) -> Files:
    """The files below these folders."""
    return {path: text for path, text in files.items() if path.split("/")[0] in tops}


MASK, CELL = "src/regard/attention/mask.py", "src/regard/recurrence/cells.py"
# rule, the folders it looks at, and bad examples: each must bring exactly one complaint.
RULES = [
    (upward_imports, ("src",), {MASK: "from regard.models import language"}),
    (upward_imports, ("src",), {MASK: "from regard import models", "src/regard/models/__init__.py": ""}),
    (upward_imports, ("src",), {MASK: "from regard import attend"}),
    (upward_imports, ("src",), {MASK: "import regard"}),
    (upward_imports, ("src",), {MASK: "from ..blocks import norm"}),
    (upward_imports, ("src",), {MASK: "def late():\n    import regard.cli.main"}),
    (upward_imports, ("src",), {MASK: "from regard.unknown import x"}),
    (upward_imports, ("src",), {CELL: "from regard.convolution import Convolution"}),
    (upward_imports, ("src",), {"src/regard/unknown/a.py": ""}),
    (impure_reference, ("src",), {"src/regard/reference/a.py": "import math, numpy, torch"}),
    (impure_reference, ("src",), {"src/regard/reference/a.py": "from regard.checks import wrong"}),
    (users_of_reference, ("src",), {MASK: "from regard.reference import attention"}),
    (users_of_reference, ("src",), {MASK: "import regard.reference.attention"}),
    (launched_elsewhere, ("src",), {"src/regard/kernels/a.py": "run[(3, 4)](x, SIZE=4)"}),
    (without_docstring, ("src", "tests", "benchmarks"), {MASK: "x = 1\n'''late'''"}),
    (too_long, ("src", "tests", "benchmarks"), {MASK: "x = 1\n" * (LONGEST + 1)}),
    (names_used_twice, ("src",), {MASK: "class A:\n    x = 1", CELL: "class A:\n    x = 2"}),
    (blind_excepts, ("src", "tests", "benchmarks"), {MASK: "try:\n    x\nexcept:\n    pass"}),
    (blind_excepts, ("src", "tests", "benchmarks"), {MASK: "try:\n    x\nexcept (OSError, Exception):\n    pass"}),
    (prints, ("src",), {MASK: "def f():\n    print(1)"}),
    (prints, ("src",), {MASK: "import sys\nsys.stderr.write('x')"}),
    (promises, ("src", "tests", "benchmarks"), {MASK: "x = 1  # TO" + "DO: more"}),
]
GOOD = {
    "src/regard/__init__.py": '"""."""\nfrom regard.cli import main',
    MASK: '"""."""\nimport torch\nfrom . import score\nfrom ..checks import wrong\nfrom regard import checks',
    "src/regard/attention/score.py": '"""."""\ntry:\n    x = 1\nexcept (OSError, ValueError):\n    pass',
    "src/regard/kernels/band.py": '"""."""\nfrom regard.checks import wrong\nx = list[int]()',
    "src/regard/checks.py": '"""."""\nif __name__ == "__main__":\n    print(1)',
    "src/regard/cli/tour.py": '"""."""\nimport regard\nfrom regard.reference import attention',
    "src/regard/reference/__init__.py": '"""."""',
    "src/regard/reference/attention.py": '"""."""\nimport math\nimport numpy as np\nfrom regard.reference import score',
    "tests/attention/test_mask_gradients.py": '"""."""',
}


@pytest.mark.thorough
@pytest.mark.parametrize("rule", {rule: None for rule, _, _ in RULES}, ids=lambda rule: rule.__name__)
def test_the_repository_keeps_the_rule(rule):
    tops = next(tops for other, tops, _ in RULES if other is rule)
    complaints = rule(under(repository(), *tops))
    assert not complaints, "\n".join(["", *complaints])


@pytest.mark.parametrize(("rule", "example"), [(rule, example) for rule, _, example in RULES])
def test_the_rule_finds_a_bad_example(rule, example):
    assert len(rule(example)) == 1


@pytest.mark.parametrize(("rule", "tops"), {(rule, tops): None for rule, tops, _ in RULES})
def test_the_rule_lets_a_good_example_pass(rule, tops):
    assert rule(under(GOOD, *tops)) == []


@pytest.mark.parametrize("name", ["regard", "regard.cli.main", "regard.checks"])
def test_importing_does_not_import_torch(name):
    code = f"import sys, {name}; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
