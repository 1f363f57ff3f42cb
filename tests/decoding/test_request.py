"""What is asked of a search: every form of it, and what is refused."""

import pytest
import torch
from refusals import assert_named
from torch import nn
from writers import Table, drawn, keyed

from regard.decoding.constraints import ForbiddenTokens, MinLength, Prefixes
from regard.decoding.request import SearchRequest
from regard.tokens import Tokens


def asked(model=None, memory=None, prompts=((1,),), end=0, max_length=3, min_length=0, constraints=()):
    return SearchRequest.of(model or Table(drawn(4)), memory, prompts, end, max_length, min_length, constraints)


LEFT = Tokens(torch.tensor([[9, 1, 2], [3, 4, 5]]), torch.tensor([2, 3]), side="left")
RIGHT = Tokens(torch.tensor([[1, 2, 9], [3, 4, 5]]), torch.tensor([2, 3]))


@pytest.mark.parametrize("prompts", [[[1, 2], [3, 4, 5]], ((1, 2), (3, 4, 5)), LEFT, RIGHT], ids=str)
def test_prompts_of_different_lengths(prompts):
    request = asked(prompts=prompts, max_length=[4, 1])
    assert (request.prompts, request.max_lengths, request.capacity) == ([[1, 2], [3, 4, 5]], [4, 1], 7)


def test_prompts_limits_and_ends_in_their_other_forms():
    request = asked(prompts=torch.tensor([[1], [2]]), max_length=torch.tensor([2, 3]), end={7, 5})
    assert (request.prompts, request.max_lengths, request.ends) == ([[1], [2]], [2, 3], [5, 7])
    request = asked(prompts=Tokens(torch.tensor([[1], [2]])), end=(3, 3))
    assert (request.prompts, request.max_lengths, request.ends) == ([[1], [2]], [3, 3], [3])
    assert asked(end=()).ends == []
    assert asked(prompts=[]).prompts == []


def test_the_least_length_is_the_first_rule():
    rule = ForbiddenTokens([1])
    first, second = asked(min_length=2, end=3, constraints=[rule]).constraints
    assert isinstance(first, MinLength)
    assert (first.min_length, first.forbidden.ids, second) == (2, [3], rule)
    assert asked(constraints=[rule]).constraints == (rule,)


@pytest.mark.parametrize(("given", "dtype"), [
    (torch.float16, torch.float32), (torch.bfloat16, torch.float32), (torch.float32, torch.float32),
    (torch.float64, torch.float64),
])
def test_log_probabilities_are_normalised_in_float32_or_more_and_then_ruled(given, dtype):
    logits = torch.randn(3, 5).to(given)
    nothing = torch.zeros(3, dtype=torch.long)
    written = Prefixes(nothing.view(3, 1)[:, :0], torch.arange(3), nothing, nothing)
    got = asked(constraints=[ForbiddenTokens([2])]).log_probabilities(logits, written)
    want = logits.double().log_softmax(-1)
    want[:, 2] = -torch.inf
    assert got.dtype == dtype
    torch.testing.assert_close(got, want.to(dtype), rtol=1e-6, atol=1e-6)


def test_which_tokens_are_ends():
    tokens = torch.tensor([[4, 1], [3, 0]])
    assert asked(end=(1, 3)).is_end(tokens, 5).tolist() == [[False, True], [True, False]]
    assert asked(end=()).is_end(tokens, 5).tolist() == [[False, False]] * 2
    assert_named(lambda: asked(end=(1, 5)).is_end(tokens, 5), ["`end`", "below 5", "is 5"])


def test_the_device_is_that_of_the_memory_or_of_the_parameters():
    class Bare(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.empty(1, device="meta"))

    assert asked(model=Bare().eval()).device.type == "meta"
    assert asked(model=Bare().eval(), memory=keyed([1])).device.type == "cpu"
    assert asked().device.type == "cpu"


class Training(Table):
    training = True


@pytest.mark.parametrize(("arguments", "parts"), [
    ({"model": Training(drawn(4))}, ["`model`", "evaluation mode", "training mode", "model.eval()"]),
    ({"prompts": [[1], []]}, ["`prompts`", "at least one id", "row 1", "[START]"]),
    ({"prompts": torch.zeros(2, 0, dtype=torch.long)}, ["`prompts`", "at least one id", "row 0"]),
    ({"prompts": [1, 2]}, ["`prompts`", "rows of ids", "1 in row 0"]),
    ({"prompts": ["ab"]}, ["`prompts`", "rows of ids", "'ab' in row 0"]),
    ({"prompts": "ab"}, ["`prompts`", "rows of ids", "str"]),
    ({"prompts": [[1, -2]]}, ["`prompts`", "whole numbers from 0", "-2"]),
    ({"prompts": [[1, 2.0]]}, ["`prompts`", "whole numbers from 0", "2.0"]),
    ({"prompts": torch.zeros(2)}, ["`ids`", "integers"]),
    ({"prompts": [[1]], "memory": keyed([1, 2])}, ["`prompts`", "2 rows", "is 1", "memory.pick"]),
    ({"end": -1}, ["`end`", "-1"]), ({"end": "</s>"}, ["`end`", "'<'"]), ({"end": None}, ["`end`", "None"]),
    ({"end": True}, ["`end`", "True"]),
    ({"max_length": -1}, ["`max_length`", "at least 0", "-1"]), ({"max_length": 2.5}, ["`max_length`", "2.5"]),
    ({"max_length": True}, ["`max_length`", "True"]), ({"max_length": [1, -3], "prompts": [[1], [1]]},
                                                       ["`max_length`", "-3"]),
    ({"max_length": [1, 2]}, ["`max_length`", "each of the 1 rows", "2 of them"]),
    ({"min_length": -1}, ["`min_length`", "at least 0", "-1"]),
    ({"min_length": 4}, ["`min_length`", "at most the maximum length, 3", "is 4"]),
    ({"min_length": 2, "max_length": [5, 1], "prompts": [[1], [1]]},
     ["`min_length`", "at most the maximum length, 1", "is 2"]),
])
def test_what_is_refused(arguments, parts):
    assert_named(lambda: asked(**arguments), parts)
