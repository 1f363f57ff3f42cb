"""The serving engine under load: a result never depends on what else is running."""

import random
import threading
import time
from dataclasses import replace

import ending
import pytest
import texting
from tiny import built, seq2seq, translating
from torch.testing import assert_close

from regard.models.seq2seq import Seq2SeqAttentionConfig
from regard.serving.engine import ServingEngine
from regard.tasks.load import make_task
from regard.tasks.search import GREEDY, Beam, Sampling
from regard.tasks.translator import Translator

WITHIN = 1e-5
"""Log-probabilities from batches of different sizes differ in the last bits of float32, also on a CPU."""
STRATEGIES = [
    GREEDY, Beam(beams=1), Beam(beams=5), Beam(beams=5, nbest=3), Beam(beams=5, max_length=4),
    Beam(beams=4, nbest=4, num_beam_groups=2), Beam(beams=2, min_length=5, max_length=9),
    Beam(beams=3, no_repeat_ngram_size=2, max_length=20),
    Sampling(seed=1), Sampling(seed=2), Sampling(seed=1, num_samples=3, top_p=0.9), Sampling(seed=7, max_length=6),
]


def small(config_of):
    """An untrained translator with the tokenizers of `texting`, in float32, whose texts end sooner or later."""
    both = texting.joint()
    config = config_of(source_vocab_size=both.source.size, target_vocab_size=both.target.size)
    return make_task(built(config).float(), config, tokenizer=both)


def recurrent(**sizes):
    config = seq2seq(direction="both", input_feeding=True, attention=Seq2SeqAttentionConfig())
    return replace(config, **sizes)


TASKS = {
    "transformer": lambda: ending.translator(9.0),
    "seq2seq-attention": lambda: small(recurrent),
    "convolution": lambda: small(lambda **options: translating("convolution", **options)),
    "language model": lambda: texting.completer(of=texting.tokenizer),
}


def requests_for(task, count, rng, longest):
    """Random requests: the texts and the options of `submit`."""
    sentences = [source for source, _ in texting.pairs()]
    found = []
    for _ in range(count):
        texts = [" ".join(rng.sample(sentences, rng.choice((1, 1, 1, 3)))) for _ in range(rng.choice((1, 1, 3)))]
        options = {"strategy": rng.choice(STRATEGIES)}
        options["strategy"] = replace(options["strategy"], max_length=options["strategy"].max_length or longest)
        if isinstance(task, Translator) and rng.random() < 0.25:
            options["prefix"] = rng.choice(("Le", ["ab" * number for number in range(len(texts))]))
        elif isinstance(task, Translator) and rng.random() < 0.3 and isinstance(options["strategy"], Beam):
            options["glossary"] = {rng.choice(texts[0].split()).strip("?.,!"): "chien", "the": ["gros", "maison"]}
        found.append((texts, options))
    return found


def assert_same(found, wanted):
    for mine, theirs in zip(found, wanted, strict=True):
        for one, other in zip((mine, *mine.alternatives), (theirs, *theirs.alternatives), strict=True):
            assert (one.text, one.ids, one.cut) == (other.text, other.ids, other.cut)
            assert one.score == pytest.approx(other.score, abs=WITHIN * max(1, len(one.log_probabilities)))
            assert one.log_probabilities == pytest.approx(other.log_probabilities, abs=WITHIN)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name", TASKS)
def test_results_are_those_of_the_plain_call_under_load(name, threads):
    task, rng = TASKS[name](), random.Random(0)
    asked, found = requests_for(task, 18, rng, 40 if name == "transformer" else 12), {}

    def client(numbers):
        for number in numbers:
            texts, options = asked[number]
            time.sleep(0.002 * (number % 5))
            found[number] = engine.submit(texts, **options).result()

    with ServingEngine(task, token_budget=1 << 13, threads=threads) as engine:
        clients = [threading.Thread(target=client, args=(range(first, len(asked), 6),)) for first in range(6)]
        for one in clients:
            one.start()
        for one in clients:
            one.join()
        load = engine.load
    assert (load.queued, load.running, load.requests) == (0, 0, len(asked))
    for number, (texts, options) in enumerate(asked):
        assert_same(found[number], task.search(texts, **options))
    assert load.tokens == sum(len(one.log_probabilities) for results in found.values() for best in results
                              for one in (best, *best.alternatives))


def test_alignments_can_be_read_while_the_engine_runs():
    """Attention weights that another thread asks for are its own."""
    task, short = ending.translator(), replace(GREEDY, max_length=20)
    texts = [source for source, _ in texting.pairs()[:8]]
    wanted = [one.alignment.weights for one in task.search(texts, short)]
    with ServingEngine(task) as engine:
        results = engine.submit(texts, short).result()
        tickets = [engine.submit(texts, Beam(beams=3, coverage_penalty=0.1, max_length=20)) for _ in range(3)]
        for one, weights in zip(results, wanted, strict=True):
            assert_close(one.alignment.weights, weights, rtol=0, atol=WITHIN)
        for ticket in tickets:
            ticket.result()
