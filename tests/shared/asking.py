"""What tests of translators ask besides: how probable a model finds what was written, and one without attention."""

from dataclasses import replace

import texting
import torch
from tiny import TRANSLATING, built

from regard.tasks.load import make_task


@torch.no_grad()
def by_force(task, text, one):
    """The log-probabilities of what was written, all at once."""
    memory = task.model.encode(task.tokens(task.tokenizer.encode_sources([text])))
    logs = task.model.decode(task.tokens([[task.start_id(), *one.ids]]), memory)[0].log_softmax(-1)
    return [float(logs[at, id_]) for at, id_ in enumerate([*one.ids] if one.cut else [*one.ids, 3])]


def without_attention():
    both = texting.joint()
    config = replace(TRANSLATING["seq2seq"], source_vocab_size=both.source.size, target_vocab_size=both.target.size)
    return make_task(built(config), config, tokenizer=both)
