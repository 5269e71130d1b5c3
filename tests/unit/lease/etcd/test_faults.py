"""Which faults of a call to etcd may be over in a moment."""

import grpc
import grpc.aio
import pytest

from flannelette.services.lease.stores.etcd.client import may_pass, reason_in


def unavailable(details: str) -> grpc.aio.AioRpcError:
    nothing = grpc.aio.Metadata()
    return grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, nothing, nothing, details=details)


@pytest.mark.parametrize(
    "how", ["Socket closed", "sendmsg: Broken pipe (32)", "recvmsg:Connection reset by peer (104)"]
)
def test_a_connection_that_broke_in_the_middle_is_tried_again_however_it_broke(how: str) -> None:
    assert may_pass(unavailable(f"Stream removed ({how})"))


def test_a_call_that_was_over_before_it_was_sent_is_tried_again_and_says_so() -> None:
    """grpc's client reads this instead of the status, when a call that sends a stream ends too early for it."""
    assert may_pass(unavailable("Internal error from Core"))
    assert (
        reason_in("Internal error from Core") == "ended a call while it was sent: it is slow, or the connection broke"
    )


def test_one_that_could_not_be_made_is_not() -> None:
    assert not may_pass(unavailable("failed to connect to all addresses; last error: Connection reset by peer"))
