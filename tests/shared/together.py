"""Work that two processes do together, or one alone: the gradients of a step, in many cases.

As a script it is one of two processes that torchrun has started:

    torchrun --nproc-per-node 2 together.py FOLDER      writes what each found into the folder
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

import tiny
import torch
from safetensors.torch import save_file
from torch.nn.parallel import DistributedDataParallel

from regard.blocks.stack import StackConfig
from regard.data.batches.batch import Batch
from regard.models.language import LanguageModelConfig
from regard.tokens import IGNORED_LABEL, Tokens
from regard.training.distributed import DistributedContext
from regard.training.loss import logits_loss, token_loss
from regard.training.tasks.interface import Objective

SHARINGS = ("ddp", "fsdp")
LONG = [([3, 4, 5], [6, 7]), ([3], [4]), ([5, 6, 7, 8, 9], [3, 4, 5, 6]), ([4, 4], [5, 5, 5])]
STEPS = {  # batches of a step, one after another: what process 0 and what process 1 have of each
    "uneven": [(LONG[:1], LONG[1:])],
    "accumulated": [(LONG[:1], LONG[1:2]), (LONG[2:3], LONG[3:])],
    "empty": [(LONG, [])],
    "empty at last": [(LONG[:1], LONG[1:]), (LONG[:2], [])],
    "short": [(LONG, [([3], [4])])],
}


class Translating(Objective):
    """The loss of pairs."""

    def forward(self, batch):
        return token_loss(self.model.features(batch.source, batch.inputs), self.model.output, batch.labels, 0.1)


class Writing(Objective):
    """The loss of targets alone."""

    def forward(self, batch):
        return token_loss(self.model.features(batch.inputs), self.model.output, batch.labels, 0.1)


class GoingOn(Objective):
    """The same, token after token from a state."""

    def forward(self, batch):
        ids = batch.inputs.ids
        state = self.model.start(rows=ids.shape[0], capacity=ids.shape[1])
        return logits_loss(self.model.step(state, ids).logits, batch.labels, 0.1)


AGAIN = replace(tiny.TRANSLATING["attention"], encoder=tiny.stack(activation_checkpointing=True),
                decoder=tiny.stack(cross=True, activation_checkpointing=True))
LSTMN = LanguageModelConfig(vocab_size=tiny.TARGET, width=tiny.WIDTH,
                       stack=StackConfig(layers=2, norm_position="none", mixer=tiny.MIXERS["lstmn"]))
MODELS = {  # objective, config, and the steps that are taken
    "attention": (Translating, tiny.TRANSLATING["attention"], tuple(STEPS)),
    "tied": (Translating, tiny.TRANSLATING["post-norm"], ("uneven", "accumulated", "empty")),
    "again": (Translating, AGAIN, ("accumulated",)),
    "relative": (Translating, tiny.TRANSLATING["relative"], ("empty",)),
    "recurrence": (Translating, tiny.TRANSLATING["recurrence"], ("short", "empty")),
    "seq2seq": (Translating, tiny.TRANSLATING["seq2seq-attention"], ("uneven", "short", "empty at last")),
    "lstmn": (Writing, LSTMN, ("empty",)),
    "going on": (GoingOn, tiny.LANGUAGE["old"], ("accumulated", "empty")),
}
CASES = [(name, case) for name, (_, _, cases) in MODELS.items() for case in cases]


def batch(pairs):
    """A batch of pairs; it may have none."""
    sources, targets = [source for source, _ in pairs], [target for _, target in pairs]
    labels = Tokens.of(targets, padding=IGNORED_LABEL).ids
    return Batch(Tokens.of(sources), Tokens.of(targets), labels, None, sum(map(len, targets)))


def objective(name):
    """The objective of a model, always with the same numbers."""
    kind, config, _ = MODELS[name]
    return kind(tiny.built(config).train())


def gradients(made):
    """The gradient of every parameter, whole."""
    found = {}
    for name, parameter in made.model.named_parameters():
        gradient = torch.zeros(parameter.shape).double() if parameter.grad is None else parameter.grad
        found[name] = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
    return found


def step(processes, name, sharing, parts):
    """The gradients of a step."""
    made = objective(name)
    if not processes.main:  # what counts is what the main process has
        with torch.no_grad():
            next(made.parameters()).zero_()
    module = processes.wrap(made, sharing)
    batches = [batch(part[processes.rank]) for part in parts]
    tokens = processes.sum(sum(one.tokens for one in batches))
    for _ in range(2):  # the second step after any first one is as the first
        made.zero_grad()
        for one in batches:
            with processes.gradient_sync(module, last=one is batches[-1]):
                (module(one).total * (processes.count / tokens)).backward()
    assert isinstance(module, DistributedDataParallel) == (sharing == "ddp")
    return gradients(made)


def before_the_last(processes, sharing):
    """The gradient of a parameter, where it is there, after a batch that is not the last of its step."""
    made = objective("attention")
    module = processes.wrap(made, sharing)
    with processes.gradient_sync(module, last=False):
        module(batch(LONG[processes.rank:processes.rank + 1])).total.backward()
    gradient = next(made.parameters()).grad
    return None if gradient is None else gradient.norm().item()


def messages(processes):
    """What processes tell each other."""
    processes.check_same("a\nb")
    found = {"sum": processes.sum(processes.rank + 1), "parts": processes.sum(0.5 * processes.rank),
             "any": [processes.any(processes.rank == 1), processes.any(False)],
             "told": processes.broadcast({"ü": [1.5, processes.rank]}), "main": processes.main,
             "rank": [processes.rank, processes.count, processes.local_rank], "device": str(processes.device("cpu"))}
    try:
        processes.check_same("a\nb" if processes.main else "a\nc\nd", "config")
    except ValueError as error:
        found["same"] = str(error)
    processes.barrier()
    return found


def main(folder):
    """Everything, as one of the processes."""
    with DistributedContext.joined() as processes:
        found = {f"{sharing}/{name}/{case}/{parameter}": gradient.clone()
                 for sharing in SHARINGS for name, case in CASES
                 for parameter, gradient in step(processes, name, sharing, STEPS[case]).items()}
        save_file(found, folder / f"{processes.rank}.safetensors")
        told = {"messages": messages(processes)} | {one: before_the_last(processes, one) for one in SHARINGS}
        (folder / f"{processes.rank}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
