"""The serving engine: its queue, deadlines, cancellation, failures, streaming, another model, and its end.

Most tests call the turns of an `EngineCore` themselves, with a clock of their own, so that nothing depends on time.
"""

import gc
import math
import subprocess
import sys
import threading
import weakref
from collections import defaultdict
from concurrent.futures import CancelledError

import ending
import pytest
import texting
import torch
from refusals import assert_named

from regard.decoding import live_search
from regard.serving.engine import (
    DeadlineError,
    EngineCore,
    ModelError,
    QueueFullError,
    ServingEngine,
)
from regard.serving.text_jobs import MIN_CAPACITY
from regard.tasks.search import GREEDY, Beam, Sampling
from regard.tasks.translator import Translator

TEXTS = [source for source, _ in texting.pairs()[:20]]
FOREVER = Beam(beams=1, length_penalty="none", min_length=30, max_length=30)
SHORT = Beam(beams=1, length_penalty="none", min_length=2, max_length=2)


class Clock:
    """A clock that goes on only when it is told to."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Bench:
    """An engine without a thread."""

    def __init__(self, task=None, max_queued=256, token_budget=None, workers=1):
        self.clock = Clock()
        self.core = EngineCore(task or ending.translator(9.0), max_queued, token_budget, self.clock, workers)

    def submit(self, texts, strategy, seconds=None, on_text=None, **options):
        return self.core.submit(self.core.served.jobs(texts, strategy, **options), seconds, on_text)

    def turn(self, count=1):
        with torch.inference_mode():
            for _ in range(count):
                for worker in self.core.workers:
                    self.core.turn(worker)

    def running(self):
        """The number of rows of each worker."""
        return [sum(len(batch.rows) for batch in worker.batches) for worker in self.core.workers]

    def finish(self):
        turns = 0
        while self.core.batches or self.core.queue:
            self.turn()
            turns += 1
            assert turns < 1000
        return turns


# ---- who runs when ---------------------------------------------------------------------------------------------------


def test_a_text_joins_at_the_next_step_and_leaves_when_it_ends():
    bench = Bench()
    long = bench.submit(TEXTS[:1], FOREVER)
    bench.turn(5)
    short = bench.submit(TEXTS[1:2], SHORT)
    bench.turn()
    assert bench.core.load()[:2] == (0, 2)
    bench.turn(3)
    assert short.done
    assert not long.done
    bench.finish()
    assert long.done


def test_equal_strategies_share_a_batch_and_others_take_turns():
    bench = Bench()
    some = {"min_length": 5}
    for strategy in (Beam(beams=2, **some), Beam(beams=2, max_length=40, **some), Sampling(seed=1, **some),
                     Sampling(seed=2, max_length=9, **some), Beam(beams=2, nbest=2, **some), Sampling(top_k=3, **some)):
        bench.submit(TEXTS[:2], strategy)
    bench.turn()
    assert [len(batch.rows) for batch in bench.core.batches] == [4, 4, 2, 2]
    steps = bench.core.steps
    bench.turn()
    assert bench.core.steps == steps + 4


def test_rows_that_wait_join_as_rows_end():
    bench = Bench(token_budget=4 * MIN_CAPACITY)
    tickets = [bench.submit(TEXTS[:1], SHORT) for _ in range(6)]
    first = bench.submit(TEXTS[:1], FOREVER)
    bench.turn()
    assert bench.core.load()[:2] == (3, 4)
    bench.finish()
    assert all(one.done for one in (*tickets, first))


def test_workers_share_the_rows_and_the_first_one_serves_a_single_client():
    bench = Bench(workers=3)
    for _ in range(3):
        one = bench.submit(TEXTS[:1], SHORT)
        bench.core.turn(bench.core.workers[2])
        bench.core.turn(bench.core.workers[1])
        assert bench.running() == [0, 0, 0], "they leave it to the first one"
        bench.turn()
        assert bench.running() == [1, 0, 0]
        bench.finish()
        assert one.done
    bench.submit(TEXTS[:7], FOREVER)
    bench.turn()
    assert bench.running() == [3, 3, 1]
    bench.submit(TEXTS[:2], FOREVER)
    bench.turn()
    assert bench.running() == [3, 3, 3]
    bench.finish()


def test_workers_have_one_token_budget():
    bench = Bench(workers=2, token_budget=4 * MIN_CAPACITY)
    tickets = [bench.submit(TEXTS[:1], SHORT) for _ in range(6)]
    bench.turn()
    assert bench.core.load()[:2] == (2, 4)
    bench.finish()
    assert all(one.done for one in tickets)


def test_an_idle_worker_sleeps_while_the_budget_is_used_up(monkeypatch):
    """It is woken when a text has finished, and not between."""
    monkeypatch.setattr("regard.serving.engine.MIN_PARAMETERS", 0)
    with ServingEngine(ending.translator(9.0), token_budget=MIN_CAPACITY, threads=2) as engine:
        admit, idle = engine._core._admit, list[None]()

        def count(worker):
            idle.extend([None] if not worker.batches else [])
            return admit(worker)

        engine._core._admit = count
        tickets = [engine.submit(TEXTS[:1], FOREVER) for _ in range(4)]
        for one in tickets:
            one.result(60)
        assert engine.load.steps >= 4 * 30
        assert len(idle) < 60


def test_requests_take_turns_so_that_many_texts_do_not_delay_one():
    bench = Bench(token_budget=2 * MIN_CAPACITY)
    many = bench.submit(TEXTS[:12], SHORT)
    one = bench.submit(TEXTS[12:13], SHORT)
    for _ in range(4):
        bench.turn()
        if one.done:
            break
    assert one.done
    assert not many.done
    bench.finish()
    assert [result.text for result in many.result()] == [
        result.text for result in bench.core.served.task.search(TEXTS[:12], SHORT)]


def test_long_texts_leave_room_for_short_ones():
    bench = Bench(token_budget=4096)
    long = [bench.submit([" ".join(TEXTS[:10])], Beam(beams=5, min_length=60, max_length=400)) for _ in range(4)]
    bench.turn()
    running = [row for batch in bench.core.batches for row in batch.rows]
    assert len(running) == 1  # 5 beams of 512 tokens: more than half of the budget
    short = bench.submit(TEXTS[:1], SHORT)
    bench.turn(4)
    assert short.done
    assert not any(one.done for one in long)
    assert bench.core.load().queued == 3
    for one in long:
        one.cancel()
    bench.finish()


def test_a_long_text_is_not_passed_for_ever():
    """Where the budget is full of short texts, the first one that waits is the next to join."""
    bench = Bench(token_budget=8 * MIN_CAPACITY)
    for _ in range(8):
        bench.submit(TEXTS[:1], FOREVER)
    bench.turn()
    long = bench.submit(TEXTS[:1], Beam(beams=1, length_penalty="none", max_length=400))
    later = [bench.submit(TEXTS[:1], SHORT) for _ in range(3)]
    while long.queued_seconds is None:
        assert not any(one.done for one in later)
        bench.turn()
    bench.finish()


# ---- limits ----------------------------------------------------------------------------------------------------------


def test_the_queue_is_bounded_and_says_when_to_come_back():
    bench = Bench(max_queued=4, token_budget=MIN_CAPACITY)
    bench.submit(TEXTS[:3], SHORT)
    with pytest.raises(QueueFullError) as full:
        bench.submit(TEXTS[:2], SHORT)
    assert full.value.retry_after == 1.0  # nothing was measured
    bench.core.recent_texts, bench.core.recent_seconds = 10.0, 5.0
    with pytest.raises(QueueFullError, match="3 of at most 4") as full:
        bench.submit(TEXTS[:4], SHORT)
    assert full.value.retry_after == pytest.approx(3 * 0.5)
    bench.turn()
    bench.submit(TEXTS[:2], SHORT)
    assert_named(lambda: bench.submit(TEXTS[:5], SHORT), ["`texts`", "4", "5"])
    assert bench.core.load()[:2] == (4, 1)
    bench.finish()
    assert bench.core.load().queued == 0


@pytest.mark.parametrize("turns", [0, 3], ids=["in the queue", "while generating"])
def test_a_request_that_is_too_late_fails(turns):
    bench = Bench()
    late, other = bench.submit(TEXTS[:2], FOREVER, seconds=5), bench.submit(TEXTS[2:3], FOREVER)
    bench.turn(turns)
    bench.clock.now += 5
    bench.turn()
    with pytest.raises(DeadlineError, match="5 s"):
        late.result(0)
    assert late.total_seconds == 5
    assert bench.core.load()[:2] == (0, 1)
    bench.finish()
    assert_same_text(bench, other, TEXTS[2:3], FOREVER)


def assert_same_text(bench, ticket, texts, strategy):
    wanted = bench.core.served.task.search(texts, strategy)
    assert [one.text for one in ticket.result(0)] == [one.text for one in wanted]


@pytest.mark.parametrize("turns", [0, 3], ids=["in the queue", "while generating"])
def test_a_cancelled_request_leaves_at_the_next_step(turns):
    bench = Bench()
    gone, other = bench.submit(TEXTS[:3], FOREVER), bench.submit(TEXTS[3:4], FOREVER)
    bench.turn(turns)
    heard = []
    gone.add_done_callback(heard.append)
    gone.cancel()
    assert (heard, gone.done) == ([gone], True)
    assert bench.core.load().queued == (0 if turns else 1)
    with pytest.raises(CancelledError):
        gone.result(0)
    bench.turn()
    assert bench.core.load()[:3] == (0, 1, 1)
    bench.finish()
    assert_same_text(bench, other, TEXTS[3:4], FOREVER)
    gone.cancel()


def test_times_and_tokens_of_a_request():
    bench = Bench(token_budget=MIN_CAPACITY)
    bench.submit(TEXTS[:1], SHORT)
    ticket = bench.submit(TEXTS[1:2], SHORT)
    assert (ticket.queued_seconds, ticket.first_token_seconds, ticket.total_seconds) == (None, None, None)
    while ticket.first_token_seconds is None:
        bench.clock.now += 1
        bench.turn()
    bench.clock.now += 1
    bench.finish()
    assert ticket.queued_seconds == ticket.first_token_seconds > 0
    assert ticket.total_seconds > ticket.queued_seconds
    assert ticket.tokens == len(ticket.result()[0].log_probabilities)


def test_blank_texts_need_no_model():
    bench = Bench()
    ticket = bench.submit(["", " \n"], Beam())
    assert [one.text for one in ticket.result(0)] == ["", ""]
    mixed = bench.submit(["", TEXTS[0]], SHORT)
    assert bench.core.load().queued == 1
    bench.finish()
    assert [bool(one.ids) for one in mixed.result(0)] == [False, True]


# ---- wrong requests and models ---------------------------------------------------------------------------------------


def test_wrong_requests_are_refused_at_once():
    with ServingEngine(ending.translator(9.0)) as engine:
        for given, parts in [
            (([5], Beam()), ["`texts[0]`"]), ((TEXTS[:1], 5), ["`strategy`"]),
            ((TEXTS[:1], Beam(), {"prefix": ["a", "b"]}), ["`prefix`"]),
            ((TEXTS[:1], Beam(max_length=1), {"prefix": "le chien"}), ["`prefix`"]),
            ((TEXTS[:1], Sampling(), {"glossary": {"a": "b"}}), ["`glossary`"]),
            ((TEXTS[:1], Beam(), {"to": "xx"}), ["`to`", "xx"]),
            ((TEXTS[:1], Beam(), {"on_text": print}), ["`on_text`"]),
            ((TEXTS[:1], GREEDY, {"on_text": print, "glossary": {"a": "b"}}), ["`on_text`"]),
        ]:
            texts, strategy, *options = given
            assert_named(lambda: engine.submit(texts, strategy, **(options[0] if options else {})), parts)  # noqa: B023
        assert engine.load.queued == 0
    assert_named(lambda: ServingEngine(texting.filler()), ["`task`"])
    assert_named(lambda: ServingEngine(ending.translator(), max_queued=0), ["`max_queued`"])


def test_terms_that_do_not_fit_fail_alone():
    bench = Bench()
    word = TEXTS[0].split()[1]
    wrong = bench.submit(TEXTS[:1], Beam(max_length=1), glossary={word: "une maison blanche et grande"})
    right = bench.submit(TEXTS[1:2], Beam(max_length=1))
    bench.finish()
    assert_named(lambda: wrong.result(0), ["`glossary`", word])
    assert_same_text(bench, right, TEXTS[1:2], Beam(max_length=1))


def broken_by(text, task=None):
    """A translator whose encoder fails where a source has as many tokens as that of this text."""
    task = task or ending.translator(9.0)
    count = len(task.pair_tokenizer().encode_sources([text])[0])
    encode = task.model.encode

    def fail(tokens):
        if tokens.lengths is not None and count in tokens.lengths.tolist():
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 999 bytes.")
        return encode(tokens)

    task.model.encode = fail
    return task


def test_a_text_on_which_the_model_fails_fails_alone():
    bad = " ".join(TEXTS[:2])
    bench = Bench(broken_by(bad))
    running = bench.submit(TEXTS[3:4], FOREVER)
    bench.turn(2)
    tickets = [bench.submit([text], FOREVER) for text in (*TEXTS[4:8], bad, *TEXTS[8:10])]
    several = bench.submit([TEXTS[5], bad], FOREVER)
    bench.finish()
    for ticket, text in zip((running, *tickets[:4], *tickets[5:]), (*TEXTS[3:8], *TEXTS[8:10]), strict=True):
        assert_same_text(bench, ticket, [text], FOREVER)
    with pytest.raises(ModelError, match="this text: Not enough memory: 999 bytes"):
        tickets[4].result(0)
    with pytest.raises(ModelError, match="text 2 of 2"):
        several.result(0)


def test_a_step_that_fails_does_not_end_the_engine(monkeypatch):
    bench = Bench()
    tickets = [bench.submit([text], FOREVER) for text in TEXTS[:3]]
    bench.turn(2)
    step = live_search.LiveSearch.step
    failures = iter([True, True])

    def fail(self, *given):
        if next(failures, False):
            raise IndexError("index out of range")
        return step(self, *given)

    monkeypatch.setattr(live_search.LiveSearch, "step", fail)
    bench.finish()
    for ticket, text in zip(tickets[1:], TEXTS[1:3], strict=True):
        assert_same_text(bench, ticket, [text], FOREVER)
    with pytest.raises(ModelError, match="index out of range"):  # it was alone when the model failed again
        tickets[0].result(0)


def test_weights_that_are_not_numbers():
    task = ending.translator(9.0)
    with torch.no_grad():
        task.model.decoder.output.weight[5] = math.nan
    bench = Bench(task)
    tickets = [bench.submit(TEXTS[:1], strategy) for strategy in (GREEDY, Beam(beams=3), Sampling())]
    bench.finish()
    for ticket in tickets:
        with pytest.raises(ModelError, match="NaN"):
            ticket.result(0)
    assert bench.core.load()[:3] == (0, 0, 0)


# ---- streaming -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", [GREEDY, Sampling(seed=3), Sampling(seed=4, max_length=9),
                                      Sampling(num_samples=3, seed=5)], ids=str)
@pytest.mark.parametrize("prefix", ["", "Le chat"])
def test_text_so_far_only_grows_and_has_whole_characters(strategy, prefix):
    bench, heard = Bench(), defaultdict(list)
    ticket = bench.submit(TEXTS[:2], strategy, on_text=lambda number, text: heard[number].append(text), prefix=prefix)
    bench.submit(TEXTS[3:5], strategy)
    bench.finish()
    results = [one for best in ticket.result(0) for one in (best, *best.alternatives)]
    assert len(results) == 2 * strategy.rows_per_text
    for number, result in enumerate(results):
        assert heard[number][-1:] == ([result.text] if result.text else [])
        for text, longer in zip(heard[number], heard[number][1:], strict=False):
            assert longer.startswith(text)
            assert len(longer) > len(text)
        for text in heard[number]:  # an untrained model writes lone bytes too, which are part of its result
            assert result.text.startswith(text)


def test_a_completion_is_streamed_as_the_completer_does():
    task, heard = texting.completer(of=texting.tokenizer), []
    bench = Bench(task)
    strategy = Sampling(seed=5, max_length=20)
    ticket = bench.submit(["the big dog"], strategy, on_text=lambda number, text: heard.append(text))
    bench.finish()
    joined, wanted = "", []
    for piece in task.stream("the big dog", strategy):
        joined += piece
        wanted.append(joined)
    assert heard == wanted
    assert ticket.result(0)[0].text == joined


def test_a_listener_that_fails_fails_its_request_alone():
    bench = Bench()
    wrong = bench.submit(TEXTS[:1], FOREVER, on_text=lambda number, text: 1 / 0)
    right = bench.submit(TEXTS[1:2], FOREVER)
    bench.finish()
    with pytest.raises(ZeroDivisionError):
        wrong.result(0)
    assert_same_text(bench, right, TEXTS[1:2], FOREVER)


# ---- another model, and the end --------------------------------------------------------------------------------------


def test_another_model_serves_new_requests_and_the_old_one_finishes_its_own():
    first, second = ending.translator(9.0), ending.translator(7.0)
    strategy = Beam(beams=2, max_length=10)
    engine = ServingEngine(first)
    gate = threading.Event()
    before = engine.submit(TEXTS[:1], Sampling(max_length=20), on_text=lambda *_: gate.wait(10))
    old = engine.submit(TEXTS[:3], strategy)
    engine.replace(second)
    new = engine.submit(TEXTS[:3], strategy)
    gate.set()
    for ticket, task in ((old, first), (new, second)):
        assert [one.text for one in ticket.result()] == [one.text for one in task.search(TEXTS[:3], strategy)]
    before.result()
    engine.close()
    assert not any("forward" in vars(module) for task in (first, second) for module in task.model.modules())


def test_closing_finishes_or_cancels_what_is_there():
    task = ending.translator(9.0)
    engine = ServingEngine(task)
    tickets = [engine.submit([text], FOREVER) for text in TEXTS[:4]]
    engine.close()
    assert all(ticket.result(0)[0].ids for ticket in tickets)
    with pytest.raises(RuntimeError, match="closed"):
        engine.submit(TEXTS[:1], FOREVER)
    engine.close()

    gate, engine = threading.Event(), ServingEngine(task)
    held = engine.submit(TEXTS[:1], Sampling(max_length=20), on_text=lambda *_: gate.wait(10))
    closing = threading.Thread(target=engine.close, kwargs={"drain": False})
    closing.start()
    with pytest.raises(CancelledError):
        held.result(10)
    gate.set()
    closing.join(10)
    assert not closing.is_alive()
    assert not any(thread.is_alive() for thread in engine._threads)


def test_closing_waits_no_longer_than_it_may():
    gate, engine = threading.Event(), ServingEngine(ending.translator(9.0))
    held = engine.submit(TEXTS[:1], Sampling(max_length=20), on_text=lambda *_: gate.wait(10))
    held.add_done_callback(lambda ticket: gate.set())
    engine.close(timeout=0.01)
    with pytest.raises(CancelledError):
        held.result(0)


def test_an_engine_that_nobody_holds_ends():
    engine = ServingEngine(ending.translator(9.0))
    engine.submit(TEXTS[:1], SHORT).result()
    thread, alive = engine._threads[0], weakref.ref(engine)
    del engine
    gc.collect()
    assert alive() is None
    thread.join(10)
    assert not thread.is_alive()


def test_while_nothing_runs_the_model_is_as_it_was():
    task = ending.translator(9.0)
    with ServingEngine(task) as engine:
        engine.submit(TEXTS[:1], SHORT).result()
        for _ in range(1000):
            if not any("forward" in vars(module) for module in task.model.modules()):
                break
            threading.Event().wait(0.01)
        assert not any("forward" in vars(module) for module in task.model.modules())
        with torch.no_grad():
            task.model.decoder.output.bias[3] = 50.0  # the end
        assert engine.submit(TEXTS[:1], FOREVER.__class__(beams=2)).result()[0].text == ""


CHILD = """
import os, sys
sys.path.insert(0, sys.argv[1])
import ending, texting
from regard.serving.engine import ServingEngine
from regard.tasks.search import Beam
engine = ServingEngine(ending.translator(9.0))
engine.submit(["a"], Beam()).result()
if os.fork() == 0:
    try:
        engine.submit(["a"], Beam())
    except RuntimeError as error:
        os._exit(7 if "process" in str(error) else 8)
    os._exit(9)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
engine.submit(["a b c"] * 40, Beam(beams=9, min_length=50))  # Python ends while it runs
"""


def test_python_ends_while_an_engine_runs_and_a_fork_says_that_it_has_none(request):
    shared = str(request.config.rootpath / "tests" / "shared")
    command = [sys.executable, "-c", CHILD, shared]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_engine_imports_no_web_framework():
    code = ("import sys, regard.serving.engine; "
            "print(*({'fastapi', 'uvicorn', 'starlette'} & {*sys.modules}))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_a_load_says_what_is_there():
    bench = Bench()
    beams = bench.submit(TEXTS[:2], Beam(beams=3, min_length=9, max_length=9))
    samples = bench.submit(TEXTS[:1], Sampling(num_samples=2, min_length=9, max_length=9))
    bench.turn(2)
    load = bench.core.load()
    assert (load.queued, load.running, load.rows, load.tokens, load.requests, load.steps) == (0, 3, 8, 0, 0, 4)
    assert load.step_rows == 2 * (2 * 3 + 2)
    bench.finish()
    load = bench.core.load()
    assert load.step_rows == load.steps // 2 * (2 * 3 + 2)  # two batches of equal length, of six and of two rows
    assert (load.running, load.rows, load.requests) == (0, 0, 2)
    assert load.tokens == sum(len(one.log_probabilities) for ticket in (beams, samples) for best in ticket.result(0)
                              for one in (best, *best.alternatives))
    assert load.seconds_busy > 0
    assert isinstance(bench.core.served.task, Translator)
