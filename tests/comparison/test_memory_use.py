"""The memory of a step: at least four numbers for each parameter, and more for more sentences."""

import texting

from regard.comparison.measures import step_memory

PAIRS = texting.pairs()[:12]


def test_a_step_holds_parameters_and_what_the_backward_pass_needs():
    task = texting.translator()
    own = 4 * sum(parameter.nbytes for parameter in task.model.parameters())
    few, many = step_memory(task, PAIRS[:3]), step_memory(task, PAIRS)
    assert own < few < many
    assert step_memory(task, PAIRS) == many
    assert all(parameter.grad is None for parameter in task.model.parameters())
    # Sentences of one length: what is kept beyond the parameters grows as they do.
    one, three = step_memory(task, PAIRS[:1]) - own, step_memory(task, PAIRS[:1] * 3) - own
    assert 2.5 * one < three < 3.5 * one
