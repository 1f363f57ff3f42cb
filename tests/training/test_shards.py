"""Parts of tensors: where they lie, how they are written, and that any piece can be read from any parts."""

import json
import os
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from refusals import assert_named

from regard.storage import weights
from regard.training.snapshot import SHARDS_KEY, StoredState, TensorShard, chunk_bounds, local_shard, write_shards


def parts_of(tensor, processes, dimension=0):
    """What each of so many processes would hold."""
    cut = [chunk_bounds(tuple(tensor.shape), dimension, rank, processes) for rank in range(processes)]
    return [TensorShard(tensor[tuple(slice(first, first + size) for first, size in zip(offsets, extent, strict=True))],
                 tuple(tensor.shape), offsets) for offsets, extent in cut]


def stored(folder, *files):
    """Each of these in a file of its own."""
    paths = [folder / f"{number}.safetensors" for number in range(len(files))]
    for path, tensors in zip(paths, files, strict=True):
        write_shards(path, tensors)
    return StoredState.of(paths, {"step": 1})


@given(st.integers(0, 20), st.integers(1, 9), st.integers(0, 2))
def test_chunks_are_those_of_torch(size, processes, dimension):
    """As `Shard` cuts: torch.chunk, and empty parts for those for whom nothing is left."""
    shape = [2, 3, 4]
    shape[dimension] = size
    tensor = torch.arange(torch.Size(shape).numel()).reshape(shape)
    chunks = tensor.chunk(processes, dimension) if size else []
    for rank, part in enumerate(parts_of(tensor, processes, dimension)):
        if rank < len(chunks):
            assert torch.equal(part.tensor, chunks[rank])
        else:
            assert part.tensor.shape[dimension] == 0


@pytest.mark.parametrize("dtype", list(weights.DTYPES.values()), ids=str)
def test_every_dtype_comes_back(tmp_path, dtype):
    tensor = torch.randint(0, 2, (5, 3)).to(dtype)
    files = [{"a": part} for part in parts_of(tensor, 2)]
    files[0]["b"] = tensor[0, 1]
    found = stored(tmp_path, *files)
    assert found.tensors == {"a": (dtype, (5, 3)), "b": (dtype, ())}
    for name, want in (("a", tensor), ("b", tensor[0, 1])):
        assert found.tensor(name).dtype == dtype
        assert torch.equal(found.tensor(name).to(torch.complex64), want.to(torch.complex64))


@given(data=st.data())
def test_any_piece_of_any_parts(tmp_path_factory, data):
    """However a tensor was cut, a piece of it is the piece of the whole."""
    shape = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=3))
    tensor = torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape)
    dimension = data.draw(st.integers(0, len(shape) - 1))
    cut = parts_of(tensor, data.draw(st.integers(1, 4)), dimension)
    found = stored(tmp_path_factory.mktemp("pieces"), *({"a": part} for part in cut))
    spans = [sorted(data.draw(st.lists(st.integers(0, size), min_size=2, max_size=2))) for size in shape]
    piece = found.part("a", [start for start, _ in spans], [end - start for start, end in spans])
    assert torch.equal(piece, tensor[tuple(slice(*span) for span in spans)])
    assert torch.equal(found.tensor("a"), tensor)


def test_whole_tensors_tied_ones_and_values(tmp_path):
    tied, scalar = torch.randn(4, 3), torch.tensor(7)
    found = stored(tmp_path, {"model.a": tied, "model.b": tied, "average.a": tied + 1, "steps": scalar,
                              "models": torch.ones(1)})
    assert set(found.under("model")) == {"a", "b"}
    assert torch.equal(found.under("model")["b"], tied)
    assert torch.equal(found.under("average")["a"], tied + 1)
    assert found.under("optimiser") == {}
    assert found.tensor("steps") == 7
    assert found.values == {"step": 1}
    assert (tmp_path / "0.safetensors").stat().st_size < 3 * 4 * 3 * 4 + 1000  # the tied one is there once


def test_what_is_read_is_no_view_of_the_file(tmp_path):
    found = stored(tmp_path, {"a": torch.ones(3)})
    tensor, path = found.tensor("a"), tmp_path / "0.safetensors"
    with path.open("r+b") as file:
        file.seek(-12, os.SEEK_END)
        file.write(bytes(12))
    assert torch.equal(tensor, torch.ones(3))
    tensor.zero_()


def test_like_another(tmp_path):
    found = stored(tmp_path, {"model.a": torch.ones(3, 2), "model.b": torch.ones(2)})
    assert torch.equal(found.like("model.a", torch.zeros(3, 2)), torch.ones(3, 2))
    assert set(found.under("model", like={"a": torch.zeros(3, 2), "c": torch.zeros(1)})) == {"a", "b"}
    assert_named(lambda: found.like("model.a", torch.zeros(2, 3)), ["`model.a`", "(2, 3)", "(3, 2)"])
    assert_named(lambda: found.under("model", like={"b": torch.zeros(3)}), ["`model.b`", "(3,)", "(2,)"])
    assert_named(lambda: found.tensor("modle.a"), ["2 stored tensors", "'modle.a'", 'Did you mean "model.a"?'])
    for offsets, shape in (((1, 0), (3, 2)), ((-1, 0), (1, 2)), ((0,), (3,)), ((0, 0), (3, -1))):
        assert_named(lambda offsets=offsets, shape=shape: found.part("model.a", offsets, shape),
                     ["'model.a'", "(3, 2)", str(shape)])


def test_plain_tensors_are_their_own_part():
    tensor, parameter = torch.ones(2), torch.nn.Parameter(torch.ones(2))
    assert local_shard(tensor) is tensor
    assert local_shard(parameter) is parameter
    assert local_shard(torch.ones(2).as_subclass(type("Other", (torch.Tensor,), {}))).shape == (2,)


@pytest.mark.parametrize(("shape", "offsets"), [((3, 2), (2, 0)), ((3, 2), (0,)), ((3, 2), (-1, 0)), ((2,), (0, 0))])
def test_a_part_must_lie_in_the_whole(shape, offsets):
    assert_named(lambda: TensorShard(torch.ones(2, 2), shape, offsets), ["`tensor`", "a shard of", str(shape), str(offsets)])


whole = torch.arange(12.0).view(4, 3)


@pytest.mark.parametrize("files", [
    [{"a": TensorShard(whole[:2], (4, 3), (0, 0))}],                                                        # the end
    [{"a": TensorShard(whole[2:], (4, 3), (2, 0))}],                                                        # the beginning
    [{"a": TensorShard(whole[:1], (4, 3), (0, 0))}, {"a": TensorShard(whole[2:], (4, 3), (2, 0))}],                # the middle
    [{"a": TensorShard(whole[:3], (4, 3), (0, 0))}, {"a": TensorShard(whole[2:], (4, 3), (2, 0))}],                # a row twice
    [{"a": TensorShard(whole[:2], (4, 3), (0, 0))}, {"a": TensorShard(whole[:2], (4, 3), (0, 0))}],                # the same twice
    [{"a": whole}, {"a": whole}],                                                                    # all of it twice
    [{"a": TensorShard(whole[:2, :1], (4, 3), (0, 0))}, {"a": TensorShard(whole[2:, 1:], (4, 3), (2, 1))}],        # in two directions
])
def test_parts_that_do_not_make_the_whole(tmp_path, files):
    assert_named(lambda: stored(tmp_path, *files), ["`a`", "stored once and whole, of shape (4, 3)", "0.safetensors"])


def test_parts_of_other_wholes(tmp_path):
    parts = [TensorShard(whole[:2], (4, 3), (0, 0)), TensorShard(whole[2:], (5, 3), (2, 0)), TensorShard(whole[2:].double(), (4, 3), (2, 0))]
    for other in parts[1:]:
        assert_named(lambda other=other: stored(tmp_path, {"a": parts[0]}, {"a": other}), ["1.safetensors: a", "part"])


@pytest.mark.parametrize("told", [
    "[]", "{", '{"a": 3}', '{"a": {"shape": [4, 3]}}', '{"a": {"shape": 4, "offsets": 0}}',
    '{"a": {"shape": ["x"], "offsets": [0]}}', '{"a": {"shape": [1], "offsets": [0]}}'])
def test_headers_that_make_no_sense(tmp_path, told):
    weights.write_tensors(tmp_path / "a.safetensors", {"a": whole}, {SHARDS_KEY: told})
    assert_named(lambda: StoredState.of([tmp_path / "a.safetensors"], {}), ["a.safetensors"])


def test_the_header_is_json_and_nothing_is_pickled(tmp_path):
    write_shards(tmp_path / "a.safetensors", {"a": TensorShard(whole[:2], (4, 3), (0, 0)), "b": whole})
    told = weights.read_header(tmp_path / "a.safetensors").metadata
    assert json.loads(told[SHARDS_KEY]) == {"a": {"shape": [4, 3], "offsets": [0, 0]}}
    (tmp_path / "b.safetensors").write_bytes(pickle.dumps({"a": 1}))
    assert_named(lambda: StoredState.of([tmp_path / "b.safetensors"], {}), ["b.safetensors", "a pickle"])


def test_a_file_that_is_gone_is_told(tmp_path):
    found = stored(tmp_path, {"a": whole})
    (tmp_path / "0.safetensors").unlink()
    assert_named(lambda: found.tensor("a"), ["0.safetensors", "read before it is removed"])
