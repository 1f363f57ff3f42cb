"""Configs: declared in dataclasses, checked alike from Python and from files, written and read back."""

import dataclasses
import subprocess
import sys
from dataclasses import FrozenInstanceError, dataclass, replace
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard import toml
from regard.config import (
    Config,
    choice,
    integer,
    number,
    probability,
    read_config,
    read_configs,
    text,
    to_tables,
    to_toml,
)
from regard.toml import ConfigError, override, parse_document

ACTIVATIONS = {"relu": max, "gelu": min}


@dataclass(frozen=True, kw_only=True)
class FeedForwardConfig(Config):
    inner: int = integer(minimum=1)
    activation: str = choice(ACTIVATIONS, "relu")
    dropout: float = probability(0.0)
    base: float = number(10000.0, above=0.0)
    note: str = ""
    window: int | None = integer(None, minimum=1)
    bias: bool = True
    sizes: tuple[int, ...] = integer((), minimum=1, maximum=9)


@dataclass(frozen=True, kw_only=True)
class AttentionConfig(Config):
    kind: ClassVar[str] = "attention"
    heads: int = integer(8, minimum=1)
    width: int = integer(512, minimum=1)

    def conflicts(self):
        if self.width % self.heads:
            yield "heads", f"expected a number that divides the width {self.width}, but got {self.heads}"


@dataclass(frozen=True, kw_only=True)
class RecurrenceConfig(Config):
    kind: ClassVar[str] = "recurrence"
    cell: str = choice(["lstm", "gru"])


@dataclass(frozen=True, kw_only=True)
class LayerConfig(Config):
    feed_forward: FeedForwardConfig
    mixer: AttentionConfig | RecurrenceConfig = AttentionConfig()
    cross: AttentionConfig | None = None


@dataclass(frozen=True, kw_only=True)
class ModelConfig(Config):
    kind: ClassVar[str] = "model"
    layers: tuple[LayerConfig, ...] = ()
    mixers: tuple[AttentionConfig | RecurrenceConfig, ...] = ()
    names: tuple[str, ...] = ()
    top: FeedForwardConfig | None = None

    def conflicts(self):
        for index, layer in enumerate(self.layers):
            if layer.feed_forward.inner > 10**6:
                yield f"layers.{index}.feed_forward.inner", "is too large"


@dataclass(frozen=True, kw_only=True)
class OptimConfig(Config):
    learning_rate: float = number(above=0)
    steps: int = integer(100, minimum=1)


def problems(call):
    with pytest.raises(ConfigError) as caught:
        call()
    return list(caught.value.problems)


def test_a_config_from_python_has_its_defaults_and_is_frozen():
    config = FeedForwardConfig(inner=4)
    assert (config.activation, config.dropout, config.window, config.sizes) == ("relu", 0.0, None, ())
    assert hash(config) == hash(FeedForwardConfig(inner=4))
    with pytest.raises(FrozenInstanceError):
        config.inner = 5
    with pytest.raises(TypeError, match="inner"):
        FeedForwardConfig()


def test_what_is_kept_is_of_the_declared_type():
    config = FeedForwardConfig(inner=4, base=2, sizes=[1, 2])
    assert (type(config.base), config.sizes) == (float, (1, 2))
    assert LayerConfig(feed_forward={"inner": 3}) == LayerConfig(feed_forward=FeedForwardConfig(inner=3))


def test_a_config_from_python_is_refused_with_all_its_problems():
    assert problems(lambda: FeedForwardConfig(
        inner=0, activation="rulu", dropout=1.0, base=float("nan"), note=None, window=True, bias=1, sizes=(1, 10))) == [
        'FeedForwardConfig: "inner": expected a whole number, at least 1, but got 0',
        'FeedForwardConfig: "activation": expected one of "relu", "gelu", but got "rulu"; did you mean "relu"?',
        'FeedForwardConfig: "dropout": expected a probability, at least 0 and below 1, but got 1.0',
        'FeedForwardConfig: "base": expected a finite number, above 0.0, but got nan',
        'FeedForwardConfig: "note": expected text, but got nothing',
        'FeedForwardConfig: "window": expected a whole number, at least 1, but got true',
        'FeedForwardConfig: "bias": expected true or false, but got 1',
        'FeedForwardConfig: "sizes"[1]: expected a whole number, at least 1 and at most 9, but got 10',
    ]
    assert problems(lambda: replace(FeedForwardConfig(inner=4), inner=-1)) == [
        'FeedForwardConfig: "inner": expected a whole number, at least 1, but got -1']
    assert problems(lambda: LayerConfig(feed_forward=AttentionConfig())) == [
        'LayerConfig: "feed_forward": expected a table, but got an AttentionConfig']


@pytest.mark.parametrize(("field", "good", "bad"), [
    (number(minimum=0, maximum=1), [0.0, 0.5, 1.0], [-0.1, 1.1]),
    (number(above=0, below=1), [0.1, 0.9], [0.0, 1.0]),
    (number(), [-1e300, 0.0], [float("inf")]),
    (probability(), [0.0, 0.999], [1.0, -1e-9]),
])
def test_limits_of_numbers(field, good, bad):
    cls = dataclasses.make_dataclass("Limits", [("x", float, field)], bases=(Config,), frozen=True, kw_only=True)
    for value in good:
        assert cls(x=value).x == value
    for value in bad:
        assert len(problems(lambda value=value: cls(x=value))) == 1


def test_limits_of_text():
    fields = [("x", str, text(minimum=2)), ("y", str, text(""))]
    cls = dataclasses.make_dataclass("T", fields, bases=(Config,), frozen=True)
    assert cls("ab").x == "ab"
    assert problems(lambda: cls("a", 1)) == ['T: "x": expected text of at least 2 characters, but got "a"',
                                             'T: "y": expected text, but got 1']


TRAIN = """\
[optim]          # line 1
learning_rat = 0.1
steps = "six"

[model]
names = ["a",
  2]

[[model.layers]]
feed_forward = { inner = 0,  activation = "gelu" }
cross = { heads = 3 }
[[model.layers]]
mixer = { kind = "atention" }
[model.layers.feed_forward]
dropout = 0.5
[modle]
"""


def test_all_problems_of_a_file_at_once_in_the_order_of_its_lines():
    document = parse_document(TRAIN, "train.toml")
    assert problems(lambda: read_configs({"optim": OptimConfig, "model": ModelConfig, "data": FeedForwardConfig,
                                      "special": RecurrenceConfig | None}, document)) == [
        'train.toml: missing table "data"',
        'train.toml:1: missing key "learning_rate" in [optim]: expected a finite number, above 0',
        'train.toml:2: unknown key "learning_rat" in [optim]; did you mean "learning_rate"?',
        'train.toml:3: "steps" in [optim]: expected a whole number, at least 1, but got "six"',
        'train.toml:7: "names"[1] in [model]: expected text, but got 2',
        'train.toml:10: "inner" in [model.layers[0].feed_forward]: expected a whole number, at least 1, but got 0',
        'train.toml:11: "heads" in [model.layers[0].cross]: '
        'expected a number that divides the width 512, but got 3',
        'train.toml:13: "kind" in [model.layers[1].mixer]: '
        'expected one of "attention", "recurrence", but got "atention"; did you mean "attention"?',
        'train.toml:14: missing key "inner" in [model.layers[1].feed_forward]: expected a whole number, at least 1',
        'train.toml:16: unknown table "modle"; did you mean "model"?',
    ]


def test_one_table_is_read_and_the_others_are_left_alone():
    document = parse_document("[optim]\nlearning_rate = 1\n[other]\nx = 1\n[a.b]\nkind = 'attention'\nheads = 4\n",
                              "train.toml")
    assert read_config(OptimConfig, document, ("optim",)) == OptimConfig(learning_rate=1.0)
    assert read_config(AttentionConfig | RecurrenceConfig, document, ("a", "b")) == AttentionConfig(heads=4)
    assert read_config(AttentionConfig | RecurrenceConfig | None, document, ("a", "c")) is None
    assert problems(lambda: read_config(OptimConfig, document,
                                        ("model", "optim"))) == ['train.toml: missing table "model"']
    assert problems(lambda: read_config(OptimConfig, document, ("a", "optim"))) == [
        'train.toml:5: missing table "optim" in [a]']
    assert problems(lambda: read_config(OptimConfig, document, ("other", "x", "y"))) == [
        'train.toml:4: "x" in [other]: expected a table, but got 1']
    assert problems(lambda: read_config(OptimConfig, document, ("other", "x"))) == [
        'train.toml:4: "x" in [other]: expected a table, but got 1']


def test_a_whole_document_can_be_one_config():
    assert read_config(OptimConfig, parse_document("learning_rate = 1", "x")) == OptimConfig(learning_rate=1)
    assert problems(lambda: read_config(OptimConfig, parse_document("\nsteps = 0", "x"))) == [
        'x: missing key "learning_rate": expected a finite number, above 0',
        'x:2: "steps": expected a whole number, at least 1, but got 0',
    ]


def test_all_tables_of_a_document():
    document = parse_document("seed = 3\n[optim]\nlearning_rate = 0.1\n", "train.toml")
    assert read_configs({"seed": int, "optim": OptimConfig, "special": AttentionConfig | None}, document) == {
        "seed": 3, "optim": OptimConfig(learning_rate=0.1), "special": None}
    assert problems(lambda: read_configs({"optim": OptimConfig}, document)) == [
        'train.toml:1: unknown key "seed"; expected "optim"']


def test_conflicts_are_found_when_the_fields_are_good_and_have_their_line():
    good = "[[layers]]\n[layers.feed_forward]\ninner = 1\n[[layers]]\nfeed_forward.inner = 2000000\n"
    assert problems(lambda: read_config(ModelConfig, parse_document(good, "x"))) == [
        'x:5: "inner" in [layers[1].feed_forward]: is too large']
    assert problems(lambda: read_config(ModelConfig, parse_document(good + "mixer = 1\n", "x"))) == [
        'x:6: "mixer" in [layers[1]]: expected a table whose kind is one of "attention", "recurrence", but got 1']
    assert problems(lambda: AttentionConfig(heads=3)) == [
        'AttentionConfig: "heads": expected a number that divides the width 512, but got 3']


def test_a_conflict_over_a_default_has_the_line_of_the_table():
    assert problems(lambda: read_config(AttentionConfig, parse_document("\n[a]\nwidth = 3", "x"), ("a",))) == [
        'x:2: "heads" in [a]: expected a number that divides the width 3, but got 8']


def test_tables_inline_dotted_and_with_headers_are_the_same():
    texts = ["[a]\nfeed_forward = { inner = 2 }\nmixer = { kind = 'recurrence', cell = 'gru' }",
             "a.feed_forward.inner = 2\na.mixer.kind = 'recurrence'\na.mixer.cell = 'gru'",
             "[a.mixer]\ncell = 'gru'\nkind = 'recurrence'\n[a.feed_forward]\ninner = 2"]
    expected = LayerConfig(feed_forward=FeedForwardConfig(inner=2), mixer=RecurrenceConfig(cell="gru"))
    assert [read_config(LayerConfig, parse_document(text, "x"), ("a",)) for text in texts] == [expected] * 3


def test_changes_are_checked_too():
    document = override(parse_document("[optim]\nlearning_rate = 1\n", "train.toml"),
                        {"optim.steps": 0, "optim.stepz": 1})
    assert sorted(problems(lambda: read_configs({"optim": OptimConfig}, document))) == [
        'train.toml (overridden): "steps" in [optim]: expected a whole number, at least 1, but got 0',
        'train.toml (overridden): unknown key "stepz" in [optim]; did you mean "steps"?',
    ]


def test_a_dict_has_no_lines():
    assert read_config(FeedForwardConfig, toml.document_of({"inner": 2, "window": None})) == FeedForwardConfig(inner=2)
    assert problems(lambda: read_config(FeedForwardConfig, toml.document_of({"inner": 0}, "here"))) == [
        'here: "inner": expected a whole number, at least 1, but got 0']


def test_a_stored_config_is_complete_and_readable():
    model = ModelConfig(names=("a",), mixers=(AttentionConfig(),),
                        layers=(LayerConfig(feed_forward=FeedForwardConfig(inner=2)),))
    assert to_toml({"model": model, "seed": 1, "special": None, "about": {"by": "me"}}) == """\
seed = 1

[model]
kind = "model"
names = ["a"]

[[model.layers]]

[model.layers.feed_forward]
inner = 2
activation = "relu"
dropout = 0.0
base = 10000.0
note = ""
bias = true
sizes = []

[model.layers.mixer]
kind = "attention"
heads = 8
width = 512

[[model.mixers]]
kind = "attention"
heads = 8
width = 512

[about]
by = "me"
"""
    assert to_tables(RecurrenceConfig(cell="gru")) == {"kind": "recurrence", "cell": "gru"}
    assert list(to_tables(AttentionConfig())) == ["kind", "heads", "width"]


TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
FEED_FORWARDS = st.builds(
    FeedForwardConfig, inner=st.integers(1, 2**63 - 1), activation=st.sampled_from(sorted(ACTIVATIONS)),
    dropout=st.floats(0, 1, exclude_max=True), base=st.floats(0, exclude_min=True, allow_infinity=False), note=TEXTS,
    window=st.none() | st.integers(1, 99), bias=st.booleans(), sizes=st.lists(st.integers(1, 9)).map(tuple))
MIXERS = st.builds(AttentionConfig, heads=st.sampled_from([1, 2, 8])) | st.builds(
    RecurrenceConfig, cell=st.sampled_from(["lstm", "gru"]))
LAYERS = st.builds(LayerConfig, feed_forward=FEED_FORWARDS.filter(lambda made: made.inner <= 10**6), mixer=MIXERS,
                   cross=st.none() | st.just(AttentionConfig()))
MODELS = st.builds(ModelConfig, layers=st.lists(LAYERS, max_size=3).map(tuple),
                   mixers=st.lists(MIXERS, max_size=2).map(tuple), names=st.lists(TEXTS).map(tuple),
                   top=st.none() | FEED_FORWARDS)


@given(MODELS, FEED_FORWARDS, TEXTS)
def test_what_is_written_is_read_back(model, other, name):
    stored = to_toml({"model": model, "other": other, "name": name})
    made = read_configs({"model": ModelConfig, "other": FeedForwardConfig | None, "name": str},
                        parse_document(stored, "x"))
    assert made == {"model": model, "other": other, "name": name}
    assert to_toml(made) == stored


def test_importing_needs_no_torch():
    code = "import sys, regard.config; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
