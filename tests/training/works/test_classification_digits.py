"""A small vision transformer learns scikit-learn's digits from IDX files: at least 95 % of those it has not seen."""

import numpy as np
import pytest
import torch

from regard.attention.layer import SelfAttentionConfig
from regard.blocks.feed_forward import FeedForwardConfig
from regard.blocks.stack import StackConfig
from regard.data.batches.feed import BatchConfig
from regard.data.images import scale_pixels
from regard.models.vision import VisionConfig
from regard.training.config import DataConfig, TrainingConfig
from regard.training.optimizer import ScheduleConfig
from regard.training.tasks.classification import ImageClassificationTask, survey_labelled
from regard.training.tasks.labelled_data import prepare_images

EPOCHS, PEAK, WARM = 12, 5e-3, 50


def idx_files(folder, images, labels):
    paths = []
    for name, array in (("images", images), ("labels", labels)):
        sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
        (folder / name).write_bytes(bytes([0, 0, 8, array.ndim]) + sizes + array.astype(np.uint8).tobytes())
        paths.append(str(folder / name))
    return paths


def test_digits(tmp_path):
    digits = pytest.importorskip("sklearn.datasets").load_digits()
    paths = idx_files(tmp_path, digits.images * 15.9375, digits.target)
    survey = survey_labelled(paths, [], DataConfig(validation_fraction=0.2))
    prepared = prepare_images(survey, tmp_path / "data")
    assert (len(prepared.training), len(prepared.validation)) == (1438, 359)
    made_from = VisionConfig(image_height=8, image_width=8, channels=1, patch_size=4, num_labels=10, width=64, stack=StackConfig(
        layers=1, dropout=0.1, mixer=SelfAttentionConfig(heads=4),
        feed_forward=FeedForwardConfig(ffn_width=128, activation="gelu")))
    settings = TrainingConfig(schedule=ScheduleConfig(learning_rate=PEAK, max_steps=1), batches=BatchConfig(batch_size=32), label_smoothing=0.1)
    work, model = ImageClassificationTask(prepared, made_from, settings), made_from.build()
    task, feed, objective = work.wrap(model), work.feed(0, 1), work.objective(model)
    model.train()
    optimiser, steps = torch.optim.AdamW(model.parameters()), EPOCHS * feed.steps
    for step in range(steps):
        optimiser.param_groups[0]["lr"] = PEAK * min(1.0, (step + 1) / WARM) * (1 - step / steps)
        batch = feed.at(step)
        (objective(batch).total / batch.tokens).backward()
        optimiser.step()
        optimiser.zero_grad()
    verdict = work.validate(task)
    assert verdict.scores["accuracy"] >= 0.95
    model.eval()
    images = torch.from_numpy(prepared.validation.stream.reshape(-1, 1, 8, 8).copy())
    found = task.label_images(scale_pixels(images)).argmax(-1).numpy()
    assert (found == prepared.validation_labels).mean() == pytest.approx(verdict.scores["accuracy"])
