"""What is worth reporting after a turn."""

from flannelette.services.core.leases.lease import FailedLease
from flannelette.services.dataplane.controller import MOST_FAILED, progress_after


def test_a_cursor_is_reached_once_however_many_turns_follow() -> None:
    first = progress_after(None, "n1", "e:1", {}, 10.0)
    later = progress_after(first, "n1", "e:1", {}, 20.0)
    assert later == first, "so it is not told again"
    assert (first.reached_at, later.reached_at) == (10.0, 10.0)
    assert progress_after(later, "n1", "e:2", {}, 30.0).reached_at == 30.0


def test_a_lease_that_fails_is_news_at_the_same_cursor() -> None:
    first = progress_after(None, "n1", "e:1", {}, 10.0)
    failing = progress_after(first, "n1", "e:1", {"x": "why"}, 20.0)
    assert failing != first
    assert (failing.failed, failing.failed_count) == ((FailedLease("x", "why"),), 1)


def test_of_many_failed_leases_the_first_are_named_and_all_are_counted() -> None:
    progress = progress_after(None, "n1", "e:1", {f"lease{n:03}": "why" for n in reversed(range(200))}, 10.0)
    assert [lease.name for lease in progress.failed] == [f"lease{n:03}" for n in range(MOST_FAILED)]
    assert progress.failed_count == 200
