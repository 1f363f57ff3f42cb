"""Training a forecaster: the loss against a literal loop, splits, and trainings from files."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

import regard
from regard.data.tracks.synthetic import simulate
from regard.data.tracks.windows import TrackWindow
from regard.models.tracks import Futures
from regard.training.tasks.tracks import MODE_WEIGHT, ForecastObjective, TrackBatch, TrackCollator, forecast_errors

SMALL = {"observed": 4, "predicted": 3, "futures": 5, "width": 16, "steps": 30,
         "training.validation.every": 15, "training.checkpoints.every": 15}


def write_tracks(path: Path, seed: int = 0, steps: int = 60) -> str:
    rows = simulate(steps=steps, agents=5, seed=seed)
    path.write_text("frame,agent,x,y\n" + "".join(f"{r.frame},{r.agent},{r.x},{r.y}\n" for r in rows))
    return str(path)


def draw_batch() -> TrackBatch:
    """Two windows of 3 and 1 agents, and one padding agent."""
    return TrackBatch(torch.randn(6, 4, 2), torch.tensor([0, 0, 0, 1, 1, -1]), torch.tensor([0, 1, 2, 4, 5]),
                      torch.randn(5, 3, 2), torch.tensor([1.0, 1.0, 1.0, 1.0, 0.0]), np.arange(2), 4)


def test_the_loss_equals_a_literal_loop() -> None:
    batch, unit = draw_batch(), torch.tensor(0.5)
    single, joint = (Futures(torch.randn(5, 4, 3, 2), torch.randn(5, 4)) for _ in range(2))
    joint = joint._replace(logits=joint.logits[[0, 0, 0, 3, 4]])
    found = forecast_errors(single, joint, batch, unit)

    def errors(futures: Futures, agent: int, k: int) -> list[float]:
        return [math.dist(futures.points[agent, k, p], batch.future[agent, p]) / 0.5 for p in range(3)]

    for agent in range(4):
        each = [errors(single, agent, k) for k in range(4)]
        ade, fde = [sum(one) / 3 for one in each], [one[-1] for one in each]
        best = min(range(4), key=lambda k: ade[k] + fde[k])
        assert float(found.single[agent]) == pytest.approx(min(ade) + min(fde), rel=1e-5)
        odds = torch.log_softmax(single.logits[agent].double(), 0)
        assert float(found.single_mode[agent]) == pytest.approx(-float(odds[best]), rel=1e-5)
    for members in ([0, 1, 2], [3]):
        each = [[errors(joint, agent, k) for agent in members] for k in range(4)]
        ade = [sum(map(sum, one)) / 3 / len(members) for one in each]
        fde = [sum(row[-1] for row in one) / len(members) for one in each]
        best = min(range(4), key=lambda k: ade[k] + fde[k])
        odds = torch.log_softmax(joint.logits[members[0]].double(), 0)
        for agent in members:
            assert float(found.joint[agent]) == pytest.approx(min(ade) + min(fde), rel=1e-5)
            assert float(found.joint_mode[agent]) == pytest.approx(-float(odds[best]), rel=1e-5)
            assert float(found.window_share[agent]) == pytest.approx(1 / len(members))
    assert float(found.window_share[4]) == 0


def test_padding_agents_change_neither_loss_nor_gradients() -> None:
    torch.set_default_dtype(torch.float64)
    rng = np.random.default_rng(0)
    windows = [TrackWindow(rng.normal(size=(n, 4, 2)).cumsum(1), rng.normal(size=(n, 3, 2)), tuple("abcde"[:n]), "",
                           0.0, 0) for n in (3, 1, 5)]
    windows[2].future[0, 1] = np.nan
    model = regard.build("tracks-tiny", observed_steps=4, predicted_steps=3, num_futures=4, dropout=0.0)
    results = []
    for padded in (False, True):
        batch = TrackCollator(windows, 4, 3, padded=padded)(np.arange(3), 0)
        assert batch.tokens == 8
        assert len(batch.past) == (9 if not padded else 64)
        model.zero_grad()
        loss = ForecastObjective(model)(batch)
        loss.total.backward()
        results.append([loss.total.detach(), loss.tokens, *(p.grad.clone() for p in model.parameters())])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other.to(one), rtol=1e-5, atol=1e-7)
    assert MODE_WEIGHT > 0


def test_an_empty_batch_has_no_loss() -> None:
    model = regard.build("tracks-tiny", observed_steps=4, predicted_steps=3)
    batch = TrackCollator([], 4, 3)(np.zeros(0, np.int64), 0)
    assert batch.tokens == 0
    loss = ForecastObjective(model)(batch)
    assert float(loss.total.detach()) == 0
    assert float(loss.tokens) == 0


def test_augmentation_mirrors_and_shortens_by_seed() -> None:
    rng = np.random.default_rng(0)
    window = TrackWindow(rng.normal(size=(2, 4, 2)).astype(np.float32), rng.normal(size=(2, 3, 2)).astype(np.float32),
                         ("a", "b"), "", 0.0, 0)
    collate, found = TrackCollator([window], 4, 3, seed=1), set()
    for epoch in range(150):
        batch, again = collate(np.arange(1), epoch), collate(np.arange(1), epoch)
        torch.testing.assert_close(batch.past, again.past, equal_nan=True)
        mirrored = bool(batch.future[0, 0, 1] != window.future[0, 0, 1])
        sign = torch.tensor([1.0, -1.0 if mirrored else 1.0])
        torch.testing.assert_close(batch.future, torch.from_numpy(window.future) * sign)
        missing = batch.past[:, :, 0].isnan()
        torch.testing.assert_close(batch.past[~missing], (torch.from_numpy(window.past) * sign)[~missing])
        assert not missing[:, 2:].any()
        found.add((mirrored, bool(missing.any())))
    assert len(found) == 4


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[regard.Forecaster, list[str], Path]:
    folder = tmp_path_factory.mktemp("tracks")
    files = [write_tracks(folder / f"{seed}.csv", seed) for seed in range(2)]
    return regard.train(files, folder / "model", task="tracks", **SMALL), files, folder


def test_a_training_from_files(trained: tuple[regard.Forecaster, list[str], Path]) -> None:
    forecaster, _, folder = trained
    assert isinstance(forecaster, regard.Forecaster)
    scores = forecaster.record["scores"]
    assert {"loss", "forecast_error", "ade", "fde", "jade", "jfde"} <= scores.keys()
    mean = sum(scores[name] for name in ("ade", "fde", "jade", "jfde")) / 4
    assert scores["forecast_error"] == pytest.approx(mean)
    assert float(forecaster.model.unit) > 0.2
    assert float(forecaster.model.anchors.abs().sum()) > 0
    assert scores["forecast_error"] == min(entry["scores"]["forecast_error"] for entry in forecaster.history
                                           if "scores" in entry)
    again = regard.load(folder / "model")
    for name, tensor in forecaster.model.state_dict().items():
        torch.testing.assert_close(again.model.state_dict()[name], tensor)
    assert "regard predict" in (folder / "model" / "README.md").read_text()


def test_validation_files_and_scenes(tmp_path: Path) -> None:
    files = [write_tracks(tmp_path / f"{seed}.csv", seed, steps=30) for seed in range(3)]
    found = regard.train(files[:2], tmp_path / "model", task="tracks", validation=files[2],
                         **{**SMALL, "steps": 2, "training.validation.every": 2})
    assert found.record["data"]["validation_files"] == ["2.csv"]
    assert found.record["data"]["tracks"] > 0


@pytest.mark.parametrize(("settings", "part"), [
    ({"observed": 1}, "observed"), ({"columns": "frame,agent"}, "columns"), ({"recipe": "gpt"}, "tracks"),
    ({"training.label_smoothing": 0.1}, "label_smoothing"), ({"observed": 50, "predicted": 50}, "100 steps")])
def test_what_is_refused_leaves_nothing_behind(tmp_path: Path, settings: dict[str, object], part: str) -> None:
    path = write_tracks(tmp_path / "a.csv", steps=30)
    with pytest.raises(ValueError, match=part):
        regard.train(path, tmp_path / "model", task="tracks", **{"steps": 2, **settings})
    assert not (tmp_path / "model").exists()


@pytest.mark.thorough
def test_a_resumed_training_equals_one_without_a_break(trained: tuple[regard.Forecaster, list[str], Path],
                                                       tmp_path: Path) -> None:
    whole, files, _ = trained

    def stop(event: regard.CallbackEvent) -> None:
        if event.step == 15:
            raise regard.StopTraining

    settings = {**SMALL, "training.log_every": 15}
    regard.train(files, tmp_path / "model", task="tracks", callbacks=[stop], **settings)
    resumed = regard.train(files, tmp_path / "model", task="tracks", resume=True, **settings)
    for name, tensor in whole.model.state_dict().items():
        torch.testing.assert_close(resumed.model.state_dict()[name], tensor, rtol=0, atol=0)


@pytest.mark.thorough
def test_fine_tuning_keeps_the_model(trained: tuple[regard.Forecaster, list[str], Path], tmp_path: Path) -> None:
    start, _, _ = trained
    path = write_tracks(tmp_path / "new.csv", 7)
    found = regard.train(path, tmp_path / "new", task="tracks", from_=start, steps=2)
    assert found.config == start.config
    torch.testing.assert_close(found.model.anchors, start.model.anchors)
