"""How long one call of etcd is tried."""

from services.lease.stores.etcd.patience import Patience


def tries(patience: Patience, *, each: float, passing: bool) -> tuple[int, float]:
    """How many members are asked when every answer takes `each` seconds and is a failure, and until when."""
    now, count = 0.0, 0
    while True:
        count, now = count + 1, now + min(each, patience.timeout(now))
        pause = patience.pause(now, passing=passing)
        if pause is None:
            return count, now
        now += pause


def test_each_member_is_asked_once() -> None:
    assert tries(Patience(3, 5.0, 0.0), each=0.0, passing=False) == (3, 0.0)


def test_a_fault_that_may_pass_is_waited_out_with_pauses_that_double() -> None:
    count, until = tries(Patience(3, 5.0, 0.0), each=0.0, passing=True)
    assert count == 3 * 6, "after 0.2, 0.6, 1.4, 3.0 and 6.2 s; then there is no time left"
    assert until < 10


def test_the_whole_call_takes_no_longer_than_two_answers() -> None:
    assert tries(Patience(5, 5.0, 0.0), each=5.0, passing=True) == (2, 10.0)
    assert tries(Patience(3, 5.0, 0.0), each=4.0, passing=False) == (3, 10.0), "the last one gets the rest"


def test_one_member_that_is_slow_is_asked_a_second_time() -> None:
    assert tries(Patience(1, 5.0, 0.0), each=5.0, passing=True)[0] == 2
