"""The claims: each can be measured at a tiny size, and its verdict follows from its numbers, whatever they say."""

import json
import math
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent.parent.parent / "benchmarks"


@pytest.fixture(scope="module")
def claims():
    """The module benchmarks/claims.py, which imports its neighbours by their bare names."""
    before, known = list(sys.path), set(sys.modules)
    sys.path.insert(0, str(FOLDER))
    import claims

    yield claims
    sys.path[:] = before
    for name in set(sys.modules) - known:  # bare names such as `attention` may not stay
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(FOLDER)):
            del sys.modules[name]


TINY = {
    "forgets": {"lengths": (3, 4), "seeds": 1, "steps": 2},
    "gradients": {"length": 4, "seeds": 1, "steps": 2, "rows": 2},
    "positions": {"length": 5, "seeds": 1, "steps": 2},
    "parallel": {"lengths": (4, 8), "repeats": 1, "width": 8},
    "memory": {"lengths": (64, 128)},
    "normalisers": {"length": 8, "width": 8, "seeds": 2, "steps": 2},
    "scaling": {"widths": (16, 1024)},
    "scores": {"length": 8, "width": 8, "seeds": 1, "steps": 2},
    "heads": {"tasks": {"recall": 8}, "width": 8, "counts": (1, 2), "seeds": 1, "steps": 2},
    "norms": {"layers": 2, "rates": (1e-3,), "seeds": 1, "steps": 2, "length": 4},
}
CROSSED, PLACES = "words change places", {"all": 4, "words change places": 2}
PLAIN, CONTEXT = "seq2seq-tiny", "seq2seq-attention-tiny"
SHORT, LONG = "≤ 8", "> 12"
# For each claim numbers that bear it, and numbers that contradict it, each in one way.
BEAR = {
    "forgets": {"accuracy": {"rnn": {"5": [1.0], "80": [0.2]}, "lstm": {"5": [1.0], "80": [0.9]}}, "chance": 0.125},
    "gradients": {"flow": {cell: {"new": [[1.0, 0.5]], "trained": [[1.0, last]]}
                           for cell, last in (("rnn", 1e-6), ("lstm", 0.1))}, "length": 1},
    "bottleneck": {"bleu": {PLAIN: {SHORT: 60.0, LONG: 20.0}, CONTEXT: {SHORT: 70.0, LONG: 60.0}},
                   "pairs": {SHORT: 9, LONG: 9}},
    "order": {"error": {"all": {"attention": 0.2, "diagonal": 0.4}, CROSSED: {"attention": 0.2, "diagonal": 0.6}},
              "pairs": PLACES},
    "positions": {"error": {"no positions": 1e-15, "sinusoidal positions": 0.5},
                  "accuracy": {"no positions": [0.5], "sinusoidal positions": [1.0]}},
    "parallel": {"ms": {"lstm": {"64": 10.0, "1024": 200.0}, "attention": {"64": 2.0, "1024": 20.0}}},
    "memory": {"bytes": {"exact": {"512": 1e7, "1024": 4e7}, "sdpa": {"512": 1e6, "1024": 2e6}}},
    "normalisers": {"accuracy": {"softmax": [0.9, 1.0], "relu": [0.5, 0.4], "relu_sum": [0.8, 0.7]}},
    "scaling": {"by": {"dot": {"16": {"through": 0.5}, "1024": {"through": 0.1}},
                       "scaled_dot": {"16": {"through": 0.9}, "1024": {"through": 0.9}}}},
    "scores": {"accuracy": {"dot": [0.5], "scaled_dot": [0.9], "scaled_dot_d": [0.7], "additive": [0.95]}},
    "heads": {"accuracy": {"recall": {"1": [0.5], "2": [0.7]}, "copy": {"1": [0.1], "2": [0.2]}}},
    "norms": {"share": {"pre": {"0.001": [0.1], "0.01": [0.2]}, "post": {"0.001": [0.1], "0.01": [1.0]}}, "layers": 12},
}
CONTRADICT = [
    ("forgets", ("accuracy", "rnn", "80"), [0.9]),
    ("forgets", ("accuracy", "rnn", "5"), [0.3]),
    ("gradients", ("flow", "rnn", "trained"), [[1.0, 0.5]]),
    ("bottleneck", ("bleu", PLAIN, LONG), 55.0),
    ("bottleneck", ("bleu", PLAIN), {SHORT: 20.0, LONG: 20.0}),
    ("bottleneck", ("bleu", CONTEXT), {SHORT: 15.0, LONG: 10.0}),
    ("order", ("error", CROSSED, "attention"), 0.7),
    ("order", ("error", "all", "attention"), 0.5),
    ("positions", ("error", "no positions"), 1e-3),
    ("positions", ("error", "sinusoidal positions"), 0.0),
    ("positions", ("accuracy", "no positions"), [0.9]),
    ("positions", ("accuracy", "sinusoidal positions"), [0.5]),
    ("parallel", ("ms", "attention", "64"), 11.0),
    ("parallel", ("ms", "attention", "1024"), 190.0),
    ("memory", ("bytes", "exact", "1024"), 2e7),
    ("memory", ("bytes", "sdpa", "1024"), 3e7),
    ("normalisers", ("accuracy", "relu"), [0.99, 0.99]),
    ("scaling", ("by", "dot", "1024", "through"), 0.4),
    ("scaling", ("by", "scaled_dot", "1024", "through"), 0.5),
    ("normalisers", ("accuracy", "relu_sum"), [0.95, 0.1]),
    ("scores", ("accuracy", "dot"), [0.95]),
    ("scores", ("accuracy", "scaled_dot_d"), [0.95]),
    ("scores", ("accuracy", "scaled_dot"), [0.5, 0.9]),
    ("heads", ("accuracy", "copy", "1"), [0.3]),
    ("heads", ("accuracy", "recall", "2"), [0.4, 0.9]),
    ("norms", ("share", "post", "0.01"), [0.2]),
    ("norms", ("share", "pre", "0.01"), [1e9]),
]


def test_every_claim_is_tested(claims):
    assert set(BEAR) == set(claims.CLAIMS) == {name for name, _, _ in CONTRADICT}
    assert set(claims.CLAIMS) - set(TINY) == {"bottleneck", "order"}  # below


@pytest.mark.parametrize("name", BEAR)
def test_numbers_that_bear_a_claim_are_judged_so(claims, name):
    held, why = claims.CLAIMS[name].judge(BEAR[name])
    assert held, why


@pytest.mark.parametrize(("name", "path", "value"), CONTRADICT)
def test_numbers_that_contradict_a_claim_are_judged_so(claims, name, path, value):
    found = json.loads(json.dumps(BEAR[name]))
    at = found
    for key in path[:-1]:
        at = at[key]
    assert path[-1] in at
    at[path[-1]] = value
    held, why = claims.CLAIMS[name].judge(found)
    assert not held, why


@pytest.mark.parametrize("name", TINY)
def test_a_claim_is_measured_judged_and_shown(claims, name):
    claim = claims.CLAIMS[name]
    found = claim.measure(**TINY[name])
    json.dumps(found, allow_nan=False)
    held, why = claim.judge(found)
    assert isinstance(held, bool)
    assert why
    header, rows = claim.shown(found)
    assert rows
    assert all(len(row) == len(header) for row in rows)


def test_the_exact_numbers_are_right(claims):
    found = claims.CLAIMS["positions"].measure(length=6, seeds=1, steps=1)
    assert found["error"]["no positions"] < 1e-12 < 1e-3 < found["error"]["sinusoidal positions"]
    assert claims.CLAIMS["scaling"].judge(claims.CLAIMS["scaling"].measure())[0]


def test_memory_is_that_of_the_matrix_of_weights_where_it_is_held_and_only_there(claims):
    found = claims.CLAIMS["memory"].measure(lengths=(512,))["bytes"]
    matrix = 4 * 4 * 512 * 512  # heads · bytes · N²
    assert matrix < found["exact"]["512"] < 8 * matrix
    gradients = 3 * 4 * 4 * 512 * 64
    assert gradients <= found["sdpa"]["512"] < matrix


def test_translators_are_trained_judged_and_aligned(claims, monkeypatch):
    from claimed import translating

    made = []

    def trained(recipe, place, pairs, steps, longest):
        made.append((recipe, steps))
        return Fake(recipe)

    class Fake:
        """With attention it is right; without, only on short sources."""

        def __init__(self, recipe):
            self.recipe, self.targets = recipe, {pair.source: pair.target for pair in
                                                 translating.phrasebook.pairs(60, split="test")}

        def translate(self, texts, **options):
            whole = self.recipe == translating.WITH
            return [type("Made", (), {"text": self.targets[text] if whole or len(text.split()) < 8 else "non"})
                    for text in texts]

        def choose_alignment(self, pairs):
            return None

    monkeypatch.setattr(translating, "trained", trained)
    monkeypatch.setattr(translating, "rate", lambda task, pairs, where: 0.0)
    translating._model.cache_clear()
    found = claims.CLAIMS["bottleneck"].measure(pairs=10, steps=3, tested=60)
    assert found["bleu"][CONTEXT][LONG] == pytest.approx(100)
    assert found["bleu"][PLAIN][LONG] < 1
    assert claims.CLAIMS["bottleneck"].judge(found).held
    order = claims.CLAIMS["order"].measure(pairs=10, steps=3, tested=60)
    assert made == [(PLAIN, 3), (CONTEXT, 3)], "the model with attention is trained once for both claims"
    assert 0 < order["pairs"][CROSSED] < order["pairs"]["all"] == 60
    assert order["error"][CROSSED]["diagonal"] > order["error"]["all"]["diagonal"] > 0
    translating._model.cache_clear()


def test_crossing_links_and_the_diagonal(claims):
    from claimed import translating

    class Pair:
        source_words, target_words = ("a", "b", "c"), ("A", "B", "C")

        def __init__(self, *links):
            self.alignment = links

    straight, crossed = Pair((0, 0), (1, 1), (2, 2)), Pair((0, 1), (1, 0), (2, 2))
    assert not translating._crosses(straight)
    assert translating._crosses(crossed)
    assert translating._diagonal([straight]) == 0
    assert translating._diagonal([crossed]) == pytest.approx(2 / 3)


def test_the_first_symbol_is_asked_at_the_end_and_noise_is_never_the_answer(claims):
    import torch
    from claimed.placing import Before
    from claimed.remembering import First

    batch = First(6).batch(50, torch.Generator().manual_seed(0))
    assert (batch.targets[:, -1] == batch.inputs[:, 0]).all()
    assert (batch.inputs[:, 1:] >= 8).all()
    assert (batch.inputs[:, 0] < 8).all()
    pairs = Before(6).batch(50, torch.Generator().manual_seed(0))
    for ids, answer in zip(pairs.inputs.tolist(), pairs.targets[:, 0].tolist(), strict=True):
        assert sorted(ids) == [0, 0, 0, 0, 1, 2]
        assert answer == (ids.index(2) < ids.index(1))
    assert First(6).chance == pytest.approx(math.log(8))


def test_the_command_prints_a_verdict_and_json(claims, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["claims.py", "scaling"])
    claims.main()
    assert "It held: from width 16 to 1024" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["claims.py", "scaling", "--json"])
    claims.main()
    told = json.loads(capsys.readouterr().out)
    assert (told["claim"], told["held"]) == ("scaling", True)
    monkeypatch.setattr(sys, "argv", ["claims.py", "nothing"])
    with pytest.raises(SystemExit):
        claims.main()
    assert "unknown claim 'nothing'" in capsys.readouterr().err
