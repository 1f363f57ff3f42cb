"""RoPE scaling against the oracle, what it does at the borders, and what is refused."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import assert_named

from regard.attention.layer import SelfAttentionConfig
from regard.config import read_config, to_toml
from regard.position.rope_scaling import (
    DynamicRopeScaling,
    LinearRopeScaling,
    Llama3RopeScaling,
    YarnRopeScaling,
)
from regard.position.rotary import Rotary, RotaryConfig
from regard.reference import position as oracle
from regard.toml import ConfigError, parse_document

ORIGINAL = 64
LINEAR = LinearRopeScaling(factor=3.0)
DYNAMIC = DynamicRopeScaling(factor=4.0, original_max_position_embeddings=ORIGINAL)
LLAMA3 = Llama3RopeScaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                           original_max_position_embeddings=ORIGINAL)
YARN = YarnRopeScaling(factor=4.0, original_max_position_embeddings=ORIGINAL, beta_fast=8.0)
SCALINGS = {
    "linear": (LINEAR, lambda at, width, base: oracle.rotary_linear(width, base, 3.0), 1.0),
    "dynamic": (DYNAMIC, lambda at, width, base: oracle.rotary_dynamic(at, width, base, 4.0, ORIGINAL), 1.0),
    "llama3": (LLAMA3, lambda at, width, base: oracle.rotary_llama3(width, base, 8.0, 1.0, 4.0, ORIGINAL), 1.0),
    "yarn": (YARN, lambda at, width, base: oracle.rotary_yarn(width, base, 4.0, ORIGINAL, 8.0),
             oracle.yarn_attention_factor(4.0)),
    "yarn, exact": (
        YarnRopeScaling(factor=4.0, original_max_position_embeddings=ORIGINAL, beta_fast=8.0, beta_slow=2.0,
                        truncate=False, attention_factor=0.7),
        lambda at, width, base: oracle.rotary_yarn(width, base, 4.0, ORIGINAL, 8.0, 2.0, truncate=False), 0.7),
    "yarn, one pair": (  # both ends of the ramp are below 0
        YarnRopeScaling(factor=2.0, original_max_position_embeddings=2),
        lambda at, width, base: oracle.rotary_yarn(width, base, 2.0, 2), oracle.yarn_attention_factor(2.0)),
}
every = pytest.mark.parametrize("name", SCALINGS)


@every
@settings(max_examples=20, deadline=None)
@given(half=st.integers(2, 16), base=st.sampled_from([100.0, 500.0, 10000.0]),
       places=st.lists(st.integers(0, 3 * ORIGINAL), max_size=5))
def test_scaled_rotary_is_the_oracle(name, half, base, places):
    scaling, frequencies, factor = SCALINGS[name]
    x = torch.randn(len(places), 2 * half, dtype=torch.float64)
    got = Rotary(2 * half, base, rope_scaling=scaling)(x, torch.tensor(places, dtype=torch.long))
    for row, mine, at in zip(x, got, places, strict=True):
        want = oracle.rotary_scaled(row.numpy(), at, frequencies(at, 2 * half, base), factor)
        np.testing.assert_allclose(mine.numpy(), want, rtol=0, atol=1e-11)


@every
def test_scaling_changes_something(name):
    x, positions = torch.randn(5, 32), torch.arange(0, 200, 40)
    scaled, plain = (Rotary(32, 500.0, rope_scaling=scaling)(x, positions) for scaling in (SCALINGS[name][0], None))
    assert not torch.allclose(scaled, plain)


def test_dynamic_scaling_changes_nothing_up_to_its_length_and_no_other_token():
    x, positions = torch.randn(100, 16), torch.arange(100)
    dynamic, plain = Rotary(16, rope_scaling=DYNAMIC), Rotary(16)
    whole = dynamic(x, positions)
    torch.testing.assert_close(whole[:ORIGINAL], plain(x[:ORIGINAL], positions[:ORIGINAL]), rtol=1e-6, atol=1e-6)
    assert not torch.allclose(whole[ORIGINAL:], plain(x, positions)[ORIGINAL:])
    for count in (1, ORIGINAL, 80):  # a token does not change when later ones come
        assert torch.equal(dynamic(x[:count], positions[:count]), whole[:count])


@every
def test_the_config_is_written_and_read(name):
    config = RotaryConfig(base=500.0, rope_scaling=SCALINGS[name][0])
    assert read_config(RotaryConfig, parse_document(to_toml({"position": config}), "x"), ("position",)) == config
    assert config.build(8).rope_scaling == SCALINGS[name][0]


@every
def test_it_compiles_without_a_break(name):
    torch.compiler.reset()
    rotary = Rotary(8, rope_scaling=SCALINGS[name][0])
    x, positions = torch.randn(2, 3, 5, 8), torch.arange(60, 70).view(2, 5)
    assert torch.equal(torch.compile(rotary, backend="eager", fullgraph=True)(x, positions), rotary(x, positions))


@pytest.mark.parametrize(("make", "said"), [
    (lambda: LinearRopeScaling(factor=0.5), ["factor", "at least 1", "0.5"]),
    (lambda: Llama3RopeScaling(factor=8.0, low_freq_factor=4.0, high_freq_factor=4.0,
                               original_max_position_embeddings=8), ["high_freq_factor", "low_freq_factor", "4.0"]),
    (lambda: YarnRopeScaling(factor=2.0, original_max_position_embeddings=8, beta_fast=1.0, beta_slow=2.0),
     ["beta_fast", "beta_slow", "2.0"]),
])
def test_values_that_no_scaling_has(make, said):
    with pytest.raises(ConfigError) as error:
        make()
    assert all(part in str(error.value) for part in said)


def test_what_does_not_fit_a_head():
    assert_named(lambda: Rotary(2, rope_scaling=DYNAMIC), ["`rope_scaling`", "4 or more", "2"])
    assert_named(lambda: Rotary(4, base=1.0, rope_scaling=YARN), ["`rope_scaling`", "above 1", "1.0"])
    assert_named(lambda: Rotary(4, rope_scaling="linear"), ["`rope_scaling`", "LinearRopeScaling", "'linear'"])
    mixer = SelfAttentionConfig(heads=4, position=RotaryConfig(rope_scaling=DYNAMIC))
    assert [key for key, _ in mixer.clashes(8, True)] == ["position.rope_scaling"]
    assert [key for key, _ in mixer.clashes(20, True)] == ["position"]
    assert not [*mixer.clashes(16, True)]
