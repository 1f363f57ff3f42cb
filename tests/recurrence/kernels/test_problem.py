"""What rows found before a step and have after their last one, for steps that read fewer and fewer rows."""

import torch
from recurrent import make, normal

from regard.recurrence.kernels.problem import ScanProblem
from regard.recurrence.kernels.rules import last_states, previous_states


def test_rows_that_end():
    """Three rows of 3, 2 and 1 tokens: a1 b1 c1 | a2 b2 | a3."""
    steps = torch.tensor([11, 21, 31, 12, 22, 13]).unsqueeze(-1)
    first = torch.tensor([10, 20, 30]).unsqueeze(-1)
    assert previous_states(first, steps, (3, 2, 1)).flatten().tolist() == [10, 20, 30, 11, 21, 12]
    assert last_states(steps, (3, 2, 1)).flatten().tolist() == [13, 22, 31]


def test_rows_of_one_length():
    steps = torch.tensor([11, 21, 12, 22]).unsqueeze(-1)
    first = torch.tensor([10, 20]).unsqueeze(-1)
    assert previous_states(first, steps, (2, 2)).flatten().tolist() == [10, 20, 11, 21]
    assert last_states(steps, (2, 2)).flatten().tolist() == [12, 22]
    assert previous_states(first, steps[:2], (2,)).flatten().tolist() == [10, 20]


def test_what_a_problem_says_of_itself():
    made = make("gru", 2, 3)
    asked = ScanProblem(made, normal(4, 2), (2, 2), made.initial(2))
    assert asked.even
    assert asked.training
    assert not ScanProblem(made, normal(3, 2), (2, 1), made.initial(2)).even
    with torch.no_grad():
        assert not asked.training
    made.requires_grad_(False)
    assert not asked.training
    assert ScanProblem(made, normal(4, 2).requires_grad_(), (2, 2), made.initial(2)).training
