"""Files that hold no tensors, or no longer: refused in words, with their name, before anything is allocated or run."""

import io
import json
import os
import pickle
import struct
import zipfile
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.storage import weights

ATTEMPTS = [weights.read_header, weights.read_tensors]


def file_of(header, data=b""):
    """A file with this header, true or not."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(shape, start, end, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    path = tmp_path_factory.mktemp("good") / "model.safetensors"
    tied = torch.randn(3, 4)
    weights.write_tensors(path, {"a": tied, "b": tied, "c": torch.arange(5)}, {"key": "value"})
    return path.read_bytes()


@pytest.mark.parametrize("data", [
    b"", b"\0", b"\0" * 8, b"hello, world, this is no file of tensors", os.urandom(1000),
    struct.pack("<Q", 2**63) + b"{}", struct.pack("<Q", 2**64 - 1) + b"{}", struct.pack("<Q", 10**8 + 1) + b"{}",
    struct.pack("<Q", 1000) + b"{}", file_of(b"[]"), file_of(b"{"), file_of(b"[" * 10_000), file_of(b"\xff\xfe"),
    file_of({"a": entry([2], 0, 8)}),                                                  # no data
    file_of({"a": entry([2], 0, 8)}, b"\0" * 7),                                       # cut short
    file_of({"a": entry([2], 0, 8)}, b"\0" * 9),                                       # too much
    file_of({"a": entry([2], 0, 8), "b": entry([2], 4, 12)}, b"\0" * 12),              # overlapping
    file_of({"a": entry([2], 0, 8), "b": entry([2], 12, 20)}, b"\0" * 20),             # a gap
    file_of({"a": entry([2], 8, 0)}, b"\0" * 8),                                       # backwards
    file_of({"a": entry([2], 2**64 - 8, 2**64)}, b"\0" * 8),                           # out of the file
    file_of({"a": entry([3], 0, 8)}, b"\0" * 8),                                       # another size than its shape's
    file_of({"a": entry([10**6, 10**6], 0, 4 * 10**12)}, b"\0" * 8),                   # 4 TB in 8 bytes
    file_of({"a": entry([2**62, 2**62], 0, 8)}, b"\0" * 8),                            # more than can be counted
    file_of({"a": entry([-2], 0, 8)}, b"\0" * 8), file_of({"a": entry([2.0], 0, 8)}, b"\0" * 8),
    file_of({"a": entry([2], 0, 8, "F33")}, b"\0" * 8), file_of({"a": entry([16], 0, 8, "F4")}, b"\0" * 8),
    file_of({"a": {"dtype": "F32"}}), file_of({"__metadata__": {"step": 3}}), file_of({"__metadata__": []}),
])
def test_what_holds_no_tensors(tmp_path, data):
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    for attempt in ATTEMPTS:
        with pytest.raises(ValueError, match=r"model\.safetensors: "):
            attempt(path)


@given(st.data())
def test_cut_short_anywhere(tmp_path_factory, good, data):
    path = tmp_path_factory.getbasetemp() / "short.safetensors"
    length = data.draw(st.integers(0, len(good) - 1))
    path.write_bytes(good[:length])
    for attempt in ATTEMPTS:
        with pytest.raises(ValueError,
                           match=rf"short\.safetensors: not a complete safetensors file \({length} bytes?\)"):
            attempt(path)


@given(st.data())
def test_bytes_changed_anywhere(tmp_path_factory, good, data):
    """A changed number cannot be seen here, only by its sha256; whatever else is wrong is refused in words."""
    path = tmp_path_factory.getbasetemp() / "changed.safetensors"
    changed = bytearray(good)
    for place in data.draw(st.lists(st.integers(0, len(good) - 61), min_size=1, max_size=4)):  # the header
        changed[place] = data.draw(st.integers(0, 255))
    path.write_bytes(changed)
    for attempt in ATTEMPTS:
        try:
            attempt(path)
        except ValueError as error:
            message = str(error)
        else:
            message = "changed.safetensors: "
        assert "changed.safetensors: " in message


class Trap:
    """An object that leaves a trace when it is unpickled."""

    def __init__(self, trace):
        self.trace = str(trace)

    def __reduce__(self):
        return open, (self.trace, "w")


def zipped(state):
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def legacy(state):
    buffer = io.BytesIO()
    torch.save(state, buffer, _use_new_zipfile_serialization=False)
    return buffer.getvalue()


def archive(state):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("data.pkl", pickle.dumps(state))
    return buffer.getvalue()


PICKLERS = {"torch.save": zipped, "torch.save, old": legacy, "zip": archive, **{
    f"protocol {protocol}": lambda state, protocol=protocol: pickle.dumps(state, protocol) for protocol in range(6)}}


@pytest.mark.parametrize("kind", PICKLERS)
@pytest.mark.parametrize("wrap", [dict, OrderedDict, lambda items: [items], lambda items: items["trap"]])
def test_a_pickle_is_never_loaded_and_told(tmp_path, kind, wrap):
    data = PICKLERS[kind](wrap({"trap": Trap(tmp_path / "trace"), "more": 1}))
    pickle_module = torch if kind.startswith("torch") else pickle
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    for attempt in ATTEMPTS:
        with pytest.raises(ValueError, match=r"model\.safetensors: .* pickle .* runs the code in it"):
            attempt(path)
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]
    if kind != "zip":  # the trap is a trap
        options = {"weights_only": False} if pickle_module is torch else {}
        loaded = pickle_module.load(io.BytesIO(data), **options)
        close(loaded)
        assert (tmp_path / "trace").exists()


def close(loaded):
    """Close the file that the trap opened, wherever it is."""
    while not hasattr(loaded, "close"):
        loaded = loaded["trap"] if isinstance(loaded, dict) else loaded[0]
    loaded.close()


@pytest.mark.parametrize("name", ["model.bin", "model.pt", "model.pth", "last.ckpt", "a.pkl", "a.pickle", "A.PT"])
def test_files_with_names_of_pickles_are_never_opened(tmp_path, name):
    os.mkfifo(tmp_path / name)  # to open it would never end
    for attempt in ATTEMPTS:
        with pytest.raises(ValueError, match=rf"{name}: a {Path(name).suffix} file is a pickle"):
            attempt(tmp_path / name)
    with pytest.raises(ValueError, match=rf"{name}: a {Path(name).suffix} file is a pickle"):
        weights.write_tensors(tmp_path / name, {})


def test_what_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name, reason in ((".", "a folder"), ("nothing", "No such file"), ("pipe", "a pipe")):
        for attempt in ATTEMPTS:
            with pytest.raises(ValueError, match=reason):
                attempt(tmp_path / name)


def test_a_large_file_is_described_without_reading_it(tmp_path):
    """Four terabytes that are not there: what is asked is answered from the header."""
    path = tmp_path / "large.safetensors"
    path.write_bytes(file_of({"a": entry([10**6, 10**6], 0, 4 * 10**12)}))
    os.truncate(path, path.stat().st_size + 4 * 10**12)
    assert weights.read_header(path).elements == 10**12
