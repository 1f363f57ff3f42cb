"""Old config keys: every one is read under its new name, in files, in overrides and in Python."""

import dataclasses
import types
import typing
from pathlib import Path

import pytest

import regard
from regard import config, toml
from regard.data.tokenizer.training import TokenizerConfig
from regard.models.build import ModelConfig, model_config
from regard.special_tokens import SpecialTokens
from regard.tasks.record import OLD_PARALLELISM, OLD_RECORD_KEYS
from regard.toml import ConfigError
from regard.training.config import DataConfig, TrainingConfig

TABLES = {"data": DataConfig | None, "tokenizer": TokenizerConfig | None, "model": ModelConfig,
          "special": SpecialTokens, "training": TrainingConfig}


def classes(annotation):
    """The dataclasses of an annotation: of A | B | None, and of arrays of them."""
    if isinstance(annotation, types.UnionType) or typing.get_args(annotation):
        return [cls for part in typing.get_args(annotation) for cls in classes(part)]
    return [annotation] if dataclasses.is_dataclass(annotation) else []


def aliases(annotation, path, old_path, seen=()):
    """Old path, new path, the name of the class and the spec of every renamed key below an annotation."""
    for cls in classes(annotation):
        if cls in seen:
            continue
        hints = typing.get_type_hints(cls)
        for key, spec in config.key_specs(cls).items():
            old = key if spec.old is None else spec.old.key
            if spec.old is not None:
                yield f"{old_path}.{old}", f"{path}.{key}", cls, spec
            yield from aliases(hints[key], f"{path}.{key}", f"{old_path}.{old}", (*seen, cls))


FOUND = [one for name, kind in TABLES.items() for one in aliases(kind, name, name)]
ALIASES = {(old, cls.__name__): (old, new, cls, spec) for old, new, cls, spec in FOUND}
VALUES = {int: 3, float: 0.5, bool: False, str: "x"}


def old_value(spec):
    """A value of an old key, and what it is now."""
    if spec.old.values is not None:
        return next(iter(spec.old.values.items()))
    if isinstance(spec.reader, config.TableReader):
        return {}, {}
    value = VALUES[spec.reader.scalar] if isinstance(spec.reader, config.ScalarReader) else [3]
    return value, value


@pytest.mark.parametrize(("old", "new", "cls", "spec"), ALIASES.values(),
                         ids=[f"{key}-{name}" for key, name in ALIASES])
def test_every_old_key_has_a_new_name(old, new, cls, spec):
    value, now = old_value(spec)
    key, name = old.rpartition(".")[2], new.rpartition(".")[2]
    with pytest.warns(FutureWarning, match=rf"file: .*{key} is now {name}"):
        read = config.with_current_keys(toml.document_of({key: value}, "file"), cls)
    assert read.tables == {name: now}
    with pytest.warns(FutureWarning, match=f"{old} is now {new}"):
        assert config.current_overrides({old: value}, TABLES) == {new: now}
    assert config.current_overrides({new: now}, TABLES) == {new: now}  # without a notice
    text = f"{name} = 1\n\n{key} = 2\n"
    with pytest.raises(ConfigError) as error:
        config.with_current_keys(toml.parse_document(text, "train.toml"), cls)
    assert str(error.value).startswith("train.toml:3:")
    assert all(part in str(error.value) for part in (f'"{key}"', f'"{name}"', "line 1"))


def test_there_are_many():
    """The test above is not about nothing."""
    assert {"training.smoothing", "training.schedule.peak", "training.optimiser.first", "model.encoder.order",
            "model.stack.feed_forward.form", "data.held", "special.first"} <= {old for old, _ in ALIASES}


def test_old_names_are_not_names_of_other_keys():
    for _, _, cls, spec in ALIASES.values():
        assert spec.old.key not in config.key_specs(cls)


def test_lines_of_old_keys_are_kept():
    text = '[training.optimiser]\nfirst = 0.5\nsecond = "much"\n[training.schedule]\nsteps = 5\n'
    with pytest.warns(FutureWarning, match="^train.toml: ") as notices, pytest.raises(ConfigError) as error:
        config.read_config(TrainingConfig, toml.parse_document(text, "train.toml"), ("training",))
    assert len(notices) == 1  # one for the file
    assert str(error.value).startswith('train.toml:3: "beta2" in [training.optimizer]')


def test_values_that_have_another_form():
    with pytest.warns(FutureWarning, match="is now"):
        read = config.current_overrides({"training.sharing": "sharded", "model.encoder.order": "plain",
                                         "model.stack.feed_forward.form": "gated", "model.token": "none"}, TABLES)
    assert read == {"training.parallelism": "fsdp", "model.encoder.norm_position": "none",
                    "model.stack.feed_forward.gated": True, "model.class_token": False}


def test_a_wrong_old_value_is_refused_under_the_new_name():
    with pytest.warns(FutureWarning, match=r"form is now .*gated"), \
            pytest.raises(ConfigError, match=r'"gated".*"gatde"'):
        model_config("gpt-tiny", vocab_size=9, **{"stack.feed_forward.form": "gatde"})


def test_python_takes_both():
    tables = {"kind": "language", "vocabulary": 9, "width": 8, "stack": {
        "layers": 1, "order": "post", "mixer": {"kind": "attention", "heads": 2}, "feed_forward": {"inner": 16}}}
    with pytest.warns(FutureWarning, match="vocabulary is now vocab_size"):
        old = model_config(tables)
    assert (old.vocab_size, old.stack.norm_position, old.stack.feed_forward.ffn_width) == (9, "post", 16)
    with pytest.warns(FutureWarning, match="vocabulary is now vocab_size"):
        model = regard.build("gpt-tiny", vocabulary=9, width=8, **{"stack.mixer.heads": 2})
    assert model.decoder.output.weight.shape == (9, 8)


def test_only_new_keys_are_written():
    written = config.to_toml({"training": TrainingConfig(schedule={"max_steps": 5}), "data": DataConfig()})
    tables = toml.parse_document(written, "written").tables
    assert config.with_current_keys(toml.document_of(tables), TABLES).tables == tables  # without a notice


def test_the_record_of_a_model_has_the_same_names():
    """The record is kept by a room that does not know the training, so it has a table of its own."""
    kept = {old: new.rpartition(".")[2] for (old, _), (_, new, _, _) in ALIASES.items()
            if old.split(".")[0] in ("training", "data", "tokenizer")}
    assert kept == OLD_RECORD_KEYS
    (spec,) = [spec for (old, _), (_, _, _, spec) in ALIASES.items() if old == "training.sharing"]
    assert spec.old.values == OLD_PARALLELISM


def test_the_glossary_lists_every_old_key():
    text = (Path(__file__).parent.parent / "docs" / "glossary.md").read_text()
    listed = text[text.index("## Config keys"):]
    for _, (old, new, _, spec) in ALIASES.items():
        key, name = old.rpartition(".")[2], new.rpartition(".")[2]
        assert f"`{key}` → `{name}`" in listed or (f"{key}" in listed and spec.old.values is not None) \
            or key in ("optimiser", "head_width"), old
        assert f"`{name}" in listed or name == "optimizer", new
