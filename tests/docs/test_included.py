"""The code that the pages show is the code of the source."""

import pytest
from paged import ROOT
from scripted import script

included = script("included")


def test_every_block_is_the_code_of_its_file():
    late = [str(page.relative_to(ROOT)) for page in included.pages()
            if included.filled(page.read_text(encoding="utf-8")) != page.read_text(encoding="utf-8")]
    assert late == [], "run: python docs/included.py"


def test_a_function_comes_as_it_stands():
    text = (ROOT / "src/regard/reference/attention.py").read_text(encoding="utf-8")
    code = included.source("regard.reference.attention.dot")
    assert code in text
    assert code.startswith("def dot(")
    assert code.count("def ") == 1


def test_a_method_is_moved_to_the_left_and_decorators_are_kept():
    assert included.source("regard.attention.look.Look.weights").startswith("@torch.no_grad()\ndef weights(self)")
    assert included.source("regard.tokens.Tokens.of").startswith("@staticmethod\ndef of(")


def test_a_block_is_filled_in_and_a_second_time_changes_nothing():
    page = "a\n\n<!-- code: regard.reference.attention.dot -->\n```python\nold\n```\n\nb\n"
    once = included.filled(page)
    assert included.source("regard.reference.attention.dot") in once
    assert "old" not in once
    assert included.filled(once) == once


@pytest.mark.parametrize("name", ["regard.reference.attention.dott", "regard.nowhere.at_all", "regard.mixer.Rows"])
def test_a_name_that_is_not_there_is_an_error(name):
    with pytest.raises(ValueError, match=r"defines no|no file"):
        included.source(name)


def test_a_comment_without_a_block_is_an_error():
    with pytest.raises(ValueError, match="right below"):
        included.filled("<!-- code: regard.reference.attention.dot -->\n\ntext\n")
