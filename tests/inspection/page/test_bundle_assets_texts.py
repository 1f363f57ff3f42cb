"""Texts of the page: what has no shape is shown, words are cut by code points, trees have no collisions."""

import random
import sys
import unicodedata

import noded
import pytest

from regard.inspection import labels

pytestmark = noded.needed
SHOWN = {
    "▁dog": "▁dog", "": "∅", "\u200b": "‹U+200B›", "a\u200db": "a\u200db", "a\u200d": "a‹U+200D›",
    "👩\u200d👧": "👩\u200d👧", "\u200d": "‹U+200D›", "a\nb": "a‹U+000A›b", "\u0000": "‹U+0000›",
    "\u001b[2J": "‹U+001B›[2J", " ": "␣", "\u00a0": "␣", "\u2003": "␣", "\u3164": "‹U+3164›",
    "\u202eabc": "‹U+202E›abc", "\u0301": "◌\u0301", "e\u0301": "e\u0301", "<script>": "<script>", "שלום": "שלום",
    "\u200f": "‹U+200F›", "\U000e0041": "‹U+E0041›", "\ufeff": "‹U+FEFF›", "👍🏽": "👍🏽", "\u2028": "‹U+2028›",
    "\ue000": "‹U+E000›", "می\u200cخواهم": "می\u200cخواهم", "❤\ufe0f\ufe0f": "❤\ufe0f‹U+FE0F›",
}
PARTS = ("a", " ", "é", "e", "\u0301", "\u200b", "\u200c", "\u200d", "\u200f", "\ufe0f", "👩", "👧", "🏽", "🏴",
         "\U000e0067", "\u2003", "\u3164", "\n", "ש", "\U000e0100", "\u20e3", "ी")
WEIGHTS = {"0.5": "0.5000", "0": "0", "1e-9": "1.00e−9", "-0.25": "−0.2500", "NaN": "NaN", "1/0": "∞",
           "0.0123": "0.0123", "0.000999": "9.99e−4"}


def test_what_has_no_shape_is_shown(tmp_path):
    told = noded.run(tmp_path, ["text"], "return given.tokens.map(text.seen);", tokens=list(SHOWN))
    assert dict(zip(SHOWN, told, strict=True)) == SHOWN


def assert_as_in_pictures(tmp_path, tokens):
    """Compared in NFC, which pictures bring texts to."""
    told = noded.run(tmp_path, ["text"], "return given.tokens.map(text.seen);", tokens=tokens)
    other = [(token, got, labels.word_label(token, 10_000)) for token, got in zip(tokens, told, strict=True)
             if unicodedata.normalize("NFC", got) != unicodedata.normalize("NFC", labels.word_label(token, 10_000))]
    assert other == []


def test_every_character_has_the_same_name_as_in_pictures(tmp_path):
    """As far as this Python knows it: another version of Unicode may have given it a shape."""
    known = [chr(code) for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code)) not in ("Cs", "Cn")]
    assert_as_in_pictures(tmp_path, known)


def test_what_belongs_together_is_the_same_as_in_pictures(tmp_path):
    chance = random.Random(0)
    assert_as_in_pictures(tmp_path, ["".join(chance.choices(PARTS, k=chance.randint(1, 6))) for _ in range(20_000)])


def test_words_are_cut_by_code_points(tmp_path):
    side = {"tokens": ["▁👩", "‍💻", "▁ok", "</s>"], "text": "👩‍💻 ok",
            "words": [{"start": 0, "end": 3, "first": 0, "last": 1}, {"start": 4, "end": 6, "first": 2, "last": 2}]}
    told = noded.run(tmp_path, ["text"], "return text.wordUnits(given.side);", side=side)
    found = [(one["name"], one["first"], one["last"]) for one in told]
    assert found == [("👩‍💻", 0, 1), ("ok", 2, 2), ("</s>", 3, 3)]


@pytest.mark.parametrize(("before", "after", "expected"), [
    ("a b c", "a x c", "a -b +x c"), ("a", "a b", "a +b"), ("a b", "", "-a -b"), ("", "a", "+a"), ("a b", "a b", "a b"),
])
def test_differences_keep_what_is_common(tmp_path, before, after, expected):
    lines = "return text.differences(given.before, given.after);"
    told = noded.run(tmp_path, ["text"], lines, before=before.split(), after=after.split())
    signs = {"same": "", "gone": "-", "new": "+"}
    assert " ".join(signs[one["kind"]] + one["text"] for one in told) == expected


def test_nothing_but_zero_reads_as_zero(tmp_path):
    told = noded.run(tmp_path, ["numbers"], f"return [{', '.join(WEIGHTS)}].map(numbers.weight);")
    assert dict(zip(WEIGHTS, told, strict=True)) == WEIGHTS


def tree(seed):
    chance, nodes = random.Random(seed), []
    for number in range(60):
        parent = chance.randrange(-1, number) if number > 3 else number - 1
        total = (nodes[parent]["total"] if parent >= 0 else 0) - chance.random()
        nodes.append({"parent": parent, "token": str(number), "log_probability": -1, "total": total,
                      "ended": chance.random() < 0.2, "kept": chance.random() < 0.6})
    return {"beams": 3, "nodes": nodes, "best": [59, 3]}


LAYOUT = """
const shown = tree_layout.shownNodes(given.search, true, 1000);
const { placed, lines, depths } = tree_layout.placeNodes(given.search, shown);
const few = [...tree_layout.shownNodes(given.search, false, 1000)];
return { placed, lines, depths, few, path: tree_layout.pathTo(given.search, 59) };
"""


@pytest.mark.parametrize("seed", range(4))
def test_a_tree_has_a_place_for_every_node(tmp_path, seed):
    search = tree(seed)
    told = noded.run(tmp_path, ["tree_layout"], LAYOUT, search=search)
    places = {one["number"]: (one["depth"], one["line"]) for one in told["placed"]}
    assert sorted(places) == list(range(60))
    assert len(set(places.values())) == 60
    for number, (depth, line) in places.items():
        parent = search["nodes"][number]["parent"]
        assert depth == (0 if parent < 0 else places[parent][0] + 1)
        assert parent < 0 or line >= places[parent][1]
        assert 0 <= line < told["lines"]
        assert depth < told["depths"]
    assert {places[number][1] for number in told["path"]} == {0}
    few = set(told["few"])
    assert set(told["path"]) <= few
    assert all(search["nodes"][number]["parent"] in few | {-1} for number in few)


def test_a_search_of_ten_thousand_steps_is_laid_out(tmp_path):
    nodes = [{"parent": number - 1, "token": "x", "log_probability": 0, "total": 0, "ended": False, "kept": True}
             for number in range(10_000)]
    lines = "const shown = tree_layout.shownNodes(given.search, true, 3000);" \
            "return tree_layout.placeNodes(given.search, shown).depths;"
    told = noded.run(tmp_path, ["tree_layout"], lines, search={"beams": 1, "nodes": nodes, "best": []})
    assert told == 3000


def test_a_path_shares_what_was_written(tmp_path):
    nodes = [{"parent": number - 1, "token": token} for number, token in enumerate("abxd")]
    lines = "return tree_layout.sharedPrefix(given.search, [0, 1, 2, 3], [...'abcd']);"
    assert noded.run(tmp_path, ["tree_layout"], lines, search={"nodes": nodes}) == 2
