"""Ctrl-C and SIGTERM during a training."""

import os
import signal
import threading

import pytest

from regard.training.loop import SIGNALS, InterruptHandler


def handlers():
    return [signal.getsignal(number) for number in SIGNALS]


@pytest.mark.parametrize("number", SIGNALS)
def test_once_is_told_and_twice_ends(number):
    before, told = handlers(), []
    with InterruptHandler(told.append) as interruption:
        assert not interruption.requested
        os.kill(os.getpid(), number)
        assert interruption.requested
        assert len(told) == 1
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert handlers() == before
    assert [text.startswith("Stopping after this step") for text in told] == [True]


def test_one_signal_and_then_the_other_end_too():
    with InterruptHandler(lambda text: None):
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_the_handlers_come_back_after_an_error():
    before = handlers()

    def work():
        with InterruptHandler(lambda text: None):
            assert handlers() != before
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert handlers() == before


def test_in_another_thread_signals_are_left_alone():
    before, seen = handlers(), []

    def work():
        with InterruptHandler(lambda text: None) as interruption:
            seen.append((interruption.requested, handlers()))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(False, before)]
