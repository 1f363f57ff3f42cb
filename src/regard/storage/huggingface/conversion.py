"""Read a `transformers` folder as one of our models, and write one of our models as such a folder.

    config.json    model.safetensors
    config.json    model.safetensors.index.json    model-00001-of-00002.safetensors    model-00002-of-00002.safetensors

    imported = read_model("all-MiniLM-L6-v2")
    imported.config, imported.special    as ours
    imported.build()                     the bare model with its weights

Reading checks everything before it allocates: every key of the config is known, the files contain the tensors that it
requires in the right shapes, and the model fits into memory. Tensors that our model is known not to need are listed in
`left_out`; any other unexpected tensor is refused. Half precision becomes float32, which is exact. Links are followed,
because download caches consist of them, but an index cannot name a file outside the folder. Pickles are never opened.
generation_config.json is not read.

Writing refuses a config that no family can express and lists everything that does not fit. The folder is saved
crash-safe, like ours, and never over one that regard did not save. Tokenizer files are passed in as `others`.
"""

import json
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard import checks
from regard.attention.layer import SelfAttentionConfig
from regard.checks import plural
from regard.models.build import ModelConfig, check_size
from regard.models.encoder_decoder import EncoderConfig, EncoderDecoderConfig
from regard.models.language import LanguageModelConfig
from regard.models.vision import VisionConfig
from regard.position.encoding import SinusoidalConfig
from regard.position.rotary import RotaryConfig
from regard.special_tokens import SpecialTokens
from regard.storage import folder as folders
from regard.storage import weights
from regard.storage import weights as modules
from regard.storage.filesystem import FolderError, folder_error, unreadable_error
from regard.storage.folder import check_file_name
from regard.storage.huggingface import family as keys
from regard.storage.huggingface import family as mapping
from regard.storage.huggingface.decoders import GPT2, Llama, Mistral, Qwen2
from regard.storage.huggingface.encoder_decoders import Marian, Pegasus
from regard.storage.huggingface.encoders import Bert, ViT
from regard.storage.huggingface.family import ExportFacts, Family, FileFacts, TensorMatches, check_fits
from regard.storage.weights import TensorSpec, WeightsHeader

CONFIG_FILE, WEIGHTS_FILE, INDEX_FILE = "config.json", "model.safetensors", "model.safetensors.index.json"
MAX_JSON_BYTES = 64 * 2**20
"""A larger JSON file is not read into memory."""
PICKLE_FILES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "tf_model.h5", "flax_model.msgpack")
CONVERT_HINT = ("Convert it on a machine where you trust it: load it with transformers and save it with "
                "save_pretrained, which writes model.safetensors.")


class FoundTensors(NamedTuple):
    """The tensors of a folder, known from the headers of its files."""

    tensors: Mapping[str, TensorSpec]
    files: Mapping[Path, WeightsHeader]

    @property
    def elements(self) -> int:
        """The number of elements of all tensors."""
        return sum(header.elements for header in self.files.values())


def read_config_json(folder: Path) -> dict[str, Any]:
    """The content of config.json."""
    if not folder.is_dir():
        what = "this is a file, not a folder" if folder.exists() else "there is no such folder"
        raise FolderError(f"{folder}: {what}.")
    if not (folder / CONFIG_FILE).exists() and (folder / "adapter_config.json").exists():
        raise FolderError(f"{folder}: this is an adapter (adapter_config.json) without its model. Merge it into the "
                          "model (`merge_and_unload` in peft), and save that.")
    return _read_json(folder / CONFIG_FILE)


def find_tensors(folder: Path) -> FoundTensors:
    """Find the tensors of a folder by the headers of its files."""
    if (folder / WEIGHTS_FILE).exists():
        names = [WEIGHTS_FILE]
        listed = None
    elif (folder / INDEX_FILE).exists():
        listed = _read_index(folder / INDEX_FILE)
        names = sorted({*listed.values()})
    else:
        pickled = next((name for name in PICKLE_FILES if (folder / name).exists()), None)
        if pickled is not None:
            why = "Loading a pickle runs the code in it, so regard never opens one. " if "pytorch" in pickled else ""
            raise FolderError(f"{folder}: there is no {WEIGHTS_FILE}, only {pickled}. {why}{CONVERT_HINT}")
        raise FolderError(f"{folder}: there is no {WEIGHTS_FILE}.")
    files = {folder / name: weights.read_header(folder / name) for name in names}
    if listed is not None:
        _check_index(folder / INDEX_FILE, listed, files)
    return FoundTensors({name: entry for header in files.values() for name, entry in header.tensors.items()}, files)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise FolderError(f"{path}: too large: {path.stat().st_size:,} bytes, and at most {MAX_JSON_BYTES:,} are "
                              "read.")
        data = path.read_bytes()
    except OSError as error:
        raise unreadable_error(path, error) from error
    try:
        content = json.loads(data)
    except json.JSONDecodeError as error:
        raise FolderError(f"{path}:{error.lineno}: not JSON: {error.msg} (column {error.colno}).") from None
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise FolderError(f"{path}:{line}: not UTF-8: byte 0x{data[error.start]:02X}.") from None
    except (ValueError, RecursionError) as error:
        raise FolderError(f"{path}: not JSON: {str(error).splitlines()[0]}.") from None
    if not isinstance(content, dict):
        raise folder_error(path, "a JSON object", f"a {type(content).__name__}")
    return content


def _read_index(path: Path) -> dict[str, str]:
    """The file of each tensor, as the index says."""
    listed = _read_json(path).get("weight_map")
    if not isinstance(listed, dict) or not all(isinstance(name, str) for name in listed.values()) or not listed:
        raise folder_error(path, 'a "weight_map" with the file of every tensor', f"{listed!r:.80}")
    for name in {*listed.values()}:
        check_file_name(name, f"{path}: weight_map")
    return listed


def _check_index(path: Path, listed: Mapping[str, str], files: Mapping[Path, WeightsHeader]) -> None:
    """Refuse an index that does not match the files."""
    there = [(name, file.name) for file, header in files.items() for name in header.tensors]
    for name, file in there:
        if listed.get(name) != file:
            named = f"listed in {listed[name]}" if name in listed else "not listed"
            raise FolderError(f"{path}: the index does not match the files: {name!r:.200} is in {file}, but "
                              f"{named}.")
    for name in listed.keys() - {name for name, _ in there}:
        raise FolderError(f"{path}: the index does not match the files: {name!r:.200} is listed in {listed[name]}, but "
                          "is not there.")


FAMILIES: dict[str, Family[Any]] = {family.name: family for family in (
    Bert(), GPT2(), Marian(), Pegasus(), ViT(), Llama(), Mistral(), Qwen2())}


def family_of_file(raw: Mapping[str, Any], names: Collection[str], path: str) -> tuple[Family[Any], str]:
    """The family and the architecture that a config.json names; if it names none, they are guessed from the tensors.

    A file may name several architectures for its weights: the first one counts.
    """
    named = raw.get("architectures")
    if named is not None and (not isinstance(named, list) or not all(isinstance(one, str) for one in named)):
        raise checks.wrong(f"{path}: architectures", "a list of names", repr(named)[:80])
    known = {architecture: family for family in FAMILIES.values() for architecture in family.architectures}
    if named:
        if named[0] not in known or raw.get("model_type", known[named[0]].name) != known[named[0]].name:
            got = f'"{named[0]}" of model_type {raw.get("model_type")!r:.80}'
            expected, hint = f"one of {', '.join(known)}", checks.nearest(named[0], known)
            raise checks.wrong(f"{path}: architectures", expected, got, hint)
        return known[named[0]], named[0]
    kind = raw.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise checks.wrong(f"{path}: model_type", f"one of {', '.join(FAMILIES)}", repr(kind)[:80])
    family = FAMILIES[kind]
    guessed = family.guess(names)
    if guessed is None:
        raise ValueError(f'{path}: "architectures" is missing, and the tensors fit several. Add the right one of '
                         f"{', '.join(family.architectures)}.")
    return family, guessed


def family_of_config(config: ModelConfig) -> tuple[Family[Any], str]:
    """The family that one of our configs may fit, and the architecture that it is written as."""
    if isinstance(config, LanguageModelConfig):
        name = _language_family(config)
    elif isinstance(config, EncoderConfig):
        name = "bert"
    elif isinstance(config, EncoderDecoderConfig):
        name = "pegasus" if config.decoder.norm_position == "pre" else "marian"
    elif isinstance(config, VisionConfig):
        name = "vit"
    else:
        raise ValueError(f'transformers has no architecture for a model of the kind "{config.kind}". The supported '
                         f"families are {', '.join(FAMILIES)}.")
    family = FAMILIES[name]
    return family, next(theirs for theirs, kind in family.architectures.items() if kind == config.kind)


def _language_family(config: LanguageModelConfig) -> str:
    """The family of a language model; of those with rotary positions, the one that has its biases and its window."""
    mixer = config.stack.mixer
    rotary = isinstance(mixer, SelfAttentionConfig) and isinstance(mixer.position, RotaryConfig)
    if not rotary and config.stack.norm != "rms":
        return "gpt2"
    if isinstance(mixer, SelfAttentionConfig) and mixer.has_qkv_bias and not mixer.bias:
        return "qwen2"
    return "mistral" if getattr(mixer, "window", None) is not None else "llama"


HALF_DTYPES = {torch.float16, torch.bfloat16}
FLOAT_DTYPES = {torch.float32, torch.float64, *HALF_DTYPES}
MAX_SIZE_RATIO = 10


@dataclass(frozen=True)
class ImportedModel:
    """A model of `transformers`, converted to our config and our tensor names."""

    config: ModelConfig
    special: SpecialTokens
    tensors: Mapping[str, Tensor]
    """By our names; a tensor that has several names is the same object under each."""
    family: str
    architecture: str
    labels: tuple[str, ...] = ()
    """The names of the labels, if they have any."""
    longest: int | None = None
    """The number of positions it was trained with, if our positions are unlimited."""
    left_out: tuple[str, ...] = ()
    """Tensors of the file that our model does not need."""

    def build(self) -> nn.Module:
        """The bare model with these weights, in evaluation mode."""
        return modules.build_module(self.config.build, self.tensors, origin=self.architecture).eval()


def read_model(folder: str | os.PathLike[str], *, ignore: Iterable[str] = ()) -> ImportedModel:
    """Read a folder with config.json and safetensors; a ValueError says why it cannot be read.

    Args:
        ignore: keys of config.json to treat as null, because the caller knows that they do not matter.
    """
    folder = Path(folder)
    raw, found = read_config_json(folder), find_tensors(folder)
    path = folder / CONFIG_FILE
    family, architecture = family_of_file(raw, found.tensors, str(path))
    settings = keys.read_settings(family.settings, raw, str(path), ignore)
    count, labels = keys.read_labels(raw, str(path))
    names = found.tensors.keys() - _derived_names(family, settings, found)
    config = _build_config(family, settings, FileFacts(family.architectures[architecture], count, names), path)
    _check_sizes(config, found, path)
    with torch.device("meta"):
        state = config.build().state_dict(keep_vars=True)
    matches = _respell(mapping.match_rules(family.rules(config), state), family, found)
    left_out = _check_tensors(matches, state, found, family, folder, architecture)
    tensors = _load_tensors(matches, found, left_out, folder)
    return ImportedModel(config, settings.special(), tensors, family.name, architecture,
                         labels if hasattr(config, "num_labels") else (), family.longest(settings), tuple(left_out))


def _derived_names(family: Family[Any], settings: keys.FamilySettings, found: FoundTensors) -> set[str]:
    """The tensors of the file that follow from the settings, of those that may: each is read and compared."""
    compared, derived = {*map(family.spelling(found.tensors), family.compared)}, set[str]()
    for path, header in found.files.items():
        there = compared & header.tensors.keys()
        for name, tensor in (weights.read_tensors(path, names=there) if there else {}).items():
            try:
                if family.follows(settings, name, tensor):
                    derived.add(name)
            except ValueError as error:
                raise FolderError(f"{path}: {error}") from None
    return derived


def _build_config(family: Family[Any], settings: keys.FamilySettings, facts: FileFacts, path: Path) -> ModelConfig:
    try:
        return family.config(settings, facts)
    except ValueError as error:  # raised by a config, or by a family that cannot express one
        raise FolderError(f"{path}: no model can be built from this config: {error}") from None


def _check_sizes(config: ModelConfig, found: FoundTensors, path: Path) -> None:
    """Refuse a config of a far larger model than the files contain, before even an empty model is built."""
    if config.parameters() > MAX_SIZE_RATIO * found.elements:  # below that, the names of missing tensors say more
        raise FolderError(f"{path}: the config is that of a model of {plural(config.parameters(), 'parameter')}, but "
                          f"the files have {found.elements:,}.")
    check_size(config)


def _respell(matches: TensorMatches, family: Family[Any], found: FoundTensors) -> TensorMatches:
    """The same matches with the names as this file spells them."""
    assert not matches.without, matches.without  # a family has rules for all tensors of the configs that it makes
    spell = family.spelling(found.tensors)
    return matches._replace(found=[match._replace(theirs=tuple(map(spell, match.theirs))) for match in matches.found])


def _check_tensors(matches: TensorMatches, state: Mapping[str, Tensor], found: FoundTensors, family: Family[Any],
                   folder: Path, architecture: str) -> list[str]:
    """Refuse missing and unknown tensors and wrong shapes; return the tensors that are known to be unused."""
    wanted = mapping.expected_specs(matches, state, found.tensors)
    spell = family.spelling(found.tensors)
    unused = [one._replace(theirs=spell(one.theirs)) for one in family.unused]
    left_out = [name for name in found.tensors if name not in wanted and mapping.is_unused(name, unused)]
    kept = {name: entry for name, entry in found.tensors.items() if name not in left_out}
    quantised = [name for name in kept if name in wanted and kept[name].dtype not in FLOAT_DTYPES]
    if quantised:
        raise FolderError(f"{folder}: the tensor {quantised[0]!r:.200} has the dtype {kept[quantised[0]].dtype}. "
                          "Quantised weights are not supported; get the weights in float32, float16 or bfloat16.")
    origin = next(iter(found.files)) if len(found.files) == 1 else folder / INDEX_FILE
    modules.check_specs(wanted, kept, origin=str(origin), owner=f"{CONFIG_FILE} ({architecture})")
    return left_out


def _load_tensors(matches: TensorMatches, found: FoundTensors, left_out: list[str], folder: Path) -> dict[str, Tensor]:
    """Read the tensors file by file, under our names."""
    of_theirs = {name: match for match in matches.found for name in match.theirs}
    tensors: dict[str, Tensor] = {}
    for path in found.files:
        content = weights.read_tensors(path)
        for name in [name for name in content if name not in left_out]:
            match, theirs = of_theirs[name], content.pop(name)
            theirs = theirs.float() if theirs.dtype in HALF_DTYPES else theirs
            for ours, part in zip(match.ours, match.way.read(theirs), strict=True):
                if ours not in tensors:  # a view would keep the whole tensor alive
                    alone = part.is_contiguous() and part.numel() == theirs.numel()
                    tensors[ours] = part if alone else part.clone(memory_format=torch.contiguous_format)
                elif not torch.equal(tensors[ours], part):
                    raise FolderError(f"{folder}: the weights do not match {CONFIG_FILE}, in which "
                                      f"{' and '.join(match.theirs)} are one tensor: {name} has other values.")
    return {**tensors, **{name: tensors[first] for name, first in matches.second.items()}}


FEATURE_COLUMNS = re.compile(r"(query|key|value|up|gate|embedding\.tokens|decoder\.output)\.weight$")
"""Weights with a column for each feature."""
FEATURE_ROWS = re.compile(r"((mixer\.layer|cross)\.output|feed_forward\.down|norm)\.(weight|bias)$")
"""Weights with a row, or biases with an element, for each feature."""


def with_half_sinusoids(config: ModelConfig, tensors: Mapping[str, Tensor]) -> tuple[ModelConfig, Mapping[str, Tensor]]:
    """Convert a Transformer with interleaved sinusoids to one with sines before cosines; any other model is unchanged.

    The blocks do not depend on the order of the features: if all matrices that read them have their columns permuted,
    and all that write them their rows, the logits are the same.
    """
    if not isinstance(config, EncoderDecoderConfig) or config.embedding.combine != "added":
        return config, tensors
    places, mixers = config.embedding.positions, (config.encoder.mixer, config.decoder.mixer)
    if not isinstance(places, SinusoidalConfig) or places.layout != "interleaved":
        return config, tensors
    if not all(isinstance(mixer, SelfAttentionConfig) for mixer in mixers):
        return config, tensors
    order = torch.cat((torch.arange(0, config.width, 2), torch.arange(1, config.width, 2)))
    embedding = replace(config.embedding, positions=replace(places, layout="halves"))
    return replace(config, embedding=embedding), {name: _reorder_features(name, tensor, order) for name,
                                                  tensor in tensors.items()}


def _reorder_features(name: str, tensor: Tensor, order: Tensor) -> Tensor:
    order = order.to(tensor.device)
    if FEATURE_ROWS.search(name):
        return tensor[order]
    return tensor[:, order] if FEATURE_COLUMNS.search(name) else tensor


def write_model(folder: str | os.PathLike[str], config: ModelConfig, special: SpecialTokens,
                tensors: Mapping[str, Tensor], *,
                labels: Sequence[str] = (), longest: int | None = None,
                others: Mapping[str, folders.FileContent] | None = None) -> None:
    """Save a model as config.json and model.safetensors; a ValueError says what does not fit.

    Args:
        folder: a new or empty folder, or one that regard saved.
        tensors: the state dict of the model, by our names.
        labels: the names of the labels, if the model has labels with names.
        longest: the number of positions the model was trained with, if ours are unlimited; by default the family's.
        others: further files, such as those of a tokenizer.
    """
    family, architecture = family_of_config(config)
    with torch.device("meta"):
        model = config.build()
    modules.check_module(model, modules.tensor_specs(tensors), origin="`tensors`")
    matches = mapping.match_rules(family.rules(config), model.state_dict(keep_vars=True))
    count = getattr(config, "num_labels", 0)
    if labels and len(labels) != count:
        raise checks.wrong("labels", f"{plural(count, 'name')}, one for each label", len(labels))
    settings = family.to_settings(config, ExportFacts(special, longest))
    names = {name for match in matches.found for name in match.theirs}
    check_fits(config, family.config(settings, FileFacts(config.kind, count, names)), architecture)
    assert not matches.without, matches.without
    theirs = mapping.to_foreign(matches, _merge_shared(tensors, matches.second))
    kind = next(iter(theirs.values())).dtype
    theirs = {**{name: tensor.to(kind) for name, tensor in family.derived(settings).items()}, **theirs}
    if architecture in family.bare:
        theirs = {name.removeprefix(family.base): tensor for name, tensor in theirs.items()}
    table = {"architectures": [architecture], "model_type": family.name, **_common_dtype(theirs),
             **keys.settings_to_json(settings)}
    if count:
        named = list(labels) or keys.default_labels(count)
        table |= {"id2label": {str(index): name for index, name in enumerate(named)},
                  "label2id": {name: index for index, name in enumerate(named)}}

    def save(path: Path) -> None:
        weights.write_tensors(path, theirs, {"format": "pt"})

    text = json.dumps(table, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    folders.save(folder, {CONFIG_FILE: text.encode(), WEIGHTS_FILE: save, **(others or {})})


def _merge_shared(tensors: Mapping[str, Tensor], second: Mapping[str, str]) -> dict[str, Tensor]:
    """The tensors with shared ones under their first name only; they are refused if they differ."""
    own = {name: tensor for name, tensor in tensors.items() if name not in second}
    for name in second.keys() & tensors.keys():
        if not torch.equal(own.setdefault(second[name], tensors[name]), tensors[name]):
            raise ValueError(f"`tensors` has different values for {second[name]!r} and {name!r}, which are one tensor "
                             "in the model.")
    return own


def _common_dtype(theirs: Mapping[str, Tensor]) -> dict[str, str]:
    """The dtype of all tensors, if they have one in common."""
    found = {str(tensor.dtype).removeprefix("torch.") for tensor in theirs.values()}
    return {"dtype": found.pop()} if len(found) == 1 else {}
