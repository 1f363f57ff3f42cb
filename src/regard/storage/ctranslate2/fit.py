"""Whether CTranslate2 can hold a model of ours: all that it has no place for, by the keys of the config.

It computes Transformers: blocks of softmax attention over dot products and a feed-forward part, with norms before or
behind. Positions of any kind that are added to tokens fit, because they are written as a table. Dropout is how a model
was trained, and `backend` and `checkpoint` how it is run: they are not asked for.

It reads configs. It does not know tensors, and does not import CTranslate2.
"""

from collections.abc import Iterator

from regard import checks
from regard.attention.layer import AttentionConfig
from regard.attention.mixing import SelfAttentionConfig
from regard.blocks.stack import StackConfig
from regard.models.build import ModelConfig
from regard.models.embedding import EmbeddingConfig
from regard.models.encoder_decoder import EncoderDecoderConfig
from regard.models.language import LanguageConfig

SCALES = {"scaled_dot": -0.5, "scaled_dot_d": -1.0, "dot": 0.0}
"""The scores that fit, and the power of a head's width that a dot product is multiplied by."""
Problem = tuple[str, str]
"""A key of the config, and why its value does not fit."""


def check(config: ModelConfig) -> None:
    """Refuse a config that does not fit, with every key that is in the way."""
    found = [*problems(config)]
    if found:
        lines = "\n  ".join(f"model.{key}: {why}" for key, why in found)
        raise checks.wrong("config", "one that CTranslate2 can run", "not", f"These have no place in it:\n  {lines}")


def problems(config: ModelConfig) -> Iterator[Problem]:
    """All that has no place in CTranslate2."""
    if isinstance(config, EncoderDecoderConfig):
        yield from _embedding(config.embedding, config.encoder)
        yield from _stack("encoder", config.encoder)
        yield from _stack("decoder", config.decoder)
        yield from _cross(config.decoder)
        for key in ("norm", "epsilon"):
            mine, others = getattr(config.encoder, key), getattr(config.decoder, key)
            if mine != others:
                yield f"decoder.{key}", f"it is one for the whole model, and here {others} beside {mine} in the encoder"
    elif isinstance(config, LanguageConfig):
        yield from _embedding(config.embedding, config.stack)
        yield from _stack("stack", config.stack)
    else:
        yield "kind", f'it runs models that write with attention alone, and this is "{config.kind}"'


def _embedding(embedding: EmbeddingConfig, stack: StackConfig) -> Iterator[Problem]:
    if embedding.joined != "added":
        yield "embedding.joined", "positions are added to tokens, and not set beside them"
    if embedding.segments:
        yield "embedding.segments", "texts are not told apart by a table of segments"
    if embedding.norm is None:
        return
    for key in ("norm", "epsilon"):
        mine, others = getattr(embedding, key), getattr(stack, key)
        if mine != others:
            yield f"embedding.{key}", f"it is one for the whole model, and here {mine} beside {others} in the blocks"


def _stack(name: str, stack: StackConfig) -> Iterator[Problem]:
    if stack.order == "plain":
        yield f"{name}.order", 'blocks have norms and residuals, and "plain" has neither'
    if not isinstance(stack.mixer, SelfAttentionConfig):
        yield f"{name}.mixer.kind", f'tokens are mixed by attention alone, and not by "{stack.mixer.kind}"'
    else:
        yield from _attention(f"{name}.mixer", stack.mixer)
        if stack.mixer.window is not None:
            yield f"{name}.mixer.window", "every token sees all others, or all before it"
        if stack.mixer.position is not None:
            kind = stack.mixer.position.kind
            yield f"{name}.mixer.position", f'positions are those of the embedding, and not "{kind}"'
    if stack.feed_forward is None:
        yield f"{name}.feed_forward", "every block has one"


def _attention(name: str, attention: AttentionConfig) -> Iterator[Problem]:
    if attention.score not in SCALES:
        yield f"{name}.score", f'scores are dot products, and "{attention.score}" is none'
    if attention.normalize != "softmax":
        yield f"{name}.normalize", f'scores are normalised by softmax, and not by "{attention.normalize}"'
    if attention.key_heads not in (None, attention.heads):
        yield f"{name}.key_heads", "every head has keys of its own"
    if attention.head_width is not None:
        yield f"{name}.head_width", "it follows from the width and the heads: leave it out"


def _cross(stack: StackConfig) -> Iterator[Problem]:
    if stack.cross is None or not isinstance(stack.mixer, SelfAttentionConfig):
        return  # what is wrong with that has been said
    yield from _attention("decoder.cross", stack.cross)
    if stack.cross.heads != stack.mixer.heads:
        yield "decoder.cross.heads", f"they are as many as those of the mixer, {stack.mixer.heads}"
