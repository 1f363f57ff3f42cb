"""Folders that are read: only whole ones, all from one save; the damaged are refused by name."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.checks import plural
from regard.storage import folder
from regard.storage.filesystem import FolderError

FILES = {"config.toml": b"width = 8\n", "weights": bytes(range(256)) * 40}


def everything(saved):
    return {name: saved.read_bytes(name) for name in saved.manifest.files}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A folder, and what its files held when it was saved."""
    target = tmp_path_factory.mktemp("whole") / "model"
    folder.save(target, FILES, editable={"README.md": b"card"})
    return target, {path.name: path.read_bytes() for path in target.iterdir() if path.name != "README.md"}


def refused_or_not(target, name, data):
    """Why the folder is refused when this file holds other bytes; it is mended afterwards."""
    before = (target / name).read_bytes()
    (target / name).write_bytes(data)
    try:
        folder.verify(target)
    except FolderError as error:
        return str(error)
    finally:
        (target / name).write_bytes(before)
    return "not refused"


@given(st.data())
def test_a_flipped_bit_is_refused_and_the_file_is_named(whole, data):
    target, files = whole
    name = data.draw(st.sampled_from(sorted(files)))
    place, bit = data.draw(st.integers(0, len(files[name]) - 1)), data.draw(st.integers(0, 7))
    flipped = bytearray(files[name])
    flipped[place] ^= 1 << bit
    assert str(target / name) in refused_or_not(target, name, flipped)
    folder.verify(target)


@given(st.data())
def test_a_file_that_is_cut_short_is_refused_and_named(whole, data):
    target, files = whole
    name = data.draw(st.sampled_from(sorted(files)))
    length = data.draw(st.integers(0, len(files[name]) - 1))
    message = refused_or_not(target, name, files[name][:length])
    assert str(target / name) in message
    if name != "manifest.json":
        assert f"{name}: the file is truncated: {plural(length, 'byte')} instead of {len(files[name]):,}." in message


def test_every_flipped_bit_of_a_manifest_is_refused(whole):
    """All of them: the seal must cover what no file's sha256 does."""
    target, files = whole
    for place in range(len(files["manifest.json"])):
        for bit in range(8):
            flipped = bytearray(files["manifest.json"])
            flipped[place] ^= 1 << bit
            with pytest.raises(FolderError, match=r"manifest\.json"):
                folder.decode_manifest(bytes(flipped), target / "manifest.json")


def test_more_bytes_are_refused(whole):
    target, files = whole
    for name in files:
        assert str(target / name) in refused_or_not(target, name, files[name] + b"\n")
    assert refused_or_not(target, "README.md", b"mine") == "not refused"


def test_newest_whole_folder_and_why_the_others_are_not(tmp_path):
    steps = [tmp_path / f"step-{step}" for step in (5, 4, 3, 2, 1)]
    for step in steps[1:]:
        folder.save(step, FILES)
    (steps[1] / "weights").write_bytes(FILES["weights"][:-1])
    (steps[2] / "config.toml").write_bytes(FILES["config.toml"].swapcase())
    found = folder.newest(steps)
    assert found.folder == steps[3]
    assert [path for path, _ in found.refused] == steps[:3]
    reasons = [reason for _, reason in found.refused]
    assert "step-5: there is no such folder" in reasons[0]
    assert "step-4/weights: the file is truncated: 10,239 bytes instead of 10,240" in reasons[1]
    assert "step-3/config.toml: the file was changed" in reasons[2]
    assert folder.newest([]) == (None, [])
    assert folder.newest(steps[:1]).folder is None


def test_what_cannot_be_read(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"")
    (tmp_path / "some").mkdir()
    for name, message in (("nothing", "there is no such folder"), ("some", "it has no manifest.json"),
                          ("model.safetensors", "this is a file")):
        with pytest.raises(FolderError, match=f"{name}: .*{message}"):
            folder.verify(tmp_path / name)
    folder.save(tmp_path / "model", {**FILES, "text": b"abc\xff"})
    for name, message in (("tokenizer.model", r'there is no "tokenizer\.model", only'),
                          ("text", r"model/text: byte 3 \(0xFF\)")):
        with pytest.raises(FolderError, match=message):
            folder.load(tmp_path / "model", lambda saved, name=name: saved.read_text(name))


def test_a_folder_that_was_only_claimed_says_so(tmp_path):
    """As a training leaves it that ends before there is anything to save."""
    folder.save(tmp_path / "model", {})
    with pytest.raises(FolderError, match=r"model: nothing is saved here yet"):
        folder.load(tmp_path / "model", lambda saved: saved.read_text("config.toml"))


def test_bytes_are_checked_as_they_are_read(tmp_path):
    """Also where the file changes after the folder was verified."""
    folder.save(tmp_path / "model", FILES)
    saved = folder.load(tmp_path / "model", lambda saved: saved)
    (tmp_path / "model" / "weights").write_bytes(bytes(10240))
    with pytest.raises(FolderError, match=r"model/weights: the file was changed"):
        saved.read_bytes("weights")
    (tmp_path / "model" / "weights").unlink()
    with pytest.raises(FolderError, match="model/weights: cannot be read"):
        saved.read_bytes("weights")


def test_a_folder_is_read_without_torch(whole):
    code = "import sys; from regard.storage import folder; folder.verify(sys.argv[1]); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code, str(whole[0])], timeout=60).returncode == 0


def test_a_folder_that_is_replaced_while_it_is_read_is_read_again(tmp_path):
    target, calls = tmp_path / "model", []
    folder.save(target, {"a": b"1", "b": b"1"})

    def reader(saved):
        calls.append(saved.read_bytes("a"))
        if len(calls) <= 2:  # two saves, after which the first folder's number may be in use again
            folder.save(target, {"a": b"2", "b": b"2"})
            folder.save(target, {"a": b"1", "b": b"3"})
        return saved.read_bytes("a") + saved.read_bytes("b")

    assert folder.load(target, reader) == b"13"
    assert len(calls) == 3

    def meddling(saved):
        folder.save(target, {"a": b"4"})

    with pytest.raises(FolderError, match="replaced it 20 times while it was read"):
        folder.load(target, meddling)
