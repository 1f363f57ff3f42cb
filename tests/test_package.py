"""The table of public names: lazy, complete, and the same for people and type checkers."""

import ast
import importlib
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

import regard

ROOT = Path(__file__).resolve().parent.parent
HOMES = regard._HOMES


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("name", HOMES)
def test_every_public_name_is_the_one_of_its_module(name):
    assert getattr(regard, name) is getattr(importlib.import_module(HOMES[name]), name)


def test_a_name_is_imported_when_it_is_first_used_and_then_kept(monkeypatch):
    monkeypatch.setitem(HOMES, "nearest", "regard.checks")
    assert "nearest" not in vars(regard)
    try:
        assert regard.nearest is sys.modules["regard.checks"].nearest
        assert "nearest" in vars(regard)
    finally:
        vars(regard).pop("nearest", None)


def test_version_is_there_without_torch_and_equals_the_installed_one():
    result = run("import regard, sys; print(regard.__version__); sys.exit('torch' in sys.modules)")
    assert result.returncode == 0
    assert result.stdout.strip() == metadata.version("regard")


def test_an_unknown_name_is_an_attribute_error_with_the_nearest():
    with pytest.raises(AttributeError, match=r'regard has no name "Casual"\. Did you mean "Causal"'):
        _ = regard.Casual
    with pytest.raises(AttributeError, match=r'regard has no name "zzzzzz"\.$'):
        _ = regard.zzzzzz
    assert not hasattr(regard, "Casual")


def test_dir_and_all_name_what_is_not_yet_imported():
    result = run("import regard; print(*dir(regard)); print(*regard.__all__)")
    everything, public = (set(line.split()) for line in result.stdout.splitlines())
    assert set(HOMES) == public
    assert public <= everything


def test_type_checkers_see_the_same_table():
    seen = {
        alias.asname: node.module
        for node in ast.walk(ast.parse(Path(regard.__file__).read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname
    }
    assert seen == HOMES


def test_the_package_says_that_it_is_typed():
    assert (Path(regard.__file__).parent / "py.typed").exists()


def test_every_requirement_is_pinned_and_the_pin_satisfies_it():
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    pins = {canonicalize_name(name): version for name, version in pins.items()}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    for requirement in (Requirement(text) for group in groups for text in group):
        assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)]), requirement
