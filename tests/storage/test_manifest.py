"""Manifests: one way to write them, and what is refused when they are read."""

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard._version import __version__
from regard.storage import folder
from regard.storage import folder as manifest
from regard.storage.filesystem import FolderError
from regard.storage.folder import FileRecord, Manifest

BAD_NAMES = ["", ".", "..", "../x", "/etc/passwd", "a/b", "a/../../b", "a\\b", "..\\x", "C:x", "C:\\x", "//host/x",
             ".hidden", "manifest.json", "a\0b", "a\nb", "a\x1b[31m", "\udcff"]


def sealed(**changes):
    """A manifest with these changes, sealed as if they were meant."""
    content = {"format": 1, "regard": __version__, "files": {}, "editable": {}, **changes}
    seal = FileRecord.of(json.dumps(content).encode()).sha256
    return json.dumps({**content, "seal": seal}, indent=2).encode() + b"\n"


def test_the_layout():
    """What other programs may read: the keys, and the sha256 of the content as everybody computes it."""
    written = Manifest({"b": FileRecord.of(b"abc"), "a": FileRecord.of(b"")}).encoded()
    content = json.loads(written)
    assert list(content) == ["format", "regard", "files", "editable", "seal"]
    assert (content["format"], content["regard"]) == (1, __version__)
    assert content["files"]["b"] == {
        "bytes": 3, "sha256": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"}
    assert sealed(files={name: content["files"][name] for name in "ab"}) == written


names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20).filter(
    lambda name: name.isprintable() and not name.startswith(".") and not set(name) & set("/\\:"))
recorded = st.builds(FileRecord.of, st.binary(max_size=20))


@given(st.dictionaries(names, recorded), st.dictionaries(names, recorded))
def test_read_as_it_was_written(tmp_path_factory, files, editable):
    written = Manifest(files, editable, "0.0.9")
    assert manifest.decode_manifest(written.encoded(), tmp_path_factory.getbasetemp()) == written


@pytest.mark.parametrize("name", BAD_NAMES)
def test_names_that_lead_out_of_the_folder(tmp_path, name):
    with pytest.raises(FolderError, match="must be a plain file name"):
        folder.save(tmp_path / "model", {name: b"x"})
    assert list(tmp_path.iterdir()) == []
    entry = {"bytes": 0, "sha256": FileRecord.of(b"").sha256}
    for kind in ("files", "editable"):
        with pytest.raises(FolderError, match=r"here/manifest\.json: name` must be a plain file name"):
            manifest.decode_manifest(sealed(**{kind: {name: entry}}), tmp_path / "here" / "manifest.json")


def test_a_link_is_no_file_of_the_folder(tmp_path):
    """Not even to the right bytes: what it leads to is not saved, and may be anything."""
    folder.save(tmp_path / "model", {"config.toml": b"secret"})
    for name in ("config.toml", "manifest.json"):
        data = (tmp_path / "model" / name).read_bytes()
        (tmp_path / name).write_bytes(data)
        (tmp_path / "model" / name).unlink()
        (tmp_path / "model" / name).symlink_to(tmp_path / name)
        with pytest.raises(FolderError, match=rf"model/{name}: .*symbolic link"):
            folder.verify(tmp_path / "model")
        (tmp_path / "model" / name).unlink()
        (tmp_path / "model" / name).write_bytes(data)
    folder.verify(tmp_path / "model")


def test_what_is_in_the_place_of_a_file(tmp_path):
    folder.save(tmp_path / "model", {"config.toml": b"x"})
    path = tmp_path / "model" / "config.toml"
    path.unlink()
    with pytest.raises(FolderError, match=r"model/config\.toml: the file is missing \(1 byte\)"):
        folder.verify(tmp_path / "model")
    path.mkdir()
    with pytest.raises(FolderError, match=r"model/config\.toml: .* but found a folder"):
        folder.verify(tmp_path / "model")
    path.rmdir()
    os.mkfifo(path)
    with pytest.raises(FolderError, match=r"model/config\.toml: .* a pipe"):
        folder.verify(tmp_path / "model")


def test_a_manifest_of_a_newer_version():
    """Whatever else it holds: an older version cannot know."""
    for data in (sealed(format=2, regard="9.9"), b'{"format": 12, "regard": "9.9", "parts": []}'):
        with pytest.raises(FolderError, match=r"regard 9\.9 in format (2|12)"):
            manifest.decode_manifest(data, "manifest.json")


NOT_OURS = '"format" or "regard" is missing'
ENTRY = {"bytes": 0, "sha256": "0" * 64}


@pytest.mark.parametrize(("data", "message"), [
    (b"", "invalid JSON"), (b"\xff\xfe", "invalid JSON"), (b"[" * 100_000, "nested too deeply"),
    (b"9" * 5000, "invalid JSON"),
    (b"[]", NOT_OURS), (b"null", NOT_OURS), (b"{}", NOT_OURS),
    (b'{"format": true, "regard": ""}', NOT_OURS), (b'{"format": "1", "regard": ""}', NOT_OURS),
    (sealed(regard=1), NOT_OURS), (sealed(regard=None), NOT_OURS),
    (sealed(format=0), "changed or damaged"), (sealed(more=1), "changed or damaged"),
    (sealed()[:-1], "changed or damaged"), (sealed().replace(b"0.", b"3."), "changed or damaged"),
    (b'{"format": 1, "regard": "0.1.0"}', "changed or damaged"),
    (sealed(files=[]), "changed or damaged"), (sealed(files={"a": []}), "changed or damaged"),
    (sealed(files={"a": {"bytes": 1}}), "changed or damaged"),
    (sealed(files={"a": {**ENTRY, "bytes": -1}}), "changed or damaged"),
    (sealed(files={"a": {**ENTRY, "bytes": True}}), "changed or damaged"),
    (sealed(files={"a": {**ENTRY, "bytes": 1.0}}), "changed or damaged"),
    (sealed(files={"a": {**ENTRY, "sha256": "0" * 63}}), "changed or damaged"),
    (sealed(files={"a": {**ENTRY, "sha256": ["0" * 64]}}), "changed or damaged"),
    (sealed(files={"a": {**ENTRY, "mode": 1}}), "changed or damaged"),
])
def test_what_is_no_manifest(tmp_path, data, message):
    (tmp_path / "manifest.json").write_bytes(data)
    with pytest.raises(FolderError, match=message) as error:
        manifest.read_manifest(tmp_path)
    assert str(tmp_path / "manifest.json") in str(error.value)


@given(st.binary(max_size=200) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(
        st.sampled_from(["format", "regard", "files", "editable", "seal", "a", "bytes"]), inner)).map(
            lambda value: json.dumps(value).encode()))
def test_any_bytes_are_refused_in_words(data):
    with pytest.raises(FolderError, match=r"manifest\.json"):
        manifest.decode_manifest(data, "manifest.json")


def test_a_manifest_too_large_to_be_one_is_not_read(tmp_path):
    with (tmp_path / "manifest.json").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(FolderError, match=r"manifest\.json: .*1,099,511,627,776 bytes"):
        manifest.read_manifest(tmp_path)
