"""torch.compile takes the whole of a training step's forward and backward pass: one graph, compiled once for all
lengths and batch sizes."""

import pytest
import torch
from functorch.compile import make_boxed_func
from tiny import LANGUAGE, READING, SOURCE, TRANSLATING, built
from torch._dynamo.backends.common import aot_autograd
from torch.nn.functional import cross_entropy

from regard.tokens import Tokens

MODELS = {"encoder-decoder": TRANSLATING["attention"], "language": LANGUAGE["llama"], "masked": READING["masked"]}


@pytest.mark.parametrize("name", MODELS)
def test_one_compilation_serves_all_lengths(name):
    torch._dynamo.reset()
    model = built(MODELS[name]).train()
    graphs = []

    def counted(graph, _):
        graphs.append(graph)
        return make_boxed_func(graph.forward)

    def loss(source, lengths, target, target_lengths):
        read = Tokens(target, target_lengths)
        logits = model(Tokens(source, lengths), read) if name == "encoder-decoder" else model(read)
        return cross_entropy(logits.flatten(0, 1), target.flatten())

    compiled = torch.compile(loss, fullgraph=True, dynamic=True, backend=aot_autograd(fw_compiler=counted))
    for rows, n, m in ((3, 6, 5), (2, 9, 4), (5, 3, 11), (4, 7, 7)):
        batch = [torch.randint(SOURCE, (rows, n)), torch.randint(1, n + 1, (rows,)),
                 torch.randint(SOURCE, (rows, m)), torch.randint(1, m + 1, (rows,))]
        results = []
        for function in (compiled, loss):
            model.zero_grad()
            value = function(*batch)
            value.backward()
            results.append([value, *(parameter.grad for parameter in model.parameters() if parameter.grad is not None)])
        for mine, theirs in zip(*results, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-11)
    assert len(graphs) == 2  # forward and backward
