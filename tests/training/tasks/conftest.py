"""What tests of the ways to train share: settings, files, and a disk that nobody waits for."""

import os

import pytest

from regard.data.batches.feed import BatchConfig
from regard.training.config import TrainingConfig, ValidationConfig
from regard.training.optimizer import ScheduleConfig


@pytest.fixture(autouse=True)
def _without_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture(scope="session")
def settings():
    """A function to the settings of a short training."""

    def make(tokens=64, most=1000, shown=2, **options):
        return TrainingConfig(schedule=ScheduleConfig(learning_rate=1e-3, max_steps=1),
                              batches=BatchConfig(max_tokens=tokens),
                              validation=ValidationConfig(max_examples=most, samples_shown=shown), **options)

    return make


@pytest.fixture
def file(tmp_path):
    """A function that writes a file and gives its path."""

    def make(name, text):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    return make
