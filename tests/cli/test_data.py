"""`regard data`: the check, its estimate, and the phrasebook."""

import gzip
import json
import os
import pty
import re
import subprocess
import sys

import calling
import pytest
from tests.cli.test_main import assert_quick

REGARD = [sys.executable, "-m", "regard", "data", "check"]
GOOD = "one\tun\ntwo\tdeux\nthree\ttrois\n"


@pytest.fixture
def call(tmp_path):
    """Write files, run the command in their folder, and give its end, its output and what it said.

    It runs as a process of its own where standard input or the environment matter, and in this process elsewhere."""

    def run(*arguments, files=(), stdin=None, **environment):
        for name, content in dict(files).items():
            path = os.path.join(os.fsencode(tmp_path), os.fsencode(name))
            with open(path, "wb") as out:
                out.write(content if isinstance(content, bytes) else content.encode("utf-8"))
        if stdin is None and not environment:
            with pytest.MonkeyPatch.context() as patch:
                patch.chdir(tmp_path)
                patch.setenv("COLUMNS", "80")
                return calling.call("data", "check", *arguments)
        result = subprocess.run([*REGARD, *arguments], cwd=tmp_path, input=stdin, capture_output=True, timeout=60,
                                env={**os.environ, "LC_ALL": "C.UTF-8", **environment})  # fmt: skip
        assert b"Traceback" not in result.stderr
        assert b"\x1b" not in result.stdout + result.stderr
        return result.returncode, result.stdout.decode(), result.stderr.decode()

    return run


@pytest.fixture
def tables(call):
    """The JSON that the command gives."""

    def run(*arguments, **given):
        code, out, said = call(*arguments, "--json", **given)
        assert (code, said) == (0, "")
        return json.loads(out)

    return run


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"a.de": "x\ny\nz\n", "a.en": "x\ny\n"}, ["a.de", "a.en", "3", "2"]),
        ({"a.tsv": b"one\tun\ntwo\tde\xffux\n"}, ["a.tsv:2", "byte 7", "0xFF is not UTF-8"]),
        ({"a.tsv": b"one\tun\n\xed\xa0\x80\tdeux\n"}, ["a.tsv:2", "byte 1", "0xED is not UTF-8"]),  # half a surrogate
        ({"a.tsv": b"one\tu\x00n\n"}, ["a.tsv:1", "byte 6", "NUL"]),
        ({"a.tsv": GOOD.encode("utf-16")}, ["a.tsv", "UTF-16LE"]),
        ({"a.tsv": GOOD.encode("utf-16-be")}, ["a.tsv", "UTF-16BE"]),
        ({"a.tsv": GOOD.replace("\n", "\r")}, ["a.tsv", "CR"]),
        ({"a.tsv": ""}, ["a.tsv", "No pairs"]),
        ({"a.de": "", "a.en": ""}, ["a.de", "No pairs"]),
        ({"a.tsv.gz": gzip.compress(GOOD.encode() * 99)[:-9]}, ["a.tsv.gz", "truncated"]),
        ({"a.tsv.gz": GOOD}, ["a.tsv.gz", "gzip"]),
        ({"a.tsv": GOOD + "four\tqua\ttre\n"}, ["a.tsv:4", "3 columns"]),
        ({"a.tsv": "four quatre\n"}, ["a.tsv:1", "1 column"]),
        ({"a.jsonl": '{"source": "a", "target": "b"}\n{"source": "c"}\n'}, ["a.jsonl:2", "target"]),
        ({"a.jsonl": '{"source": "a", "target": 3}\n'}, ["a.jsonl:1", "target"]),
        ({"a.jsonl": '{"source": "a"\n'}, ["a.jsonl:1"]),
        ({"a.de": GOOD}, ["a.de", "two files"]),
    ],
)
def test_data_that_cannot_be_read_is_one_message_with_the_place(call, files, said):
    code, out, err = call(*files, files=files)
    assert (code, out) == (2, "")
    assert err.startswith("Error: ")
    assert err.count("\n") == 1
    for word in said:
        assert word in err


@pytest.mark.thorough
def test_no_such_file_a_folder_and_no_permission(call, tmp_path):
    (tmp_path / "folder.tsv").mkdir()
    for name, said in (("none.tsv", "no such file"), ("folder.tsv", "folder")):
        code, out, err = call(name)
        assert (code, out) == (2, "")
        assert name in err
        assert said in err
    assert call("good.tsv", "--validation", "none.tsv", files={"good.tsv": GOOD})[0] == 2
    if os.geteuid():
        (tmp_path / "good.tsv").chmod(0)
        assert "permission" in call("good.tsv")[2]


def test_a_table(call):
    bad = "\tquatre\nfive\tcinq\nfive\tcinq\nsix six\tsix six\nhe said so\tcafÃ©\n"
    code, out, err = call("a.tsv", files={"a.tsv": GOOD + bad})
    assert (code, err) == (0, "")
    for row in (r"read +8 +100\.00%", r"kept +5 +62\.50%", r"skipped +3 +37\.50%", r"words +7 +5", r"target words +1"):
        assert re.search(row, out), row
    for line in ("1  empty: ", "1  copy: ", "1  duplicate: ", "1  mojibake: ", "a.tsv:4", "a.tsv:6", "cafÃ©"):
        assert line in out
    assert "too_long" not in out  # what did not happen takes no line


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("files", "rule", "lines"),
    [
        ({"a.tsv": GOOD + " \tx\n\u00a0\tx\n\u200b\tx\nx\t\ufeff\n\t\n"}, "empty", [4, 5, 6, 7, 8]),
        ({"a.de": "x\n\ny\n\n", "a.en": "a\nb\n\nc\n"}, "empty", [2, 3, 4]),
        ({"a.tsv": GOOD * 3}, "duplicate", [4, 5, 6, 7, 8, 9]),
        ({"a.tsv": GOOD + "a" * 10_000_000 + "\tb\n"}, "too_long", [4]),
        ({"a.tsv": GOOD + "a" * 60 + "\tbbbbbb\n"}, "ratio", [4]),
        ({"a.tsv": GOOD + "Paris est belle\tParis est belle\n"}, "copy", [4]),
    ],
)
def test_what_is_dropped(tables, files, rule, lines):
    found = tables(*files, files=files)
    first = next(iter(files))
    assert found["dropped"][rule] == {"count": len(lines), "first": [f"{first}:{line}" for line in lines]}
    assert found["pairs"]["dropped"] == len(lines)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("a\u2028b\tc", "line_breaks"), ("a\u0085b\tc", "line_breaks"), ("a\x0bb\tc", "line_breaks"),
        ("a\tb\x0cc", "line_breaks"), ("a\tb\rc", "line_breaks"), ("a\x1b[31m\tb", "control"),
        ("a\t\ufffd!", "replacement"), ("a\tcafÃ©", "mojibake"), ("a\tcafe\u0301", "decomposed"),
        (" a\tb", "outer_spaces"), ("one\tune", "repeated_source"),
    ],
)  # fmt: skip
def test_what_is_noticed_and_kept(tables, line, rule):
    """Only LF and CRLF end a line: every one of these is one pair, the fourth, and there is one behind it."""
    found = tables("a.tsv", files={"a.tsv": f"{GOOD}{line}\nend\tfin\n"})
    assert found["pairs"] == {"read": 5, "kept": 5, "dropped": 0}
    assert found["noticed"][rule] == {"count": 1, "first": ["a.tsv:4"]}
    assert [entry["where"] for entry in found["look_at"]] == ([] if rule == "repeated_source" else ["a.tsv:4"])


@pytest.mark.thorough
@pytest.mark.parametrize(
    "files",
    [
        {"a.tsv": b"\xef\xbb\xbf" + GOOD.encode()},
        {"a.tsv": GOOD.replace("\n", "\r\n")},
        {"a.tsv": GOOD.rstrip("\n")},
        {"a.de": "one\r\ntwo\r\nthree\r\n", "a.en": "un\ndeux\ntrois\n"},
        {"a.tsv.gz": gzip.compress(GOOD.encode())},
        {"a.jsonl": "".join(json.dumps(dict(zip(("source", "target"), line.split("\t"), strict=True))) + "\n"
                            for line in GOOD.splitlines())},
        {"with space.tsv": GOOD}, {"[bold]x.tsv": GOOD}, {"déjà vu.tsv": GOOD}, {b"\xff.tsv": GOOD},
        {"e\x1b[1m.tsv": GOOD},
    ],
)  # fmt: skip
def test_files_that_look_odd_and_are_fine(tables, files):
    found = tables(*files, files=files, LC_ALL="C")
    assert found["pairs"] == {"read": 3, "kept": 3, "dropped": 0}
    assert found["source"]["characters"] == len("onetwothree")
    assert not any(entry["count"] for entry in found["noticed"].values())


@pytest.mark.thorough
@pytest.mark.parametrize("arguments", [["--", "-odd.tsv"], ["./-odd.tsv"]])
def test_a_name_with_a_leading_dash(call, arguments):
    code, out, err = call("--json", *arguments, files={"-odd.tsv": GOOD})
    assert (code, err) == (0, "")
    assert json.loads(out)["pairs"]["read"] == 3


@pytest.mark.thorough
def test_standard_input(tables, call):
    assert tables("-", stdin=GOOD.encode())["pairs"]["read"] == 3
    assert call("-", stdin=b"")[0] == 2
    assert call("-", "-", stdin=GOOD.encode())[0] == 2


@pytest.mark.thorough
def test_standard_input_is_not_read_twice(call):
    code, out, err = call("-", "--validation", "-", stdin=GOOD.encode())
    assert (code, out) == (2, "")
    assert err.startswith("Error: standard input: ")
    assert "--validation" in err


@pytest.mark.thorough
@pytest.mark.parametrize("columns", [("1", "0"), ("1", "fr"), ("1", "01"), ("1", "9" * 5000)])
def test_columns_that_cannot_be_meant(call, columns):
    code, out, err = call("a.tsv", "--source", columns[0], "--target", columns[1], files={"a.tsv": GOOD})
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("Error: ")


@pytest.mark.thorough
def test_several_files_and_chosen_columns(tables):
    files = {"a.tsv": "1\tone\tun\n", "b.tsv": "2\ttwo\tdeux\n3\tdrei\t\n"}
    found = tables("a.tsv", "b.tsv", "--source", "3", "--target", "2", files=files)
    assert found["pairs"] == {"read": 3, "kept": 2, "dropped": 1}
    assert found["dropped"]["empty"]["first"] == ["b.tsv:2"]
    assert found["source"]["characters"] == len("undeux")


@pytest.mark.thorough
def test_one_pair(tables):
    found = tables("a.tsv", files={"a.tsv": "one\tun"})
    assert found["pairs"] == {"read": 1, "kept": 1, "dropped": 0}
    assert found["ratio"] == dict.fromkeys(("5", "50", "95", "99", "max"), 0.66)


def test_a_header_and_a_third_column_are_told_beside_the_report(call):
    content = "en\tfr\tnote\n" + "".join(f"A house {n}.\tUne maison {n}.\tCC-BY 2.0 (France)\n" for n in range(3))
    code, out, said = call("a.tsv", "--json", files={"a.tsv": content})
    assert (code, json.loads(out)["pairs"]["read"]) == (0, 3)
    header, columns = said.splitlines()
    assert "en, fr, note" in header
    assert "3 columns" in columns
    assert "--source" in columns
    code, _, said = call("a.tsv", files={"a.tsv": content + "one\tun\n"})
    assert code == 2
    assert said.startswith("Error: a.tsv:5: 2 columns")


@pytest.mark.thorough
@pytest.mark.parametrize("option", [[], ["--json"]])
def test_nothing_to_train_on(call, option):
    code, out, err = call("a.tsv", *option, files={"a.tsv": "\t\nsame\tsame\n"})
    assert code == 2
    assert err == "Error: All 2 pairs are skipped. There is nothing to train on.\n"
    assert "same" in out  # what was found is shown all the same


@pytest.mark.thorough
def test_training_and_validation_are_the_same(call, tables):
    files = {"a.tsv": GOOD + "\tx\n", "b.tsv": "ONE\tun\nx\ty\n"}
    out = call("a.tsv", "--validation", "a.tsv", files=files)[1]
    assert "The validation data is the training data" in " ".join(out.split())
    overlap = tables("a.tsv", "--validation", "b.tsv")["overlap"]
    assert overlap == {"validation": 2, "exact": 0, "folded": 1, "sources": 1,
                       "first": [{"validation": "b.tsv:1", "training": "a.tsv:1"}]}  # fmt: skip


@pytest.mark.thorough
def test_near_duplicates_are_told_with_both_places(call, tables):
    """Several files of each, in text and as JSON."""
    files = {"a.tsv": GOOD + "We don't need it anymore.\tOn n'en veut plus.\n", "v.tsv": "new\tneuf\n",
             "t1.tsv": "one\tun\n", "t2.tsv": "old\tvieux\nI don't need it anymore.\tAutre chose.\n"}
    names = ("a.tsv", "--validation", "v.tsv", "--test", "t1.tsv", "--test", "t2.tsv")
    out = call(*names, files=files, COLUMNS="100")[1]
    assert "t2.tsv:2 ~ a.tsv:4  source, 0.86" in out
    assert "66.67%" in out
    found = tables(*names)
    assert found["test_overlap"]["exact"] == 1
    assert found["near_duplicates"]["validation"]["either"] == 0
    near = found["near_duplicates"]["test"]
    assert {key: near[key] for key in ("pairs", "source", "target", "either", "both")} == {
        "pairs": 3, "source": 2, "target": 1, "either": 2, "both": 1}
    assert [(one["test"], one["training"], one["side"]) for one in near["first"]] == [("t2.tsv:2", "a.tsv:4", "source")]
    assert tables("a.tsv")["near_duplicates"] is None
    code, _, said = call("a.tsv", "--validation", "-", "--test", "-", stdin=b"")
    assert (code, "--validation and --test" in said) == (2, True)


def test_normal_forms_are_mixed(call):
    out = call("a.tsv", files={"a.tsv": "cafe\u0301\tx\ncafé\ty\n"})[1]
    assert "The sources mix Unicode normal forms" in " ".join(out.split())


def test_entries_that_a_reader_leaves_out_are_told(tables):
    pytest.importorskip("polib")
    entry = '{}msgid "{}"\nmsgstr "{}"\n\n'
    content = entry.format("", "one", "un") + entry.format("#, fuzzy\n", "two", "deux")
    found = tables("a.po", files={"a.po": content})
    assert found["pairs"]["read"] == 1
    assert sum(reason["count"] for reason in found["left_out"].values()) == 1


@pytest.mark.thorough
@pytest.mark.parametrize(
    "entity", ['<!ENTITY x SYSTEM "file:///etc/passwd">', '<!ENTITY y "yyyyyyyyyy"><!ENTITY x "&y;&y;&y;&y;&y;&y;&y;">']
)
def test_entities_are_not_followed(call, entity):
    pytest.importorskip("lxml")
    units = "".join(f'<tuv xml:lang="{code}"><seg>&x;</seg></tuv>' for code in ("de", "en"))
    content = f'<!DOCTYPE tmx [{entity}]><tmx version="1.4"><header/><body><tu>{units}</tu></body></tmx>'
    code, out, err = call("a.tmx", "--source", "de", "--target", "en", files={"a.tmx": content})
    assert (code, out) == (2, "")
    assert "a.tmx" in err
    assert "root" not in err


@pytest.mark.thorough
def test_limits_and_rules_can_be_chosen(tables, call):
    files = {"a.tsv": GOOD + "a a a a\tb\nsame\tsame\ncafÃ©\tx\n"}
    found = tables("a.tsv", "--max-words", "3", "--keep", "copy", "--drop", "mojibake", files=files)
    assert {name: entry["first"] for name, entry in found["dropped"].items() if entry["count"]} == {
        "too_long": ["a.tsv:4"], "mojibake": ["a.tsv:6"]}  # fmt: skip
    assert found["noticed"]["copy"]["count"] == 1
    assert found["filters"]["max_words"] == 3
    assert tables("a.tsv", "--max-characters", "3")["dropped"]["too_long"]["count"] == 5
    for wrong, said in ((["--keep", "copies"], 'Did you mean "copy"?'), (["--max-length-ratio", "0.5"],
                                                                         "--max-length-ratio"),
                        (["--max-words", "0"], "--max-words"), (["--source", "1"], "target"),
                        (["--format", "tvs"], 'Did you mean "tsv"?')):  # fmt: skip
        code, out, err = call("a.tsv", *wrong)
        assert (code, out) == (2, "")
        assert said in err


HOSTILE = "[/bold] [red]x\t\x1b[31mred\x1b[0m\u202e\u2066\n :smile: \ta\u2028b\x07\n"


@pytest.mark.thorough
@pytest.mark.parametrize("environment", [{}, {"COLUMNS": "20"}, {"LC_ALL": "C"}, {"PYTHONIOENCODING": "ascii"}])
def test_what_stands_in_the_data_is_shown_and_not_obeyed(call, environment):
    code, out, err = call("a.tsv", files={"a.tsv": HOSTILE + GOOD}, **environment)
    assert (code, err) == (0, "")
    assert "[/bold] [red]x" in " ".join(out.split())
    assert "\\x1b[31mred\\x1b[0m\\u202e\\u2066" in "".join(out.split())
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u202e]", out)
    if "COLUMNS" in environment:
        assert max(map(len, out.splitlines())) <= 20
    if "LC_ALL" in environment or "PYTHONIOENCODING" in environment:
        assert out.isascii()


@pytest.mark.thorough
def test_json_is_ascii_and_one_object(call):
    _, out, _ = call("a.tsv", "--json", files={"a.tsv": "é\tà\u2028\n" + HOSTILE}, PYTHONIOENCODING="ascii")
    assert out.isascii()
    assert json.loads(out)["look_at"][0]["target"].startswith("\x1b[31m")


def run_in_a_terminal(tmp_path, pairs, **environment):
    """What the command writes to a terminal, both streams together, and its end."""
    (tmp_path / "a.tsv").write_text("".join(f"source {number}\ttarget {number}\n" for number in range(pairs)))
    leader, follower = pty.openpty()
    process = subprocess.Popen([*REGARD, "a.tsv"], cwd=tmp_path, stdout=follower, stderr=follower,
                               env={**os.environ, "LC_ALL": "C.UTF-8", "TERM": "xterm", **environment})  # fmt: skip
    os.close(follower)
    written = b""
    while True:
        try:
            block = os.read(leader, 1 << 16)
        except OSError:  # how the end of a terminal is told on Linux
            break
        if not block:
            break
        written += block
    os.close(leader)
    return process.wait(timeout=60), written.decode()


@pytest.mark.thorough
def test_a_terminal_shows_progress_and_bold_headings(tmp_path):
    code, written = run_in_a_terminal(tmp_path, 70_000)
    assert code == 0
    assert "\r65,536 pairs" in written
    assert "\x1b[1mPairs\x1b[0m" in written


@pytest.mark.thorough
def test_no_colour_where_none_is_wanted(tmp_path):
    code, written = run_in_a_terminal(tmp_path, 3, NO_COLOR="1")
    assert code == 0
    assert "\x1b" not in written
    assert "\r65" not in written


@pytest.mark.thorough
def test_it_needs_no_torch():
    code = """
import sys
from regard.cli import main
sys.argv = ["regard", "data", "check", "-"]
try:
    main.run()
except SystemExit as end:
    sys.exit(end.code or int("torch" in sys.modules))
"""
    assert subprocess.run([sys.executable, "-c", code], input=GOOD.encode(), capture_output=True).returncode == 0


@pytest.mark.thorough
def test_help_answers_at_once():
    assert_quick([*REGARD, "--help"])


@pytest.mark.thorough
def test_a_reader_that_leaves(tmp_path):
    (tmp_path / "a.tsv").write_text(GOOD)
    process = subprocess.Popen([*REGARD, "a.tsv"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    with process.stderr as stream:
        assert stream.read() == b""
    assert process.wait(timeout=60) == 1


@pytest.mark.thorough
def test_memory_does_not_grow_with_the_corpus(tmp_path):
    """Ten times the pairs, within what the two tables of pairs and sources may take: 2 x 36 bytes a pair, and 8 MB."""
    code = """
import resource, sys
from regard.cli import main
sys.argv = ["regard", "data", "check", "a.tsv", "--json"]
try:
    main.run()
except SystemExit:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)
"""
    peaks = []
    for count in (10_000, 100_000):
        with open(tmp_path / "a.tsv", "w") as out:
            out.writelines(f"the source number {number} is here\tthe target {number}\n" for number in range(count))
        result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
        peaks.append(int(result.stderr) * 1024)
    words = 2 * 90_000 * 130  # the different words, which are kept up to a limit
    assert peaks[1] - peaks[0] < 90_000 * 72 + words + 8e6


@pytest.mark.thorough
def test_the_phrasebook_is_written_as_tsv(tmp_path):
    def written(*arguments):
        result = subprocess.run([sys.executable, "-m", "regard", "data", "phrasebook", *arguments], cwd=tmp_path,
                                capture_output=True, timeout=60)
        assert result.returncode == 0, result.stderr
        return [line.split("\t") for line in result.stdout.decode().removesuffix("\n").split("\n")]

    from regard.data import phrasebook

    want = list(phrasebook.pairs(50, seed=3, split="test", max_words=12))
    assert written("-n", "50", "--seed", "3", "--split", "test", "--max-words", "12") == [
        [pair.source, pair.target] for pair in want]
    aligned = written("-n", "50", "--seed", "3", "--split", "test", "--max-words", "12", "--align")
    assert [line[2] for line in aligned] == [" ".join(f"{i}-{j}" for i, j in pair.alignment) for pair in want]


def test_a_wrong_split_of_the_phrasebook_is_named(tmp_path):
    result = subprocess.run([sys.executable, "-m", "regard", "data", "phrasebook", "--split", "trian"], cwd=tmp_path,
                            capture_output=True, text=True, timeout=60)
    assert result.returncode == 2
    assert "train" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.thorough
def test_more_of_the_phrasebook_than_there_is(tmp_path):
    result = subprocess.run([sys.executable, "-m", "regard", "data", "phrasebook", "-n", "5", "--max-words", "1"],
                            cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("Error: `count` must be at most 0 for max_words=1")
