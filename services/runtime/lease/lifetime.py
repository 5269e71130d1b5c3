"""The remaining time of a lease in messages between machines whose clocks may disagree."""

import time
from typing import TypeAlias

from google.protobuf.duration_pb2 import Duration

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.services.core.errors import InvalidInput, Unavailable
from flannelette.services.core.leases.lease import Lease
from flannelette.services.core.limits import LONGEST, nearest_time, seconds_of
from flannelette.services.runtime.lease.wire import lease_from_proto

Answer: TypeAlias = pb.AcquireLeaseResponse | pb.RenewLeaseResponse


def time_left(lease: Lease) -> Duration | None:
    """The remaining time of a lease, by this machine's clock; None: the lease does not expire."""
    if lease.expires_at is None:
        return None
    left = Duration()
    left.FromMilliseconds(round((lease.expires_at - time.time()) * 1000))
    return left


def held_lease(answer: Answer) -> Lease:
    """The lease in an answer, with its end by this machine's clock, in whole seconds.

    Raises Unavailable for an answer that cannot be read, because the request is not at fault.
    """
    try:
        lease = lease_from_proto(answer.lease)
        if not answer.HasField("time_left"):
            return lease
        left = seconds_of(answer.time_left, "time_left", -LONGEST)
    except InvalidInput as error:
        raise Unavailable(f"the lease service's answer cannot be read: {error}") from None
    return lease.with_time(nearest_time(round(time.time() + left)))
