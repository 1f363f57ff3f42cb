"""How probable a model finds texts that others wrote: forced decoding.

It reads them after their prompts, all rows together; nothing is chosen. It knows the contract of the models, and not
what the ids mean.

Legend: B rows, n tokens of a chunk, V vocabulary.
"""

from collections.abc import Sequence

import torch

from regard.decoding.reading import CHUNK
from regard.decoding.request import Request
from regard.models.contract import Memory, Tokens, Writer


@torch.no_grad()
def forced(model: Writer, memory: Memory | None, prompts: Sequence[Sequence[int]],
           texts: Sequence[Sequence[int]]) -> list[list[float]]:
    """The log-probability of each token of each text, given its prompt and what is before it."""
    request = Request.of(model, memory, prompts, (), [len(text) for text in texts], 0, ())
    rows = [[*prompt, *text] for prompt, text in zip(request.prompts, texts, strict=True)]
    ids_BN = Tokens.of(rows, padding=rows[0][0]).ids.to(request.device)  # what fills up is read, and told of nobody
    state, found = model.start(memory, rows=len(rows), capacity=ids_BN.shape[1]), []
    wanted_BN = torch.cat([ids_BN[:, 1:], ids_BN[:, :1]], dim=1)
    for chunk_Bn, next_Bn in zip(ids_BN.split(CHUNK, dim=1), wanted_BN.split(CHUNK, dim=1), strict=True):
        logits_BnV, state, _ = model.step(state, chunk_Bn)
        logs_BnV = logits_BnV.log_softmax(-1, dtype=torch.promote_types(logits_BnV.dtype, torch.float32))
        found.append(logs_BnV.gather(-1, next_Bn.unsqueeze(-1)).squeeze(-1))
    logs = torch.cat(found, dim=1).tolist()
    return [row[len(prompt) - 1:len(prompt) - 1 + len(text)]
            for row, prompt, text in zip(logs, request.prompts, texts, strict=True)]
