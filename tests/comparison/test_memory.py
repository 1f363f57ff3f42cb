"""Memory tasks: models are equal but for the mixer, none sees the future, and convolution sees the first token."""

import json
import sys
from dataclasses import replace

import pytest
import torch

from regard.comparison import memory
from regard.comparison import memory as published
from regard.comparison.memory import (
    MEMORY_MIXERS,
    SCALES,
    MemoryBudget,
    MemoryModel,
    MemoryResult,
    _validate,
    build_model,
    learn,
    result_lines,
    results_figure,
    results_table,
    save_figures,
)
from regard.comparison.memory_tasks import MEMORY_TASKS, AddingTask, CopyTask, RecallTask, make_task


@pytest.mark.parametrize("mixer", MEMORY_MIXERS)
@pytest.mark.parametrize("name", MEMORY_TASKS)
def test_every_mixer_reads_every_task_and_has_as_many_parameters_as_it_may(name, mixer):
    made = make_task(name, 16)
    model = build_model(made, mixer, 12_000)
    batch = made.batch(2, torch.Generator().manual_seed(0))
    outputs = model(batch.inputs)
    assert outputs.shape == (2, made.tokens, made.outputs)
    width = model.output.in_features
    counts = [sum(parameter.numel() for parameter in MemoryModel(made, MEMORY_MIXERS[mixer], size).parameters())
              for size in (width, width + MEMORY_MIXERS[mixer].width_step)]
    assert counts[0] <= 12_000 < counts[1]
    assert counts[0] == sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("mixer", MEMORY_MIXERS)
def test_no_mixer_sees_the_future_and_all_see_the_first_token(mixer):
    made = make_task("copy", 200)
    model = build_model(made, mixer, 60_000).double().eval()
    for parameter in model.parameters():  # a new layer of RWKV gives zeros
        if not parameter.any():
            torch.nn.init.normal_(parameter, std=0.1)
    inputs = made.batch(1, torch.Generator().manual_seed(0)).inputs
    x = model.read(inputs).detach().requires_grad_()
    outputs = model.output(model.stack(x))
    (late,) = torch.autograd.grad(outputs[0, 100].sum(), x, retain_graph=True)
    assert not late[0, 101:].any()
    (early,) = torch.autograd.grad(outputs[0, -1].sum(), x)
    assert early[0, 0].any()


@pytest.mark.parametrize(("tokens", "layers"), [(5, 1), (6, 2), (14, 2), (15, 3), (1044, 8)])
def test_convolution_is_as_deep_as_it_must_be_and_no_deeper(tokens, layers):
    model = build_model(make_task("adding", tokens), "convolution", 200_000)
    assert len(model.stack.blocks) == layers
    assert model.seen >= 1.5 * tokens > 1 + 7 * (2 ** (layers - 1) - 1)


def test_what_is_wrong_is_said():
    with pytest.raises(ValueError, match=r"`parameters` must be at least .* for convolution and 40 tokens"):
        build_model(make_task("copy", 20), "convolution", 100)
    with pytest.raises(ValueError, match="Did you mean \"convolution\""):
        build_model(make_task("copy", 20), "convolutions", 10_000)


TINY = MemoryBudget(steps=6, rows=4, parameters=6_000, validation_rows=10, every=3)


@pytest.mark.thorough
def test_attention_learns_to_add_two_numbers():
    result = learn(AddingTask(12), "attention",
                   MemoryBudget(steps=200, rows=32, parameters=27_000, validation_rows=200, every=50), 0)
    assert result.loss < 0.25 * result.chance
    assert result.steps in (50, 100, 150, 200)
    assert [step for step, _ in result.curve] == list(range(50, result.steps + 1, 50))
    assert result.curve[-1][1] == result.loss


def test_the_same_seed_gives_the_same_and_another_does_not():
    first = learn(CopyTask(3), "gru", TINY, 1)
    torch.rand(1)  # the state of torch's own generator does not matter
    second, other = (learn(CopyTask(3), "gru", TINY, seed) for seed in (1, 2))
    assert first.loss == second.loss
    assert first.loss != other.loss


def test_what_is_solved_ends_early(monkeypatch):
    monkeypatch.setattr("regard.comparison.memory.SOLVED_FRACTION", 100.0)
    seen = []
    result = learn(CopyTask(3), "rnn", TINY, 0, on_validation=lambda step, loss: seen.append((step, loss)))
    assert result.steps == 3
    assert result.solved
    assert seen == [*result.curve]


def test_a_loss_that_is_no_number_ends_the_training_and_becomes_null(monkeypatch):
    monkeypatch.setattr(CopyTask, "score", lambda self, outputs,
                        batch: AddingTask.score(self, outputs.sum(-1, keepdim=True)
                                                                                         * float("nan"), batch))
    result = learn(CopyTask(3), "rnn", TINY, 0)
    assert result.steps == 3
    assert not result.solved
    assert result.table()["loss"] is None
    json.dumps(result.table(), allow_nan=False)


def test_the_held_out_loss_is_the_mean_over_all_sequences_however_they_are_cut():
    made = CopyTask(3)
    model, held = build_model(made, "rnn", 6_000), made.batch(10, torch.Generator().manual_seed(0))
    whole, parts = _validate(model, made, held, 10), _validate(model, made, held, 3)
    assert parts == pytest.approx(whole)


def test_sequences_grow_while_recall_is_learned_and_those_to_judge_by_are_long(monkeypatch):
    lengths = []
    plain = RecallTask.batch
    monkeypatch.setattr(RecallTask, "batch", lambda self, rows, generator: lengths.append((self.length, rows)) or plain(
        self, rows, generator))
    learn(RecallTask(200), "rnn", MemoryBudget(steps=10, rows=2, parameters=20_000, validation_rows=3, every=5), 0)
    assert lengths == [(200, 3), (64, 2), (128, 2), *[(200, 2)] * 8]


def test_a_smaller_rate_learns_less_in_a_step():
    slow, fast = (learn(CopyTask(3), "gru",
                        MemoryBudget(steps=6, rows=4, parameters=6_000, validation_rows=10, rate=rate),
                        0).loss
                  for rate in (0.01, 1.0))
    untaught = learn(CopyTask(3), "gru",
                     MemoryBudget(steps=1, rows=4, parameters=6_000, validation_rows=10, rate=1e-9), 0).loss
    assert fast < slow < untaught


def test_torch_is_left_as_it_was():
    state = torch.get_rng_state()
    learn(CopyTask(3), "rnn", TINY, 0)
    assert torch.equal(torch.get_rng_state(), state)
    assert sys.float_info.min / 2 > 0


@pytest.mark.gpu
def test_a_gpu_learns_too():
    result = learn(AddingTask(12), "attention",
                   MemoryBudget(steps=200, rows=32, parameters=27_000, validation_rows=200), 0,
                   "cuda")
    assert result.loss < 0.25 * result.chance


def test_what_is_wrong_is_said_training():
    with pytest.raises(ValueError, match="`steps` must be a whole number, at least 1"):
        MemoryBudget(steps=0)
    with pytest.raises(ValueError, match="`rate` must be a number above 0"):
        MemoryBudget(rate=0.0)


TINY_RUNNING = memory.MemoryBudget(steps=2, rows=2, parameters=6_000, validation_rows=4, every=1)


def test_every_mixer_at_every_length_with_every_seed():
    told, done = [], []
    results = memory.run("copy", ("rnn", "attention"), (3, 2), TINY_RUNNING, seeds=2,
                         on_validation=lambda *what: told.append(what[:4]), on_result=done.append)
    assert [(one.length, one.mixer, one.seed) for one in results] == [
        (length, mixer, seed) for length in (3, 2) for mixer in ("rnn", "attention") for seed in (0, 1)]
    assert done == results
    assert told == [(one.mixer, one.length, one.seed, step) for one in results for step in (1, 2)]


def test_all_mixers_get_the_same_sequences_with_a_seed(monkeypatch):
    seen = []
    batch = MEMORY_TASKS["copy"].batch
    monkeypatch.setattr(MEMORY_TASKS["copy"], "batch", lambda self, rows, generator: seen.append(
        batch(self, rows, generator)) or seen[-1])
    memory.run("copy", ("rnn", "convolution"), (3,), TINY_RUNNING)
    first, second = seen[:len(seen) // 2], seen[len(seen) // 2:]
    assert len(first) == 3  # two to learn from, one to judge by
    assert all(bool((one.inputs == other.inputs).all()) for one, other in zip(first, second, strict=True))


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", MEMORY_TASKS)
def test_every_mixer_fits_into_the_parameters_of_a_scale(scale, name):
    for length in SCALES[scale].lengths[name]:
        for mixer in MEMORY_MIXERS:
            model = build_model(make_task(name, length), mixer, SCALES[scale].budget.parameters)
            assert model.output.in_features >= 16


def test_every_task_has_published_figures():
    assert {figure.task for figure in published.PUBLISHED} == set(MEMORY_TASKS)
    assert all(figure.source for figure in published.PUBLISHED)


@pytest.mark.parametrize(("call", "said"), [
    ({"task": "copies"}, 'Did you mean "copy"'),
    ({"mixers": ("lstn",)}, 'Did you mean "lstm"'),
    ({"mixers": ()}, "`mixers` must be at least one"),
    ({"lengths": ()}, "`lengths` must be at least one"),
    ({"lengths": (0,)}, "`length` must be a whole number, at least 1"),
    ({"seeds": 0}, "`seeds` must be a whole number, at least 1"),
    ({"scale": "quik"}, 'Did you mean "quick"'),
])
def test_a_wrong_call_is_refused_before_any_work(call, said, monkeypatch):
    monkeypatch.setattr("regard.comparison.memory.learn", lambda *_: pytest.fail("it went to work"))
    with pytest.raises(ValueError, match=said):
        memory.run(**{"task": "copy", "budget": TINY_RUNNING, **call})


COPY = MemoryResult(task="copy", mixer="lstm", length=80, seed=0, tokens=100, loss=0.2, accuracy=0.2, chance=0.20794,
                    chance_accuracy=0.125, parameters=1000, width=8, layers=2, seen=None, steps=40, seconds=1.5,
                    curve=((20, 0.3), (40, 0.2)))
RESULTS = [COPY, replace(COPY, seed=1, loss=0.16), replace(COPY, seed=2, loss=0.18),
           replace(COPY, mixer="convolution", loss=1e-5, seen=106, layers=4, steps=20)]
RECALL = replace(COPY, task="recall", length=64, accuracy=0.5, chance=3.4657, chance_accuracy=1 / 32)


def test_lines_have_medians_ranges_and_a_star_for_what_is_solved():
    rows = {line.split("  ")[0]: line for line in result_lines(RESULTS)[:5]}
    assert "0.180 [0.160, 0.200]" in rows["lstm"]
    assert "*" not in rows["lstm"]
    assert "all" in rows["lstm"]
    assert "1.0e-05*" in rows["convolution"]
    assert "106" in rows["convolution"]
    assert "0.208" in rows["without memory"]
    published = next(line for line in result_lines(RESULTS) if "3.5e-5" in line)
    assert " ".join(published.split()) == "convolution (TCN) 1,000 loss 3.5e-5 Bai, Kolter, Koltun 2018"


def test_a_star_needs_every_seed():
    row = next(line for line in result_lines([COPY, replace(COPY, seed=1, loss=1e-5)]) if line.startswith("lstm"))
    assert "*" not in row


def test_recall_is_shown_by_its_accuracy():
    shown = "\n".join(result_lines([RECALL]))
    assert "accuracy on new sequences" in shown
    assert "0.500" in shown
    assert "0.0312" in shown


def test_a_length_that_a_mixer_was_not_asked_for_is_a_dash():
    row = next(line for line in result_lines([*RESULTS, replace(COPY, length=5)]) if line.startswith("convolution"))
    assert row.split()[1] == "-"


def test_the_table_is_json_with_everything_that_is_known():
    made = json.loads(json.dumps(results_table(RESULTS), allow_nan=False))
    assert made["lengths"] == [80]
    assert made["mixers"] == made["ways"] == ["lstm", "convolution"]
    assert made["results"][3]["mixer"] == made["results"][3]["way"] == "convolution"
    assert made["results"][3]["solved"]
    assert not made["results"][0]["solved"]
    assert made["results"][0]["curve"] == [[20, 0.3], [40, 0.2]]
    assert {figure["source"] for figure in made["published"]} >= {"Bai, Kolter, Koltun 2018"}


def test_the_picture_has_the_published_figures_that_are_not_longer():
    long = [replace(one, length=1024) for one in RESULTS]
    assert _crosses([*RESULTS, *long]) == [([1000], [0.0204]), ([1000], [3.5e-5])]
    attention = [replace(RECALL, mixer="attention"), replace(RECALL, mixer="attention", length=256)]
    assert _crosses(attention) == [([64, 256], [1.0, 1.0])]


def _crosses(results):
    """Where they stand; the one of the legend stands nowhere."""
    found = [line for line in results_figure(results).axes[0].get_lines() if line.get_marker() == "x"]
    return [(list(line.get_xdata()), list(line.get_ydata())) for line in found if len(line.get_xdata())]


@pytest.mark.parametrize("results", [RESULTS, [RECALL]])
def test_the_picture_has_a_line_for_every_mixer_and_one_for_chance(results):
    (axes,) = results_figure(results).axes
    names = [line.get_label() for line in axes.get_lines()]
    assert names == [*dict.fromkeys(one.mixer for one in results), "without memory"]
    assert list(axes.get_lines()[0].get_ydata()) == ([0.18] if results is RESULTS else [0.5])


def test_every_mixer_has_its_own_colour_which_is_the_same_in_every_picture():
    def colours(mixers):
        (axes,) = results_figure([replace(COPY, mixer=mixer) for mixer in mixers]).axes
        return {line.get_label(): line.get_color() for line in axes.get_lines() if line.get_label() in mixers}

    every = colours(["rnn", "lstm", "gru", "convolution", "attention", "rwkv4", "rwkv7"])
    assert len({*every.values()}) == 7
    some = colours(["rwkv7", "lstm"])
    assert some == {mixer: every[mixer] for mixer in some}


def test_pictures_are_saved_under_the_name_of_the_task(tmp_path):
    assert sorted(path.name for path in tmp_path.iterdir()) == []
    save_figures(RESULTS, tmp_path)
    assert (tmp_path / "copy.svg").read_bytes()[:5] == b"<?xml"
    assert (tmp_path / "copy.png").read_bytes()[1:4] == b"PNG"


def test_results_of_two_tasks_are_refused():
    with pytest.raises(ValueError, match="`results` must be those of one task, but is copy, recall"):
        result_lines([COPY, RECALL])
    with pytest.raises(ValueError, match="empty"):
        result_lines([])
