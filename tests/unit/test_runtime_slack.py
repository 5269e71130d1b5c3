"""Threads that may sleep longer, and the one that starts them, which may not."""

import ctypes
import threading

from services.runtime.slack import timer_slack


def slack() -> int:
    return int(ctypes.CDLL(None).prctl(30, 0, 0, 0, 0))  # PR_GET_TIMERSLACK


def test_threads_that_the_block_starts_inherit_it_and_the_caller_is_as_before() -> None:
    before, seen = slack(), []
    with timer_slack(0.25):
        thread = threading.Thread(target=lambda: seen.append(slack()))
        thread.start()
        thread.join()
    assert seen == [250_000_000]
    assert slack() == before
