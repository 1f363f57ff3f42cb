"""Gradient flow through translators, against differences of the outputs themselves."""

import pytest
import texting
import torch

from regard.comparison.measures import FLOW_PARTS, position_norms, source_flow
from regard.models.build import build, model_config
from regard.tasks.load import make_task
from regard.tokens import Tokens

PAIRS = texting.pairs()[:40]


def made(recipe, **changes):
    both = texting.joint()
    config = model_config(recipe, source_vocab_size=both.source.size, target_vocab_size=both.target.size, width=16,
                          **changes)
    torch.manual_seed(3)
    return make_task(build(config), config, tokenizer=both)


@pytest.mark.parametrize("recipe", ["seq2seq-tiny", "seq2seq-attention-tiny", "transformer-tiny"])
def test_the_norms_are_those_of_small_differences(recipe):
    task = made(recipe)
    task.model.double().eval()
    both = task.pair_tokenizer()
    [source], [target] = both.encode_sources([PAIRS[0][0]]), both.encode_targets([PAIRS[0][1]])
    target = [task.start_id(), *target]
    directions = torch.randn(len(target), 16, dtype=torch.float64)
    found = position_norms(task, source, target, directions)
    moved = []

    def outcome(shift):
        hook = task.model.encoder.embedding.register_forward_hook(lambda _, __, out: out + shift)
        with torch.no_grad():
            value = (task.model.features(Tokens.of([source]), Tokens.of([target]))[0] * directions).sum()
        hook.remove()
        return float(value)

    for place in (0, len(source) // 2, len(source) - 1):
        slopes = []
        for feature in range(16):
            shift = torch.zeros(1, len(source), 16, dtype=torch.float64)
            shift[0, place, feature] = 1e-5
            slopes.append((outcome(shift) - outcome(-shift)) / 2e-5)
        moved.append((float(found[place]), float(torch.tensor(slopes).norm())))
    for norm, want in moved:
        assert norm == pytest.approx(want, rel=1e-4, abs=1e-9)


def test_what_was_read_first_fades_in_one_vector_and_not_under_attention():
    first = {recipe: source_flow(made(recipe), PAIRS).all[0] for recipe in ("seq2seq-tiny", "transformer-tiny")}
    last = source_flow(made("seq2seq-tiny"), PAIRS).all[-1]
    assert first["seq2seq-tiny"] < 0.3 < 0.6 < first["transformer-tiny"]
    assert last > 2


def test_shares_are_of_every_tenth_and_the_model_is_as_it_was():
    task = made("seq2seq-attention-tiny")
    task.model.train()
    found = source_flow(task, PAIRS)
    assert len(found.all) == len(found.last) == FLOW_PARTS
    assert found.sentences == 16
    assert sum(found.all) / FLOW_PARTS == pytest.approx(1, abs=0.3)
    assert task.model.training
    assert not any(module._forward_hooks for module in task.model.modules())
    assert found == source_flow(task, PAIRS)
