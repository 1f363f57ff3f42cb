"""A translator of a toy language, trained in a few seconds by a literal loop: its words and alternatives are real.

    the black cat sleeps        le chat noir dort
"""

import itertools
from dataclasses import replace
from functools import cache

import texting
import torch
from tiny import translating
from torch.nn.functional import cross_entropy

from regard.data.languages import LanguagePair
from regard.data.tokenizer.interface import PairTokenizer
from regard.data.tokenizer.training import UnigramConfig, train_tokenizer
from regard.serving.engine import ServingEngine
from regard.serving.models import ModelArgument, ModelCatalog, ServedModel, _inspector
from regard.tasks.load import make_task

ARTICLES = {"the": "le", "a": "un"}
ADJECTIVES = {"black": "noir", "small": "minuscule", "old": "ancien"}
NOUNS = {"cat": "chat", "dog": "chien", "horse": "cheval"}
VERBS = {"sleeps": "dort", "eats": "mange", "sees": "voit"}
STEPS, ROWS, WIDTH = 120, 18, 32


def pairs():
    """All sentences with their translations, with and without the adjective and the full stop."""
    for article, adjective, noun, verb, end in itertools.product(ARTICLES, ["", *ADJECTIVES], NOUNS, VERBS, ("", ".")):
        source = [article, adjective, noun, verb]
        target = [ARTICLES[article], NOUNS[noun], ADJECTIVES.get(adjective, ""), VERBS[verb]]
        yield tuple(" ".join(filter(None, side)) + end for side in (source, target))


@cache
def translator():
    """The translator."""
    examples = sorted(pairs())
    texts = [text for pair in examples for text in pair]
    one = train_tokenizer([*texts, *(side for pair in texting.pairs() for side in pair)],
                          UnigramConfig(vocab_size=420)).tokenizer
    config = replace(translating(source_vocab_size=one.size, target_vocab_size=one.size), width=WIDTH)
    torch.manual_seed(1)
    task = make_task(config.build().eval(), config, tokenizer=PairTokenizer(one, one))
    _train(task, examples)
    task.aligned_by = task.choose_alignment(examples[::4])
    return task


def _train(task, examples):
    optimizer = torch.optim.Adam(task.model.parameters(), lr=5e-3)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, STEPS)
    both, [end], draw = task.pair_tokenizer(), task.end_ids(), torch.Generator().manual_seed(2)
    sources = both.encode_sources([one for one, _ in examples])
    targets = both.encode_targets([one for _, one in examples])
    for _ in range(STEPS):
        rows = torch.randperm(len(examples), generator=draw)[:ROWS].tolist()
        wanted = [[*targets[row], end] for row in rows]
        longest = max(map(len, wanted))
        labels = torch.tensor([[*ids, *[-100] * (longest - len(ids))] for ids in wanted])
        logits = task.model(task.tokens([sources[row] for row in rows]),
                            task.tokens([[task.start_id(), *ids[:-1]] for ids in wanted]))
        optimizer.zero_grad()
        cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=0.1).backward()
        optimizer.step()
        rate.step()


def catalog():
    """en-fr; fr-en with the same model, which cannot know that language; and an untrained language model "writer"."""
    tasks = [("one", translator(), LanguagePair("en", "fr")), ("two", translator(), LanguagePair("fr", "en")),
             ("writer", texting.completer(), None)]
    return ModelCatalog([ServedModel(name, ModelArgument(name, pair), task, (pair,) if pair else (),
                                     ServingEngine(_inspector(task)), _inspector(task)) for name, task, pair in tasks])
