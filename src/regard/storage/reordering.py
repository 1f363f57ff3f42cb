"""The features of a model in another order, which changes nothing that it computes.

    interleaved   sin, cos, sin, cos, ...      halves   sin, sin, ..., cos, cos, ...

What the blocks of a Transformer pass on is a vector of features, and nothing asks which of them stands where: when all
matrices that read it have their columns in another order, and all that write it their rows, the logits are the same.
So a model with sinusoids of one layout becomes one with the other. It knows encoder-decoders with attention alone.
"""

import re
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from regard.attention.mixing import SelfAttentionConfig
from regard.models.build import ModelConfig
from regard.models.encoder_decoder import EncoderDecoderConfig
from regard.position.encoding import SinusoidalConfig

READ = re.compile(r"(query|key|value|up|gate|embedding\.tokens|decoder\.output)\.weight$")
"""What has a column for each feature."""
WRITTEN = re.compile(r"((mixer\.layer|cross)\.output|feed_forward\.down|norm)\.(weight|bias)$")
"""What has a row for each feature, or a number."""


def halves(config: ModelConfig, tensors: Mapping[str, Tensor]) -> tuple[ModelConfig, Mapping[str, Tensor]]:
    """A translator with interleaved sinusoids as the same one with halves; any other model as it is."""
    if not isinstance(config, EncoderDecoderConfig) or config.embedding.joined != "added":
        return config, tensors
    places, mixers = config.embedding.positions, (config.encoder.mixer, config.decoder.mixer)
    if not isinstance(places, SinusoidalConfig) or places.layout != "interleaved":
        return config, tensors
    if not all(isinstance(mixer, SelfAttentionConfig) for mixer in mixers):
        return config, tensors
    order = torch.cat((torch.arange(0, config.width, 2), torch.arange(1, config.width, 2)))
    embedding = replace(config.embedding, positions=replace(places, layout="halves"))
    return replace(config, embedding=embedding), {name: _moved(name, tensor, order) for name, tensor in tensors.items()}


def _moved(name: str, tensor: Tensor, order: Tensor) -> Tensor:
    order = order.to(tensor.device)
    if WRITTEN.search(name):
        return tensor[order]
    return tensor[:, order] if READ.search(name) else tensor
