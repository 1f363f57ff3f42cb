"""The files of a folder: JSON that is none, shards, an index that lies, and pickles, which are never opened."""

import json

import pytest
import torch

from regard.storage import weights
from regard.storage.huggingface import conversion

INDEX = conversion.INDEX_FILE
A, B = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


@pytest.mark.parametrize(("content", "said"), [
    (b'{\n"a": 1,\n"b": }', ["config.json:3", "JSON", "column 6"]),
    (b'{\n"a": "\xff"}', ["config.json:2", "UTF-8", "0xFF"]),
    (b"[1]", ["config.json", "object", "list"]),
    (b"", ["config.json:1", "JSON"]),
    (b"[" * 100_000, ["config.json", "JSON"]),
    (b'{"a": ' + b"9" * 10_000 + b"}", ["config.json", "JSON"]),
])
def test_a_config_that_is_no_json_object(tmp_path, content, said):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"config\.json") as error:
        conversion.read_config_json(tmp_path)
    assert all(part in str(error.value) for part in said)


def test_a_config_that_is_too_large_is_not_read(tmp_path):
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(conversion.MAX_JSON_BYTES + 1)
    with pytest.raises(ValueError, match="at most"):
        conversion.read_config_json(tmp_path)


def test_what_is_no_folder_of_a_model(tmp_path):
    (tmp_path / "file").touch()
    for folder, said in ((tmp_path / "none", "found nothing"), (tmp_path / "file", "a file"), (tmp_path, "No such file")):
        with pytest.raises(ValueError, match=said):
            conversion.read_config_json(folder)
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"an adapter\. Merge it"):
        conversion.read_config_json(tmp_path)


@pytest.mark.parametrize("name", conversion.PICKLE_FILES)
def test_pickles_are_refused_with_a_remedy(tmp_path, name):
    (tmp_path / name).write_bytes(b"\x80\x02}q\x00.")
    with pytest.raises(ValueError, match="save_pretrained") as error:
        conversion.find_tensors(tmp_path)
    assert ("runs the code" in str(error.value)) == name.startswith("pytorch")
    with pytest.raises(ValueError, match=r"one without"):
        conversion.find_tensors(tmp_path / "other")


@pytest.fixture
def sharded(tmp_path):
    weights.write_tensors(tmp_path / A, {"a": torch.ones(2, 3)})
    weights.write_tensors(tmp_path / B, {"b": torch.ones(4), "c": torch.ones(1)})

    def index(listed):
        (tmp_path / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": listed}))
        return tmp_path

    return index


def test_tensors_in_several_files(sharded):
    found = conversion.find_tensors(sharded({"a": A, "b": B, "c": B}))
    assert {name: entry.shape for name, entry in found.tensors.items()} == {"a": (2, 3), "b": (4,), "c": (1,)}
    assert found.elements == 11


@pytest.mark.parametrize(("listed", "said"), [
    ({"a": "../" + A}, "a plain file name"),
    ({"a": "/etc/passwd"}, "a plain file name"),
    ({"a": A, "b": B}, "'c' in model-00002"),
    ({"a": A, "b": B, "c": A}, "'c' in model-00002"),
    ({"a": A, "b": B, "c": B, "d": A}, "'d', which is not in model-00001"),
    ({"a": A, "b": "model-3.safetensors"}, "cannot be read"),
    ({}, "weight_map"),
    (["a"], "weight_map"),
    ({"a": 1}, "weight_map"),
    ({"a": "pytorch_model.bin"}, "the name of a pickle"),
])
def test_an_index_that_is_not_of_its_files(sharded, listed, said):
    with pytest.raises(ValueError, match=said):
        conversion.find_tensors(sharded(listed))
