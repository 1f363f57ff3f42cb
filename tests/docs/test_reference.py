"""The reference has every public name, with its signature and what its docstring says."""

import inspect
import re

import pytest
from scripted import script

import regard

reference = script("reference")


@pytest.fixture(scope="module")
def pages():
    return reference.pages()


def test_every_public_name_has_one_entry(pages):
    whole = "\n".join(pages.values())
    for name in regard.__all__:
        if name not in reference.NOT_SHOWN:
            assert whole.count(f"\n## `regard.{name}` {{#") == 1, name
            assert f"[`{name}`](" in pages["index"]


def test_every_argument_is_there(pages):
    whole = "\n".join(pages.values())
    for name in regard.__all__:
        thing = getattr(regard, name)
        if inspect.isfunction(thing):
            entry = whole.partition(f"\n## `regard.{name}` ")[2].partition("\n## `regard.")[0]
            for argument in inspect.signature(thing).parameters:
                assert argument in entry, f"{name}: {argument}"


def test_a_new_name_is_on_the_page_of_its_package(monkeypatch):
    def something():
        """Do something new."""

    monkeypatch.setattr(regard, "__all__", [*regard.__all__, "something"])
    monkeypatch.setattr(regard, "something", something, raising=False)
    something.__module__ = "regard.training.something"
    assert "\n## `regard.something` {#" in reference.pages()["tasks"]
    something.__module__ = "regard.elsewhere"
    with pytest.raises(ValueError, match=r"regard\.something of regard\.elsewhere"):
        reference.pages()


def test_a_name_that_is_no_longer_public_is_an_error(monkeypatch):
    monkeypatch.setattr(regard, "__all__", [name for name in regard.__all__ if name != "beam"])
    with pytest.raises(ValueError, match=r"\['beam'\]"):
        reference.pages()


def test_a_name_without_a_docstring_is_an_error():
    with pytest.raises(ValueError, match="docstring"):
        reference.documented("f", lambda x: x)


def test_arguments_become_a_table():
    lines = ["Do it.", "", "Args:", "    one: the first,", "        on two lines.", "    two: a | b.", "", "Returns:",
             "    three."]
    table = "| argument | meaning |\n|---|---|\n| `one` | the first, on two lines. |\n| `two` | a \\| b. |"
    assert reference.prose("\n".join(lines)) == f"Do it.\n\n{table}\n\n**Returns** three."


def test_what_markdown_would_take_for_its_own_stays():
    assert reference.linked("a_b_c * `d_e` <x> $", {}) == "a\\_b\\_c \\* `d_e` \\<x> \\$"


def test_public_names_in_backticks_are_links():
    links = {"Causal": "masks.md#Causal"}
    assert reference.linked("`Causal()` and `Other`", links) == "[`Causal()`](masks.md#Causal) and `Other`"
    assert reference.linked("`regard.Causal`", links) == "[`regard.Causal`](masks.md#Causal)"


def test_arguments_that_share_a_line_have_one_row():
    assert "| `one`, `two` | as before. |" in reference.prose("Do it.\n\nArgs:\n    one, two: as before.")


def test_types_that_public_names_return_are_shown_and_linked(pages):
    assert "\n## `regard.inspection.watch.AttentionRecords` {#AttentionRecords}" in pages["inspection"]
    assert "[`AttentionRecords`](inspection.md#AttentionRecords)" in pages["inspection"]


def test_fields_have_a_table(pages):
    entry = pages["search"].partition("## `regard.Hypothesis`")[2]
    assert "| `end` | `int \\| None` |" in entry


def test_a_method_is_shown_once_and_then_linked(pages):
    assert pages["attention"].count("### `Attention.step`") == 1
    assert "### `BasicAttention.step`" not in pages["attention"]
    assert "[`step`](attention.md#Attention-step)" in pages["attention"].partition("## `regard.BasicAttention`")[2]


def test_every_first_line_is_a_sentence(pages):
    rows = dict(re.findall(r"^\| \[`(\w+)`\]\([^)]*\) \| (.*) \|$", pages["index"], re.MULTILINE))
    assert set(rows) == set(regard.__all__) - reference.NOT_SHOWN
    for name, sentence in rows.items():
        assert re.match(r"[A-Z][\w:-]* \S+ \S.*(?<!al)[.]$", sentence), f"{name}: {sentence}"


def test_every_argument_of_the_library_is_explained():
    """Parts, models and searches: a docstring with `Args:` names all arguments of the signature."""
    for page in ("attention", "masks", "positions", "parts", "models", "search", "inspection"):
        for name in reference.GROUPS[page].names:
            said = reference.documented(name, getattr(regard, name))
            if "\nArgs:" in said:
                explained = set(re.findall(r"[*\w]+", " ".join(re.findall(r"^    ([\w, *]+): ", said, re.MULTILINE))))
                asked = {one for one in inspect.signature(getattr(regard, name)).parameters if one != "self"}
                assert asked <= explained, f"{name}: {sorted(asked - explained)}"


EXAMPLES = re.findall(r"```python\n((?:import [^\n]*\n)+\n.*?)```", "\n".join(reference.pages().values()), re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_run(example):
    """An example that raises an error fails; what it computes is tested elsewhere."""
    exec(compile(example, "example of a docstring", "exec"), {})


def test_there_are_examples():
    assert len(EXAMPLES) > 5


def test_lines_that_are_indented_stay_lines():
    assert reference.prose("Say:\n\n    a  b\n    c\n\nEnd.") == "Say:\n\n```text\na  b\nc\n```\n\nEnd."


def test_methods_of_torch_are_not_ours(pages):
    assert "Attention.step`" in pages["attention"]
    assert "load_state_dict" not in pages["attention"]
