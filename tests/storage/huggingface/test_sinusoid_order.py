"""Features in another order: the same logits, from a model with the other layout of sinusoids."""

from dataclasses import replace

import pytest
import torch
from tiny import SOURCE, TRANSLATING, built, language, stack, translating

from regard.models.embedding import EmbeddingConfig
from regard.position.encoding import SinusoidalConfig
from regard.storage.huggingface.conversion import with_half_sinusoids
from regard.tokens import Tokens

NORMED = EmbeddingConfig(positions=SinusoidalConfig(), norm="layer", scale=True)


@pytest.mark.parametrize("config", [
    TRANSLATING["attention"], TRANSLATING["post-norm"], translating(tie_word_embeddings=False, output_bias=True),
    replace(translating(), width=9, encoder=replace(translating().encoder, mixer=replace(
        translating().encoder.mixer, heads=3)), decoder=replace(translating().decoder, mixer=replace(
            translating().decoder.mixer, heads=3), cross=replace(translating().decoder.cross, heads=3))),
    replace(translating(), embedding=NORMED, encoder=stack(gated=True)),
])
@torch.no_grad()
def test_the_logits_are_the_same(config):
    model = built(config)
    changed, tensors = with_half_sinusoids(config, model.state_dict())
    assert changed.embedding.positions.layout == "halves"
    assert replace(changed, embedding=config.embedding) == config
    other = changed.build().double().eval()
    other.load_state_dict(dict(tensors))
    source, target = Tokens.of([[5, 6, 7, 3], [4, 3]]), Tokens.of([[2, 4, 5], [2, 6]])
    want = model(source, target)
    torch.testing.assert_close(other(source, target), want, rtol=0, atol=1e-12)
    assert not torch.equal(tensors["encoder.embedding.tokens.weight"], model.state_dict()[
        "encoder.embedding.tokens.weight"])


@pytest.mark.parametrize("config", [
    translating(embedding="halves"), translating(embedding="learned"), language(embedding="sinusoidal"),
    TRANSLATING["convolution"], TRANSLATING["beside"], translating(share_embeddings=True, target_vocab_size=SOURCE,
                                                                   embedding="none"),
])
def test_others_stay_as_they_are(config):
    tensors = built(config).state_dict()
    assert with_half_sinusoids(config, tensors) == (config, tensors)
