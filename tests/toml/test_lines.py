"""The line of every key, in every form that TOML has for keys and values."""

import itertools
import re
import tomllib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from regard.toml import KEY_PATTERN, dumps, key_lines, split_key

KEYS = ["a", "b", "c-d", "1", "two words", "dot.ted", 'quo"te', "ap'os", "#no", "[no]", "a = 1", "é", "", "\\", "\n"]


def paths(value, above=()):
    """Every path into the tables and arrays that the standard library read."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inner:
        yield (*above, key)
        yield from paths(part, (*above, key))


def at(tables, path):
    for key in path:
        tables = tables[key]
    return tables


EVERYTHING = '''\
# [comment]
top = 1  # [a] = 2
"quoted.key" = 'a = 1'
dotted . "a b".c = 1979-05-27 07:32:00   # the line of three keys
text = """
[not.a.table]
not_a_key = 1 \\
"" quotes "" inside \\"""
still = 2"""
raw = \'\'\'
[nor] = "this"
\'\'\'\'\'
array = [  # [
  1, "two, ]",
  [3,
   4],   { x = 5, y.z = [6,
   7] },
]
inline = { p = { q = 1 }, r = "}" }

[late.table]   # comes before its outer table
x = 1
[ late ]
y = 2
[[many]]
x = 1
[many.inner]
x = 2
[[many.deep]]
x = 3
[[many.deep]]
[[many]]
[[many.deep]]
x = 4
'''


def test_every_form_by_hand():
    found = key_lines(EVERYTHING)
    assert set(found) == set(paths(tomllib.loads(EVERYTHING)))
    expected = {
        "top": 2, "quoted.key": 3, "dotted": 4, "dotted/a b": 4, "dotted/a b/c": 4, "text": 5, "raw": 10, "array": 13,
        "array/0": 14, "array/1": 14, "array/2": 15, "array/2/0": 15, "array/2/1": 16, "array/3": 16, "array/3/x": 16,
        "array/3/y": 16, "array/3/y/z": 16, "array/3/y/z/0": 16, "array/3/y/z/1": 17, "inline": 19, "inline/p": 19,
        "inline/p/q": 19, "inline/r": 19, "late": 23, "late/table": 21, "late/table/x": 22, "late/y": 24, "many": 25,
        "many/0": 25, "many/0/x": 26, "many/0/inner": 27, "many/0/inner/x": 28, "many/0/deep": 29, "many/0/deep/0": 29,
        "many/0/deep/0/x": 30, "many/0/deep/1": 31, "many/1": 32, "many/1/deep": 33, "many/1/deep/0": 33,
        "many/1/deep/0/x": 34,
    }
    assert {"/".join(map(str, path)): line for path, line in found.items()} == expected


@pytest.mark.parametrize("text", ["", "\n", "# only = 1", "   ", "a=1", "a=1\n"])
def test_small_texts(text):
    assert key_lines(text) == ({("a",): 1} if "a" in text else {})


@pytest.mark.parametrize(("text", "parts"), [
    ("a", ("a",)), (" a . b ", ("a", "b")), ('"a.b".c', ("a.b", "c")), ("'x\\n'", ("x\\n",)),
    ('"x\\n\\u00e9"', ("x\né",)), ("1.5", ("1", "5")), ('""', ("",)),
])
def test_parts_of_a_key(text, parts):
    assert KEY_PATTERN.fullmatch(text)
    assert split_key(text) == parts


@pytest.mark.parametrize("text", ["", ".", "a.", ".a", "a b", "a..b", '"a', "a=b", "é", '"""a"""', "a\nb"])
def test_what_is_no_key(text):
    assert not KEY_PATTERN.fullmatch(text)


class Text:
    """A TOML text in the making: every leaf is v0, v1, ..., so that its true line can be found by looking for it."""

    def __init__(self, draw):
        self.draw, self.count = draw, 0

    def any(self, *options):
        return self.draw(st.sampled_from(options))

    def blank(self):
        return self.any("", " ", "\t ")

    def noise(self):
        """What may stand between lines, and mean nothing."""
        return self.any("", "", "\n", "# [no.table]\n", "  # no_key = 1\n\n", '# """\n')

    def key(self, name):
        bare = bool(re.fullmatch("[A-Za-z0-9_-]+", name))
        basic = '"' + "".join(f"\\u{ord(c):04x}" if c in '\n"\\' else c for c in name) + '"'
        literal = [f"'{name}'"] if "'" not in name and "\n" not in name else []
        return self.any(basic, *literal, *[name] * 3 * bare)

    def dotted(self, path):
        return f"{self.blank()}.{self.blank()}".join(map(self.key, path))

    def leaf(self):
        self.count += 1
        mark = f"v{self.count - 1}"
        fake = self.any("\n[no]\n", "\nno = 1\n", " ]}, # ", "\n\n")
        return self.any(f'"{mark}"', f"'{mark} # = ['", f'"{mark} \\" ]"', f'"""{mark}{fake}"" \\""""""',
                        f"'''{mark}{fake}'' '''''", f'"""{mark}"""')

    def array(self, value):
        def between():
            return self.any("", " ", "\n", " # no = [\n", "\n\n")

        parts = [between() + self.value(part) + between() for part in value]
        return "[" + ",".join(parts) + (self.any("", ",") if parts else "") + between() + "]"

    def value(self, value):
        if isinstance(value, dict):
            return "{" + ",".join(f" {self.pair((key,), part)} " for key, part in value.items()) + "}"
        return self.array(value) if isinstance(value, list) else self.leaf()

    def pair(self, path, value):
        return f"{self.dotted(path)}{self.blank()}={self.blank()}{self.value(value)}"

    def pairs(self, path, value):
        """A value, or a table as dotted keys."""
        if isinstance(value, dict) and value and self.any(True, False):
            return "".join(self.pairs((*path, key), part) for key, part in value.items())
        return f"{self.noise()}{self.blank()}{self.pair(path, value)} {self.any('', '# [no] = 1')}\n"

    def table(self, path, table):
        """The body of a table, then the tables below it that get a header."""
        later = {key: value for key, value in table.items()
                 if (isinstance(value, dict) or tables(value)) and self.any(True, True, False)}
        text = "".join(self.pairs((key,), value) for key, value in table.items() if key not in later)
        for key, value in later.items():
            below = (*path, key)
            for element in value if isinstance(value, list) else [value]:
                opening, closing = ("[[", "]]") if isinstance(value, list) else ("[", "]")
                header = f"{self.blank()}{opening}{self.blank()}{self.dotted(below)}{self.blank()}{closing}"
                text += f"{self.noise()}{header} {self.any('', '# a = 1')}\n{self.table(below, element)}"
        return text


def tables(value):
    return isinstance(value, list) and len(value) > 0 and all(isinstance(part, dict) for part in value)


TREES = st.dictionaries(st.sampled_from(KEYS), st.recursive(
    st.none(), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=3),
    max_leaves=12), max_size=5)


@given(TREES, st.data())
def test_every_leaf_of_any_document_has_its_true_line(tree, data):
    text = Text(data.draw).table((), tree)
    read, found = tomllib.loads(text), key_lines(text)
    assert set(found) == set(paths(read))
    leaves = [path for path in paths(read) if isinstance(at(read, path), str)]
    for path in leaves:
        mark = re.match(r"v\d+", at(read, path))[0]
        position = re.search(rf"\b{mark}\b", text).start()
        assert found[path] == text.count("\n", 0, position) + 1


def numbered(tree, numbers):
    """The tree with a number of its own in the place of each leaf."""
    if isinstance(tree, dict):
        return {key: numbered(part, numbers) for key, part in tree.items()}
    return [numbered(part, numbers) for part in tree] if isinstance(tree, list) else next(numbers)


@given(TREES, st.data())
def test_every_leaf_of_a_written_document_has_its_true_line_among_comments(tree, data):
    tree = numbered(tree, itertools.count(10**17))  # so long that many arrays have several lines
    noise = st.lists(st.sampled_from(["", "# [a]", "  # b = 1"]), max_size=2)
    rows = [row for line in dumps(tree).split("\n") for row in (*data.draw(noise), line)]
    read, found = tomllib.loads("\n".join(rows)), key_lines("\n".join(rows))
    assert read == tree
    for path in paths(read):
        if isinstance(at(read, path), int):
            assert str(at(read, path)) in rows[found[path] - 1]


@given(st.text(st.sampled_from("abv =[]{}\"'\\\n#.,1-:_\t\n\n"), max_size=40))
@example('a = """"""')
@example('a = """"b"""""')
@example("a = ''''''''\nb = 1")
def test_whatever_the_standard_library_reads_has_lines(text):
    try:
        read = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    assert set(key_lines(text)) == set(paths(read))
