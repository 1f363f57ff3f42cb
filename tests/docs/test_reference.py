"""The reference has every public name, with its signature and what its docstring says."""

import inspect

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


def test_a_new_name_must_be_given_a_place(monkeypatch):
    monkeypatch.setattr(regard, "__all__", [*regard.__all__, "something"])
    with pytest.raises(ValueError, match=r"without a place: \['something'\]"):
        reference.pages()


def test_a_name_without_a_docstring_is_an_error():
    with pytest.raises(ValueError, match="docstring"):
        reference.documented("f", lambda x: x)


def test_arguments_become_a_table():
    lines = ["Do it.", "", "Args:", "    one: the first,", "        on two lines.", "    two: a | b.", "", "Returns:",
             "    three."]
    table = "| argument | |\n|---|---|\n| `one` | the first, on two lines. |\n| `two` | a \\| b. |"
    assert reference.prose("\n".join(lines)) == f"Do it.\n\n{table}\n\n**Returns** three."


def test_what_markdown_would_take_for_its_own_stays():
    assert reference.escaped("a_b_c * `d_e` <x>") == "a\\_b\\_c \\* `d_e` \\<x>"


def test_lines_that_are_indented_stay_lines():
    assert reference.prose("Say:\n\n    a  b\n    c\n\nEnd.") == "Say:\n\n```text\na  b\nc\n```\n\nEnd."


def test_methods_of_torch_are_not_ours(pages):
    assert "Attention.step`" in pages["attention"]
    assert "load_state_dict" not in pages["attention"]
