"""Comparisons: what is the same passes, what is not does not, and a near tie is no difference."""

import math

import pytest
import texting
import torch

import regard
from regard.special_tokens import SpecialTokens
from regard.tasks import export
from regard.tasks.export import (
    ROW_LENGTHS,
    ExportError,
    ReloadedModel,
    compare_outputs,
    find_stop_tokens,
    make_check_inputs,
)
from regard.tasks.load import make_task
from regard.tokens import Tokens


class Changed(ReloadedModel):
    """Our own model, whose numbers and texts are changed before they are given."""

    def __init__(self, task, numbers=lambda one: one, text=lambda ids: ids):
        super().__init__(task)
        self.changed, self.text = numbers, text

    def outputs(self, inputs):
        return [self.changed(one) for one in super().outputs(inputs)]

    def generate(self, inputs, max_length):
        return [self.text(ids) for ids in super().generate(inputs, max_length)]


@pytest.mark.parametrize("make", [texting.translator, texting.completer, texting.filler, texting.classifier,
                                  texting.tagger, texting.seer])
def test_a_model_is_as_itself(make):
    task = make()
    found = compare_outputs(task, ReloadedModel(task), make_check_inputs(task))
    assert found.passed
    assert (found.rows, found.difference) == (len(ROW_LENGTHS), 0.0)
    assert found.same == (len(ROW_LENGTHS) if make in (texting.translator, texting.completer) else None)


def test_rows_are_of_several_lengths_and_have_no_special_ids():
    task = texting.translator()
    given = make_check_inputs(task)
    assert [len(row) for row in given.rows] == [length + 1 for length in ROW_LENGTHS]
    for row, target in zip(given.rows, given.targets, strict=True):
        assert row[-1] == 3
        assert target[0] == 2
        assert not {*row[:-1]} & task.special.ids()
    assert given == make_check_inputs(task)


def test_rows_leave_room_in_a_model_with_few_positions():
    task = regard.task("gpt-tiny", vocab_size=9, special=SpecialTokens(end=(3,)),
                       **{"embedding.positions.max_positions": 4})
    assert {len(row) for row in make_check_inputs(task).rows} == {1, 2, 3}
    assert compare_outputs(task, ReloadedModel(task), make_check_inputs(task)).passed


def test_texts_can_be_given():
    task = texting.translator()
    assert make_check_inputs(task, ["the dog", "", "a cat"]).rows == task.tokenizer.encode_sources(["the dog", "", "a cat"])
    assert make_check_inputs(texting.completer(), ["ab", ""]).rows == [texting.characters().encode("ab")]
    assert make_check_inputs(texting.filler(), ["the dog"]).rows == texting.filler().encode_texts(["the dog"])
    with pytest.raises(ValueError, match="`texts` must be texts that are not all empty"):
        make_check_inputs(texting.completer(), [""])


@pytest.mark.parametrize("change", [lambda one: one + 0.02, lambda one: one * math.nan, lambda one: one.flip(-1)])
def test_other_numbers_do_not_pass(change):
    task = texting.translator()
    found = compare_outputs(task, Changed(task, change), make_check_inputs(task))
    assert not found.passed
    assert found.difference > found.tolerance


def test_what_is_quantised_may_differ_more():
    task = texting.translator()
    off = Changed(task, lambda one: one + 0.01, lambda ids: [])
    assert compare_outputs(task, off, make_check_inputs(task), "int8").passed
    assert compare_outputs(task, off, make_check_inputs(task), "int8").same == 0
    assert not compare_outputs(task, off, make_check_inputs(task)).passed


@pytest.mark.parametrize("make", [texting.translator, texting.completer])
@pytest.mark.parametrize("text", [lambda ids: [], lambda ids: [*ids[:2], 7, *ids[3:]], lambda ids: [*ids, 8]])
def test_other_texts_do_not_pass(make, text):
    task = make()
    found = compare_outputs(task, Changed(task, text=text), make_check_inputs(task))
    assert not found.passed
    assert found.parted == found.rows
    assert found.same == 0


def test_a_near_tie_passes():
    """Two ids with one and the same row of the output: our model cannot tell them apart."""
    task = texting.translator(tie_word_embeddings=False, output_bias=True)
    model = task.config.build().double().eval()
    model.load_state_dict(task.model.state_dict())
    with torch.no_grad():
        weight, bias = model.decoder.output.weight, model.decoder.output.bias
        first = int(model.decode(Tokens.of([[2]]), model.encode(Tokens.of([[9, 3]])))[0, 0].argmax())
        weight[first + 1], bias[first + 1] = weight[first], bias[first] - 1e-7
    same = make_task(model, task.config, tokenizer=task.tokenizer)
    given = make_check_inputs(same)
    swapped = Changed(same, text=lambda ids: [first + 1 if id_ == first else id_ for id_ in ids])
    found = compare_outputs(same, swapped, given)
    assert any(first in target for target in given.targets)
    assert found.same < found.rows
    assert found.passed


def test_outputs_of_another_shape_are_refused():
    task = texting.filler()
    with pytest.raises(ExportError, match="shape"):
        compare_outputs(task, Changed(task, lambda one: one[:, :-1]), make_check_inputs(task))


def test_what_is_never_written():
    task = texting.translator()
    assert find_stop_tokens(task).forbidden == (0,)
    size = task.tokenizer.source.size
    wider = regard.task("transformer-tiny", tokenizer=task.tokenizer, source_vocab_size=size + 2,
                        target_vocab_size=size + 2)
    assert find_stop_tokens(wider).forbidden == (size, size + 1, 0)
    assert find_stop_tokens(texting.completer()).forbidden == find_stop_tokens(texting.filler()).forbidden == ()
    assert set(export.TOLERANCES) == {"float32", "float16", "bfloat16", "int8"}
