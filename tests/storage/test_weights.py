"""Tensors in files: what comes back, how the file is made, and that it is there whole or not at all."""

import errno
import json
import os
import resource
import stat

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import nn

from regard.storage import weights
from regard.storage.weights import TensorSpec

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
          torch.complex64, torch.bool, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint64, torch.uint32,
          torch.uint16, torch.uint8]


def bits(tensor):
    return tensor.detach().resolve_conj().contiguous().reshape(-1).view(torch.uint8)


def same(first, second):
    return first.dtype == second.dtype and first.shape == second.shape and torch.equal(bits(first), bits(second))


def sharing(tensors):
    """Which names are one tensor."""
    groups = {}
    for name, tensor in tensors.items():
        groups.setdefault(tensor.data_ptr() if tensor.numel() else name, set()).add(name)
    return sorted(map(sorted, groups.values()))


@given(st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=8), st.tuples(
    st.sampled_from(DTYPES), st.lists(st.integers(0, 3), max_size=3)), max_size=5), st.dictionaries(
        st.text(st.characters(codec="utf-8"), max_size=5), st.text(st.characters(codec="utf-8"), max_size=5)))
def test_every_dtype_and_shape_comes_back_to_the_bit(tmp_path_factory, described, metadata):
    path = tmp_path_factory.getbasetemp() / "any.safetensors"
    tensors = {}
    for name, (dtype, shape) in described.items():
        raw = torch.randint(0, 2 if dtype == torch.bool else 256, (*shape, dtype.itemsize), dtype=torch.uint8)
        tensors[name] = raw.view(dtype).reshape(shape)
    weights.write_tensors(path, tensors, metadata)
    found, about = weights.read_tensors(path), weights.read_header(path)
    assert found.keys() == tensors.keys() == about.tensors.keys()
    assert all(same(found[name], tensor) for name, tensor in tensors.items())
    assert about.tensors == {name: TensorSpec(tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}
    assert about.metadata == metadata
    assert about.elements == sum(tensor.numel() for tensor in tensors.values())
    theirs = load_file(path)  # and it is a file as others read it
    assert all(same(theirs[name], tensor) for name, tensor in tensors.items())


def test_tensors_that_are_one_stay_one(tmp_path):
    model = nn.ModuleDict({"embedding": nn.Embedding(5, 4), "between": nn.Linear(4, 4), "output": nn.Linear(4, 5)})
    model["output"].weight = model["embedding"].weight
    state = {**model.state_dict(), "third": model["embedding"].weight}
    path = tmp_path / "model.safetensors"
    weights.write_tensors(path, state, {"format": "pt"})
    about, found = weights.read_header(path), weights.read_tensors(path)
    assert about.aliases == {"output.weight": "embedding.weight", "third": "embedding.weight"}
    assert about.metadata == {"format": "pt"}
    assert about.elements == 20 + 16 + 4 + 5
    assert set(load_file(path)) == set(state) - {"output.weight", "third"}
    assert sharing(found) == sharing(state)
    assert all(same(found[name], state[name]) for name in state)
    weights.write_tensors(path, found, about.metadata)
    assert sharing(weights.read_tensors(path)) == sharing(state)


def test_tensors_that_only_overlap_are_stored_each(tmp_path):
    whole = torch.arange(12.0).reshape(3, 4)
    empty = torch.zeros(0)
    square = torch.randn(3, 3)
    tensors = {"turned alone": torch.randn(3, 4).T, "square": square, "turned square": square.T, "first row": whole[0],
               "whole": whole, "turned": whole.T, "row": whole[1], "column": whole[:, 1], "scalar": torch.tensor(3.0),
               "conjugate": torch.zeros(2, 3, dtype=torch.complex64).fill_(1 + 2j).conj(), "empty": empty,
               "again": empty[:], "flat": whole.view(12), "other type": whole.view(torch.int32),
               "wide": whole[:1].expand(5, 4)}
    path = tmp_path / "a.safetensors"
    weights.write_tensors(path, tensors)
    found = weights.read_tensors(path)
    assert weights.read_header(path).aliases == {}
    assert all(same(found[name], tensors[name]) for name in tensors)
    assert sharing(found) == [[name] for name in sorted(tensors)]


def test_what_was_read_is_no_view_of_the_file(tmp_path):
    path = tmp_path / "a.safetensors"
    weights.write_tensors(path, {"a": torch.ones(1000)})
    found = weights.read_tensors(path, device=torch.device("cpu"))["a"]
    path.write_bytes(bytes(path.stat().st_size))
    assert torch.equal(found, torch.ones(1000))
    found.fill_(2.0)
    assert set(path.read_bytes()) == {0}


@pytest.mark.gpu
def test_read_to_a_device(tmp_path):
    tied = torch.randn(3, 4, device="cuda")
    weights.write_tensors(tmp_path / "a.safetensors", {"a": tied, "b": tied, "c": tied.T})
    found = weights.read_tensors(tmp_path / "a.safetensors", device="cuda")
    assert all(tensor.is_cuda for tensor in found.values())
    assert found["a"] is found["b"]
    assert torch.equal(found["c"], tied.T)


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o007, 0o660)])
def test_modes_follow_the_umask(tmp_path, mask, mode):
    before = os.umask(mask)
    try:
        weights.write_tensors(tmp_path / "a.safetensors", {"a": torch.ones(2)})
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.safetensors").stat().st_mode) == mode


def test_the_file_is_synced_before_it_has_its_name(tmp_path, monkeypatch):
    events, fsync, replace = [], os.fsync, os.replace

    def record_sync(handle):
        events.append(os.readlink(f"/proc/self/fd/{handle}").removeprefix(f"{tmp_path}/")[-5:])
        fsync(handle)

    monkeypatch.setattr(os, "fsync", record_sync)
    monkeypatch.setattr(os, "replace", lambda *paths: (events.append("replace"), replace(*paths)))
    weights.write_tensors(tmp_path / "a.safetensors", {"a": torch.ones(2)})
    assert events == [".part", "replace", str(tmp_path)[-5:]]
    assert [path.name for path in tmp_path.iterdir()] == ["a.safetensors"]


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path):
    """A real one is played by the limit on the size of files."""
    path = tmp_path / "a.safetensors"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    for before in (set(), {"a.safetensors"}):
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
        try:
            with pytest.raises(OSError, match=r".*File too large.*a\.safetensors") as error:
                weights.write_tensors(path, {"a": torch.zeros(100_000)})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert error.value.errno == errno.EFBIG
        assert {path.name for path in tmp_path.iterdir()} == before
        weights.write_tensors(path, {"a": torch.ones(3)})
    assert torch.equal(weights.read_tensors(path)["a"], torch.ones(3))


def test_a_disk_that_fails_at_a_sync(tmp_path, monkeypatch):
    def fail(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match=r"No space left on device: '.*a\.safetensors'"):
        weights.write_tensors(tmp_path / "a.safetensors", {"a": torch.ones(3)})
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"No such file .*no/a\.safetensors'"):
        weights.write_tensors(tmp_path / "no" / "a.safetensors", {})


@pytest.mark.parametrize(("tensors", "metadata", "message"), [
    ({"a": [1.0]}, None, r"`tensors\['a'\]` must be a tensor, but is a list"),
    ({3: torch.ones(1)}, None, "`tensors` must be named by strings"),
    ({"__metadata__": torch.ones(1)}, None, "`tensors` must be named by strings other than"),
    ({"a": torch.ones(1, device="meta")}, None, r"`tensors\['a'\]` must be a tensor with values"),
    ({"a": torch.eye(3).to_sparse()}, None, r"`tensors\['a'\]` must be dense"),
    ({"a": torch.ones(1, dtype=torch.complex128)}, None, r"`tensors\['a'\]` must be dense, of dtypes .*complex128"),
    ({}, {"step": 3}, "`metadata` must be strings by strings"),
    ({}, {weights.ALIASES_KEY: "{}"}, "`metadata` must be strings by strings other than"),
])
def test_what_cannot_be_written(tmp_path, tensors, metadata, message):
    with pytest.raises(ValueError, match=message):
        weights.write_tensors(tmp_path / "a.safetensors", tensors, metadata)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("aliases", [
    "", "[]", "[" * 100_000, '{"b": 3}', '{"b": "nothing"}', '{"a": "a"}', '{"b": ["a"]}', '{"b": "c", "c": "a"}'])
def test_aliases_that_make_no_sense(tmp_path, aliases):
    save_file({"a": torch.ones(2)}, tmp_path / "a.safetensors", metadata={weights.ALIASES_KEY: aliases})
    for attempt in (weights.read_header, weights.read_tensors):
        with pytest.raises(ValueError, match=r"a\.safetensors: the metadata"):
            attempt(tmp_path / "a.safetensors")


def test_a_file_of_others(tmp_path):
    """With no metadata at all, as most are."""
    save_file({"a": torch.ones(2), "b": torch.zeros(3, dtype=torch.int8)}, tmp_path / "a.safetensors")
    about = weights.read_header(str(tmp_path / "a.safetensors"))
    assert (about.metadata, about.aliases, about.elements) == ({}, {}, 5)
    assert json.dumps(sorted(weights.read_tensors(tmp_path / "a.safetensors"))) == '["a", "b"]'


def test_equal_content_is_equal_bytes(tmp_path):
    table = torch.arange(6.0).reshape(2, 3)
    tensors = {"ü": table, "second": table, "b": torch.ones(2, dtype=torch.bool)}
    written = set()
    for number in range(20):
        weights.write_tensors(tmp_path / f"{number}.safetensors", tensors, {"regard": "1", "a": 'ü"\\', "z": "2"})
        written.add((tmp_path / f"{number}.safetensors").read_bytes())
    assert len(written) == 1
    assert torch.equal(weights.read_tensors(tmp_path / "0.safetensors")["second"], table)
    assert weights.read_header(tmp_path / "0.safetensors").metadata["a"] == 'ü"\\'
