"""Whether a config fits: what differs is named, what means the same or is only how a model runs is not."""

from dataclasses import replace

import pytest
import tiny

from regard.models.language import MaskedModelConfig
from regard.models.vision import VisionConfig
from regard.position.encoding import LearnedConfig
from regard.storage.huggingface.family import check_fits

MASKED = MaskedModelConfig(vocab_size=9, width=8, stack=tiny.stack())
VISION = VisionConfig(image_height=4, image_width=4, patch_size=2, num_labels=2, width=8, stack=tiny.stack())


@pytest.mark.parametrize(("config", "same"), [
    (MASKED, replace(MASKED, mlm_width=8)),
    (MASKED, replace(MASKED, stack=replace(MASKED.stack, dropout=0.3, activation_checkpointing=True))),
    (MASKED, replace(MASKED, stack=replace(MASKED.stack, mixer=replace(tiny.ATTENTION, key_heads=2, head_width=4)))),
    (MASKED, replace(MASKED, embedding=replace(MASKED.embedding, epsilon=0.5))),  # there is no norm that has it
    (VISION, replace(VISION, positions=LearnedConfig(max_positions=5))),
])
def test_what_means_the_same_fits(config, same):
    check_fits(config, same, "X")
    check_fits(same, config, "X")


@pytest.mark.parametrize(("other", "said"), [
    (replace(MASKED, mlm_width=4, tie_word_embeddings=False), "mlm_width is nothing, where X has 4"),
    (replace(MASKED, stack=replace(MASKED.stack, epsilon=0.5)), "stack.epsilon is 1e-05, where X has 0.5"),
    (replace(MASKED, stack=tiny.stack("alibi")), 'stack.mixer.position.kind is nothing, where X has "alibi"'),
])
def test_what_differs_is_named(other, said):
    with pytest.raises(ValueError, match="one that fits X") as error:
        check_fits(MASKED, other, "X")
    assert said in str(error.value)
