"""Files of any format: which is which, their pairs, and translations written back."""

import gzip
import io
import json
import os
import subprocess
import sys
import tracemalloc
from types import SimpleNamespace

import pytest

from regard.data.sources.formats import format_of, read_pairs, read_sources, read_texts, write_translations
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
    assert message.startswith("a.txt: Pairs in plain text need two files")
    assert "*.tsv, *.jsonl, *.po, *.tmx" in message
    assert "b.tsv" in refused(lambda: read_pairs([one, two]))
    assert "no other file follows" in refused(lambda: read_pairs([two, one]))


@pytest.mark.parametrize(("names", "message"), [
    ({"source": "en"}, '`source, target` .* source "en" without target'),
    ({"target": "en"}, '`source, target` .* target "en" without source'),
    ({"source": "en", "target": "en"}, '`source, target` .* "en" and "en"'),
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
    with pytest.raises(DataError, match="folder"):
        read_texts([tmp_path])


@pytest.mark.parametrize("content", ["", "\ufeff"])
def test_nothing_is_an_error(file, refused, content):
    empty, other = file("a.en", content), file("b.fr", content)
    assert refused(lambda: read_pairs([empty, other])).startswith("a.en, b.fr: No pairs")
    assert refused(lambda: read_texts([empty])).startswith("a.en: No lines")
    assert refused(lambda: read_pairs([file("a.po", content)])).startswith("a.po: No pairs")
    assert refused(lambda: read_pairs([file("a.tsv.gz", content)])).startswith("a.tsv.gz: No pairs")


def test_one_pair_is_something(file):
    assert short(read_pairs([file("a.tsv", "\t")])) == [("", "")]


def test_texts(file, refused):
    first, second = file("a", "1\n\n2"), file("b.txt.gz", "\u20283\r\n")
    found = read_texts([first, second])
    for _ in range(2):
        assert list(found) == [TextLine("1", Location(first, 1)), TextLine("", Location(first, 2)),
                               TextLine("2", Location(first, 3)),
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
        first = next(iter(found))
        assert (first[:2] if opened is read_pairs else first.text) == expected
        assert refused(lambda found=found: found).startswith("standard input: A pipe can be read only once")
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


@pytest.mark.thorough
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


PO_WRITING = r'''#  Kopf
msgid ""
msgstr ""
"Language: de\n"
"Content-Type: text/plain; charset=UTF-8\n"
"Plural-Forms: nplurals=2; plural=n != 1;\n"

#, fuzzy, c-format
#| msgid "old"
msgctxt   "menu"
msgid "open %s"
msgstr	"öffne "
   "%s"{}

msgid "a file"
msgid_plural "files"
msgstr[0] ""
msgstr[1] "Dateien"

#~ msgid "gone"
#~ msgstr "weg"
# Ende'''.replace("{}", "   ")  # blanks behind a string


@pytest.fixture
def written(tmp_path):
    """Write a file back with these targets, and give what is then in the new one."""

    def write(path, targets, **options):
        output = tmp_path / "output"
        output.unlink(missing_ok=True)
        assert write_translations(path, iter(targets), output, **options) == len(targets)
        return output.read_bytes().decode()

    return write


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_po(file, written, end):
    before = PO_WRITING.replace("\n", end)
    path = file("a.po", before)
    assert [(line.text, line.location.line) for line in read_sources(path)] == [("open %s", 11), ("a file", 15),
                                                                                ("files", 15)]
    after = written(path, ['"%s"\t\\', "eine\nDatei\n", "Dateien"])
    expected = before.replace(f'"öffne "{end}   "%s"   ', r'"\"%s\"\t\\"   ') \
        .replace('msgstr[0] ""', f'msgstr[0] ""{end}"eine\\n"{end}"Datei\\n"')
    assert after == expected


def test_po_where_the_translation_is_missing(file, written):
    path = file("a.po", PO_WRITING)
    assert [line.text for line in read_sources(path, entries="missing")] == ["a file"]
    assert written(path, ["eine Datei"], entries="missing") == PO_WRITING.replace('[0] ""', '[0] "eine Datei"')


TMX_WRITING = """<?xml version='1.0'   encoding="{}"?>\r
<!DOCTYPE tmx SYSTEM "tmx14.dtd"><!-- <tu> -->
<tmx  version="1.4" ><header srclang='en' o-tmf='é'/><body>
  <tu tuid="1" changedate='x'><prop type="p">é &amp;</prop>
    <tuv xml:lang="en" ><seg>one</seg></tuv>\t<tuv   xml:lang='de' a="&gt;"><seg x='/>' >eins <b>!</b></seg ></tuv>
  </tu><tu><tuv xml:lang="en"><seg>two</seg></tuv><tuv xml:lang="de"><seg  /></tuv></tu>
  <tu><tuv xml:lang="en"><seg>three</seg></tuv><tuv xml:lang="fr"><seg>trois</seg></tuv></tu>
</body></tmx>
"""


@pytest.mark.parametrize(("name", "codec"), [("UTF-8", "utf-8"), ("UTF-8", "utf-8-sig"), ("UTF-16", "utf-16"),
                                             ("ISO-8859-1", "iso-8859-1")])
def test_tmx(file, tmp_path, name, codec):
    before = TMX_WRITING.format(name)
    path, output = file("a.tmx", before.encode(codec)), tmp_path / "out.tmx"
    assert [line.text for line in read_sources(path, source="en", target="de")] == ["one", "two", "three"]
    targets = ["<ä> & ]]>\r\n", "zwei €", "drei"]
    assert write_translations(path, targets, output, source="en", target="de") == 3
    euro = "&#8364;" if codec == "iso-8859-1" else "€"
    expected = before.replace("eins <b>!</b>", "&lt;ä&gt; &amp; ]]&gt;&#13;\n")
    expected = expected.replace("<seg  />", f"<seg  >zwei {euro}</seg>")
    expected = expected.replace("trois</seg></tuv>", 'trois</seg></tuv><tuv xml:lang="de"><seg>drei</seg></tuv>')
    assert output.read_bytes() == expected.encode(codec)
    assert [pair.target for pair in read_pairs([output], source="en", target="de")] == targets


def test_plain_has_as_many_lines_out_as_in(file, written):
    path = file("a.en", "\ufeffone\r\n\ntwo\u2028\nthree")
    assert [line.text for line in read_sources(path)] == ["one", "", "two\u2028", "three"]
    assert written(path, ["eins", "", "zwei\x85", "drei"]) == "\ufeffeins\r\n\nzwei\x85\ndrei"
    assert written(file("empty", ""), []) == ""


def test_tsv(file, written):
    path = file("a.tsv", 'one\told\r\n"two\n')
    assert written(path, ["eins", "zwei"]) == 'one\teins\r\n"two\tzwei\n'
    assert written(path, ["zwei"], entries="missing") == 'one\told\r\n"two\tzwei\n'
    path = file("b.tsv", "id\tone\told\tCC0\n")
    assert written(path, ["eins"], source="2", target="3") == "id\tone\teins\tCC0\n"


def test_jsonl(file, written):
    path = file("a.jsonl", '{ "target":"x" ,"n":1.0, "source" : "\\u00e9" }\r\n{"source":"b" }')
    after = written(path, ['"é"\n\u2028', "B"])
    assert after == '{ "target":"\\"é\\"\\n\u2028" ,"n":1.0, "source" : "\\u00e9" }\r\n{"source":"b", "target": "B" }'
    assert [json.loads(line)["target"] for line in after.split("\n")] == ['"é"\n\u2028', "B"]


@pytest.mark.parametrize(("name", "content", "names"), [
    ("a.po", PO_WRITING, {}), ("a.tmx", TMX_WRITING.format("utf-8").replace("fr", "de"), {}),
    ("a.tsv", "a\tb\r\nc\td", {}),
    ("a.jsonl", '{"target": "\\u0061", "source":"b"}\r\n', {}),
    ("a.tsv", "\ufeffa\tb\tc\n", {"source": "3", "target": "1"})])
def test_the_same_targets_leave_the_same_file(file, written, name, content, names):
    path = file(name, content)
    kept = {pair.location: pair.target for pair in read_pairs([path], **names)}
    targets = [kept.get(line.location, "") for line in read_sources(path, **names)]
    if name == "a.po":
        targets = ["öffne %s", "", "Dateien"]  # the fuzzy one is no pair
    assert written(path, targets, **names) == content


def test_gzip_in_and_out(file, tmp_path):
    path = file("a.po.gz", PO_WRITING)
    for name, unpack in (("out.po.gz", gzip.decompress), ("out.po", bytes)):
        write_translations(path, ["öffne %s", "", "Dateien"], tmp_path / name)
        assert unpack((tmp_path / name).read_bytes()).decode() == PO_WRITING


def test_too_few_and_too_many_targets(file, tmp_path):
    path, output = file("a", "1\n2\n3\n"), tmp_path / "out"
    with pytest.raises(ValueError, match=r"`targets` must be as many as .*a has sources, but is only 2 .* at .*a:3\."):
        write_translations(path, ["a", "b"], output)
    with pytest.raises(ValueError, match=r"`targets` must be as many as .*a has sources, 3, but is more instead"):
        write_translations(path, "abcd", output)
    assert not output.exists()


def test_where_anything_fails_no_output_is_left(file, tmp_path):
    output = tmp_path / "out.gz"

    def failing():
        yield "a"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_translations(file("a", "1\n2\n"), failing(), output)
    with pytest.raises(DataError, match="b:2: byte 1: 0xFF"):
        write_translations(file("b", b"1\n\xff\n"), "ab", output)
    with pytest.raises(DataError, match=r"a\.tsv:1: .* a tab"):
        write_translations(file("a.tsv", "1\n"), ["\t"], output)
    with pytest.raises(DataError, match=r"a\.jsonl:1: .* half a surrogate pair"):
        write_translations(file("a.jsonl", '{"source": "a"}'), ["\ud800"], output)
    with pytest.raises(DataError, match=r"a\.po:1: .* half a surrogate pair"):
        write_translations(file("a.po", 'msgid "a"\nmsgstr ""\n'), ["\ud800"], output)
    assert not output.exists()


def test_the_output_is_not_the_input_nor_anything_that_is_there(file, tmp_path):
    path = file("a", "1\n")
    os.link(path, tmp_path / "hard")
    os.symlink(path, tmp_path / "soft")
    for output in (path, os.path.join(tmp_path, ".", "a"), tmp_path / "hard", tmp_path / "soft"):
        with pytest.raises(DataError, match="The output file is the input file"):
            write_translations(path, ["x"], output)
    with pytest.raises(DataError, match="exists already"):
        write_translations(path, ["x"], file("b", "precious"))
    os.symlink(tmp_path / "nowhere", tmp_path / "dangling")
    with pytest.raises(DataError, match="exists already"):
        write_translations(path, ["x"], tmp_path / "dangling")
    with pytest.raises(DataError, match="cannot be written: No such file or directory"):
        write_translations(path, ["x"], tmp_path / "none" / "b")
    assert (tmp_path / "a").read_text() == "1\n"
    assert (tmp_path / "b").read_text() == "precious"


def test_standard_input_and_output(file, monkeypatch, tmp_path):
    with pytest.raises(DataError, match=r"standard input: .* only once"):
        write_translations("-", ["x"], tmp_path / "out")
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"a\tb\nc\n")))
    assert [line.text for line in read_sources("-")] == ["a\tb", "c"]
    code = ("import sys; from regard.data.sources.formats import write_translations\n"
            "write_translations(sys.argv[1], ['\\xe9'], '-')")
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-c", code, file("ä", "a\r\n")]
    done = subprocess.run(command, capture_output=True, timeout=60, env=environment)
    assert (done.stdout, done.stderr) == ("é\r\n".encode(), b"")


def test_entries_by_name(file):
    with pytest.raises(ValueError, match='`entries` must be one of "all", "missing"'):
        read_sources(file("a", ""), entries="mising")
