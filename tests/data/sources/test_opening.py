"""Files by name: formats, twos, order, standard input, and what is said of calls that cannot be meant."""

import io
import subprocess
import sys
import tracemalloc
from types import SimpleNamespace

import pytest

from regard.data.sources.formats import format_of, read_pairs, read_texts
from regard.data.sources.text import DataError, Location, SentencePair, TextLine

TMX = '<tmx><body><tu><tuv xml:lang="en"><seg>e</seg></tuv><tuv xml:lang="fr"><seg>f</seg></tuv></tu></body></tmx>'
PO = 'msgid "i"\nmsgstr "s"\n\n#, fuzzy\nmsgid "z"\nmsgstr "z"\n'


def short(found):
    return [pair[:2] for pair in found]


def test_every_format_at_once_in_the_order_given(file):
    paths = [file("a.jsonl", '{"en": "j", "fr": "k"}'), file("a.en", "1\n2\n"), file("a.fr.gz", "un\ndeux\n"),
             file("B.TSV.GZ", "t\tu\n"), file("a.po", PO), file("a.tmx.gz", TMX), file("b", "3\n"),
             file("c", "trois\n")]
    found = read_pairs(paths, source="en", target="fr")
    assert found.files == tuple(paths)
    for _ in range(2):  # again and again
        assert short(found) == [("j", "k"), ("1", "un"), ("2", "deux"), ("t", "u"), ("i", "s"), ("e", "f"),
                                ("3", "trois")]
    assert list(found)[2] == SentencePair("2", "deux", Location(paths[1], 2))
    assert [line.rpartition("/")[2] for line in found.describe().split("\n")] == [
        "a.jsonl (JSONL)", "a.fr.gz (plain text)", "B.TSV.GZ (TSV)", "a.po (PO; without fuzzy and obsolete entries)",
        "a.tmx.gz (TMX)", "c (plain text)"]


@pytest.mark.parametrize(("path", "kind"), [
    ("a.tsv", "tsv"), ("A.TSV.gz", "tsv"), ("a.po", "po"), ("a.pot.gz", "po"), ("-", "tsv"), ("a.tmx", "tmx"),
    ("a.jsonl", "jsonl"), ("a.gz", "plain"), ("a.tsv.bak", "plain"), ("tsv", "plain"), ("a.json", "plain")])
def test_the_format_of_a_name(path, kind):
    assert format_of(path, None) == kind


def test_a_format_that_is_said_wins(file):
    assert short(read_pairs([file("a.txt", "a\tb\n")], format="tsv")) == [("a", "b")]
    assert short(read_pairs([file("a.tsv", "a\tb\n"), file("b.tsv", "c\n")], format="plain")) == [("a\tb", "c")]
    with pytest.raises(ValueError, match=r'`format` must be one of "plain", .* but is "tvs" instead. .* "tsv"'):
        read_pairs([file("a.txt", "")], format="tvs")


def test_what_is_left_out_is_told(file):
    left = []
    paths = [file("a.po", PO), file("a.tsv", "a\tb\n")]
    found = read_pairs(paths, skipped=lambda location, reason: left.append((location.line, reason)))
    assert left == []
    assert short(found) == [("i", "s"), ("a", "b")]
    assert left == [(5, "fuzzy")]


def test_a_plain_file_alone(file, refused):
    one, two = file("a.txt", "a\tb\n"), file("b.tsv", "a\tb\n")
    message = refused(lambda: read_pairs([one]))
    assert message.startswith("a.txt: Plain files come in twos, sources and then targets, but nothing follows")
    assert "*.tsv, *.jsonl, *.po, *.tmx" in message
    assert "but b.tsv, which holds pairs itself, follows" in refused(lambda: read_pairs([one, two]))
    assert "but nothing follows this one" in refused(lambda: read_pairs([two, one]))


@pytest.mark.parametrize(("names", "message"), [
    ({"source": "en"}, "`source, target` must be given both or not at all, but is 'en' and None"),
    ({"target": "en"}, "`source, target` must be given both or not at all"),
    ({"source": "en", "target": "en"}, "`target` must be another than the source, but is 'en'"),
    ({"source": "1", "target": "0"}, '`source, target` must be two different columns, .* but is "1" and "0"'),
    ({"source": "1", "target": "fr"}, '`source, target` must be two different columns, .* but is "1" and "fr"'),
])
def test_names_that_cannot_be_meant(file, names, message):
    with pytest.raises(ValueError, match=message):
        read_pairs([file("a.tsv", "a\tb\n")], **names)


@pytest.mark.parametrize(("paths", "message"), [
    ([], "`paths` must be at least one file, but is an empty list"),
    ("a.tsv", "`paths` must be a list of paths, but is 'a.tsv'"),
    (["-", "-"], '`paths` must be files, and "-" at most once')])
def test_paths_that_cannot_be_meant(paths, message):
    for opened in (read_pairs, read_texts):
        with pytest.raises(ValueError, match=message):
            opened(paths)


def test_what_cannot_be_read_is_seen_at_once(tmp_path, file, refused):
    with pytest.raises(DataError, match="no such file"):
        read_pairs([file("a.en", "a\n"), tmp_path / "a.fr"])
    with pytest.raises(DataError, match="directory"):
        read_texts([tmp_path])


@pytest.mark.parametrize("content", ["", "\ufeff"])
def test_nothing_is_an_error(file, refused, content):
    empty, other = file("a.en", content), file("b.fr", content)
    assert refused(lambda: read_pairs([empty, other])) == \
        "a.en, b.fr: There is not a single pair in it."
    assert refused(lambda: read_texts([empty])) == "a.en: There is not a single line in it."
    assert "not a single pair" in refused(lambda: read_pairs([file("a.po", content)]))
    assert "not a single pair" in refused(lambda: read_pairs([file("a.tsv.gz", content)]))


def test_one_pair_is_something(file):
    assert short(read_pairs([file("a.tsv", "\t")])) == [("", "")]


def test_texts(file, refused):
    first, second = file("a", "1\n\n2"), file("b.txt.gz", "\u20283\r\n")
    found = read_texts([first, second])
    for _ in range(2):
        assert list(found) == [TextLine("1", Location(first, 1)), TextLine("", Location(first, 2)), TextLine("2", Location(first, 3)),
                               TextLine("\u20283", Location(second, 1))]
    assert found.files == (first, second)
    assert found.describe() == f"{first} (plain text)\n{second} (plain text)"
    table = file("a.tsv", "a\tb\n")
    assert refused(lambda: read_texts([table])).startswith("a.tsv: This is TSV, but plain text is expected")
    assert [line.text for line in read_texts([table], format="plain")] == ["a\tb"]


def test_standard_input(monkeypatch, refused, file):
    for opened, expected in ((read_pairs, ("a", "b")), (read_texts, "a\tb")):
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"a\tb\n")))
        found = opened(["-"])
        assert next(iter(found))[:2 if opened is read_pairs else 1] == (expected if opened is read_pairs else (expected,))
        assert refused(lambda found=found: found).startswith("standard input: It was read already")
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"a\tb\nc\n")))
    assert refused(lambda: read_pairs(["-"])).startswith("standard input:2: 1 column instead of 2")
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"a\n")))
    assert short(read_pairs(["-", file("a.fr", "b\n")], format="plain")) == [("a", "b")]


def test_real_standard_input_and_no_torch():
    code = ("import sys; from regard.data.sources.formats import read_pairs\n"
            "print([tuple(pair) for pair in read_pairs(['-'])], 'torch' in sys.modules, 'numpy' in sys.modules)")
    text = "a\u2028\té\r\n".encode()
    done = subprocess.run([sys.executable, "-c", code], input=text, capture_output=True, timeout=60)
    assert done.stdout.decode().strip() == r"[('a\u2028', 'é', Location(file='standard input', line=1))] False False"


def test_memory_does_not_grow(file):
    unit = TMX[len("<tmx><body>"):-len("</body></tmx>")]
    paths = [file("a.tsv", "a source\ta target\n" * 200_000),
             file("a.po", "".join(f'msgid "{number}"\nmsgstr "x"\n\n' for number in range(20_000))),
             file("a.tmx", f"<tmx><body>{unit * 20_000}</body></tmx>")]
    tracemalloc.start()
    count = sum(1 for _ in read_pairs(paths))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 240_000
    assert peak < 24 << 20
