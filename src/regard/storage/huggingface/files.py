"""The files of such a folder: config.json, and the tensors in one file of safetensors or in several.

    config.json    model.safetensors
    config.json    model.safetensors.index.json    model-00001-of-00002.safetensors    model-00002-of-00002.safetensors

Everything is looked at before any tensor is read. Links are followed, because a cache of downloads is made of them; but
an index may name no file outside the folder. A pickle is never opened. It knows names and headers. It does not know
families.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from regard.storage import weights
from regard.storage.manifest import check_name, wrong
from regard.storage.weights import Entry, Header

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
LARGEST = 64 * 2**20
"""Bytes of a JSON file; a larger one is not read into memory."""
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "tf_model.h5", "flax_model.msgpack")
CONVERT = ("Convert it where it is trusted: load it with transformers and save it with save_pretrained, which writes "
           "model.safetensors.")


class Found(NamedTuple):
    """The tensors of a folder, before any is read."""

    tensors: Mapping[str, Entry]
    files: Mapping[Path, Header]

    @property
    def elements(self) -> int:
        """How many numbers there are."""
        return sum(header.elements for header in self.files.values())


def settings(folder: Path) -> dict[str, Any]:
    """What config.json says."""
    if not folder.is_dir():
        raise wrong(folder, "a folder", "not there" if not folder.exists() else "a file")
    if not (folder / CONFIG).exists() and (folder / "adapter_config.json").exists():
        raise wrong(folder, f"a folder with {CONFIG}", "an adapter", "Merge it into its model, and save that.")
    return _json(folder / CONFIG)


def tensors(folder: Path) -> Found:
    """Which tensors there are, by the headers of the files."""
    if (folder / WEIGHTS).exists():
        names = [WEIGHTS]
        listed = None
    elif (folder / INDEX).exists():
        listed = _index(folder / INDEX)
        names = sorted({*listed.values()})
    else:
        pickled = next((name for name in PICKLES if (folder / name).exists()), None)
        if pickled is not None:
            raise wrong(folder, f"a folder with {WEIGHTS}", f"one with {pickled}",
                        f"Reading a pickle runs the code in it, so regard never opens one. {CONVERT}"
                        if "pytorch" in pickled else CONVERT)
        raise wrong(folder, f"a folder with {WEIGHTS}", "one without")
    files = {folder / name: weights.header(folder / name) for name in names}
    if listed is not None:
        _check_index(folder / INDEX, listed, files)
    return Found({name: entry for header in files.values() for name, entry in header.tensors.items()}, files)


def _json(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > LARGEST:
            raise wrong(path, f"a file of at most {LARGEST} bytes", f"of {path.stat().st_size} bytes")
        data = path.read_bytes()
    except OSError as error:
        raise wrong(path, "a readable file", f"not ({error.strerror})") from error
    try:
        content = json.loads(data)
    except json.JSONDecodeError as error:
        raise wrong(f"{path}:{error.lineno}", "JSON", f"not: {error.msg} (column {error.colno})") from None
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise wrong(f"{path}:{line}", "JSON in UTF-8", f"not: 0x{data[error.start]:02X} is no part of it") from None
    except (ValueError, RecursionError) as error:
        raise wrong(path, "JSON", f"not: {str(error).splitlines()[0]}") from None
    if not isinstance(content, dict):
        raise wrong(path, "a JSON object", f"a {type(content).__name__}")
    return content


def _index(path: Path) -> dict[str, str]:
    """Which tensor is in which file."""
    listed = _json(path).get("weight_map")
    if not isinstance(listed, dict) or not all(isinstance(name, str) for name in listed.values()) or not listed:
        raise wrong(path, 'an index whose "weight_map" names a file for every tensor', f"one with {listed!r:.80}")
    for name in {*listed.values()}:
        check_name(name, f"{path}: weight_map")
    return listed


def _check_index(path: Path, listed: Mapping[str, str], files: Mapping[Path, Header]) -> None:
    """Refuse an index that is not of these files."""
    there = [(name, file.name) for file, header in files.items() for name in header.tensors]
    for name, file in there:
        if listed.get(name) != file:
            named = f"in {listed[name]}" if name in listed else "nowhere"
            expected = f"an index of the files beside it, with {name!r:.200} in {file}"
            raise wrong(path, expected, f"one that has it {named}")
    for name in listed.keys() - {name for name, _ in there}:
        raise wrong(path, "an index of the files beside it", f"one with {name!r:.200}, which is not in {listed[name]}")
