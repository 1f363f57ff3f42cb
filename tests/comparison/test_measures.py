"""What is told of one model that does not need a training."""

import pytest
import texting
import torch

from regard.comparison.measures import (
    FLOW_PARTS,
    GradientFlow,
    ModelMeasures,
    position_norms,
    require_translator,
    shown_sentence,
    source_flow,
    step_memory,
)
from regard.models.build import build, model_config
from regard.tasks.load import make_task
from regard.tokens import Tokens


def test_the_sentence_shown_is_of_usual_length():
    assert shown_sentence([("a " * 30, ""), ("a " * 9, ""), ("a " * 10, "")]) == 1
    assert shown_sentence([("a " * 30, ""), ("a " * 14, ""), ("a", "")]) == 1


def test_only_translators_are_compared(tmp_path):
    with pytest.raises(ValueError, match="Completer"):
        require_translator(texting.completer(), tmp_path)


def test_what_was_measured_is_read_back():
    import json

    flow = GradientFlow((1.0,) * 10, (0.5,) * 10, 3, 20.0)
    given = ModelMeasures(1.0, 2.0, 3.0, ({"least": 0, "most": None, "pairs": 1, "bleu": 1.0, "chrf": 2.0},), 10, 1, 5,
                          2.0, 3.0, 100, None, {"step": [1], "validation_step": [2.0], "validation_nll": [4.5]}, flow,
                          "t", None, {"bleu": "b", "chrf": "c"}, "1f", ("h",))
    table = json.loads(json.dumps(given.to_json()))
    assert ModelMeasures.from_json(table) == given
    table["curve"] = {"step": [1], "judged": [2.0], "judged_nll": [4.5]}  # as earlier versions wrote it
    assert ModelMeasures.from_json(table) == given


PAIRS = texting.pairs()[:40]


def made(recipe, **changes):
    both = texting.joint()
    config = model_config(recipe, source_vocab_size=both.source.size, target_vocab_size=both.target.size, width=16,
                          **changes)
    torch.manual_seed(3)
    return make_task(build(config), config, tokenizer=both)


@pytest.mark.thorough
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


@pytest.mark.thorough
def test_what_was_read_first_fades_in_one_vector_and_not_under_attention():
    first = {recipe: source_flow(made(recipe), PAIRS).all[0] for recipe in ("seq2seq-tiny", "transformer-tiny")}
    last = source_flow(made("seq2seq-tiny"), PAIRS).all[-1]
    assert first["seq2seq-tiny"] < 0.3 < 0.6 < first["transformer-tiny"]
    assert last > 2


@pytest.mark.thorough
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


PAIRS_MEMORY_USE = texting.pairs()[:12]


def test_a_step_holds_parameters_and_what_the_backward_pass_needs():
    task = texting.translator()
    own = 4 * sum(parameter.nbytes for parameter in task.model.parameters())
    few, many = step_memory(task, PAIRS_MEMORY_USE[:3]), step_memory(task, PAIRS_MEMORY_USE)
    assert own < few < many
    assert step_memory(task, PAIRS_MEMORY_USE) == many
    assert all(parameter.grad is None for parameter in task.model.parameters())
    # Sentences of one length: what is kept beyond the parameters grows as they do.
    one, three = step_memory(task, PAIRS_MEMORY_USE[:1]) - own, step_memory(task, PAIRS_MEMORY_USE[:1] * 3) - own
    assert 2.5 * one < three < 3.5 * one
