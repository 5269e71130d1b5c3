"""How long a lease lives, between machines whose clocks disagree."""

import pytest
from google.protobuf.duration_pb2 import Duration

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.services.runtime.lease.wire import Answer, held_lease, lease_to_proto, time_left
from tests.examples.leases import make_lease

DAY = 86_400.0
NOW = 1_800_000_000.0


@pytest.mark.parametrize("answer", [pb.AcquireLeaseResponse, pb.RenewLeaseResponse])
@pytest.mark.parametrize("skew", [0.0, 3600.0, -3600.0, DAY, -DAY, -50 * 365 * DAY])
def test_a_lease_ends_when_the_machine_that_gave_it_says_so_whatever_the_time_is_there(
    monkeypatch: pytest.MonkeyPatch, skew: float, answer: type[Answer]
) -> None:
    monkeypatch.setattr("time.time", lambda: NOW + skew)
    lease = make_lease(1, expires_at=NOW + skew + DAY)
    said = answer(lease=lease_to_proto(lease), time_left=time_left(lease))
    monkeypatch.setattr("time.time", lambda: NOW)
    assert held_lease(said) == lease.with_time(NOW + DAY)


def test_a_lease_that_does_not_run_out_has_no_time_left_to_tell() -> None:
    lease = make_lease(1, expires_at=None)
    assert time_left(lease) is None
    assert held_lease(pb.RenewLeaseResponse(lease=lease_to_proto(lease))) == lease


def test_an_older_service_tells_the_end_by_its_clock_only() -> None:
    lease = make_lease(1, expires_at=NOW)
    assert held_lease(pb.AcquireLeaseResponse(lease=lease_to_proto(lease))) == lease


def test_one_that_is_over_has_less_than_nothing_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: NOW)
    assert time_left(make_lease(1, expires_at=NOW - 60)) == Duration(seconds=-60)
