"""A translator that has learned nothing, but ends at different places, at once or never, as its source is."""

import copy

import texting
import torch

from regard.tasks.load import make_task


def translator(weight=7.0, pair=texting.joint):
    """The higher the weight of the end, the sooner it comes."""
    task = texting.translator(pair=pair, tie_word_embeddings=False, output_bias=True)
    model = copy.deepcopy(task.model)
    with torch.no_grad():
        model.decoder.output.weight.mul_(25.0)
        model.decoder.output.bias.zero_()[3] = weight
        for block in model.decoder.stack.blocks:
            block.cross.query.weight.mul_(3.0)
            block.cross.output.weight.mul_(4.0)
    return make_task(model.float(), task.config, tokenizer=task.tokenizer)
