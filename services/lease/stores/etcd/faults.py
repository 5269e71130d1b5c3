"""What etcd and gRPC complain about, as our errors in sentences that say what to do."""

import re
from collections.abc import Iterable
from typing import Final

import grpc

from services.core.errors import Unavailable
from services.lease.stores.etcd.records import EtcdLeaseExists, EtcdLeaseGone, HistoryLost

AWAY: Final = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED})
"""This member does not answer; another one may."""

_SENTENCES: Final = (
    ("http1.x", "speaks no gRPC; etcd v3 is needed, the v2 API is not supported (or this is another server)"),
    ("unknown service", "has no v3 API; etcd v3 is needed, the v2 API is not supported (or this is another server)"),
    ("unknown method", "is too old: etcd 3.3 or newer is needed"),
    ("Connection refused", "refuses connections: check --etcd-endpoints, and that etcd runs"),
    (
        "WRONG_VERSION_NUMBER|Handshake read failed",
        "speaks no TLS: write http:// in --etcd-endpoints, no --etcd-cafile",
    ),
    ("failed to connect.* Socket closed", "hangs up at once: if it speaks TLS, write https:// in --etcd-endpoints"),
    ("(?i)certificate.verify.failed", "has a certificate that cannot be verified: check --etcd-cafile"),
    ("Hostname Verification Check failed", "has a certificate for another name: check --etcd-endpoints"),
    (
        "CERTIFICATE_REQUIRED|BAD_CERTIFICATE|UNKNOWN_CA",
        "wants a certificate of ours: set --etcd-certfile and --etcd-keyfile",
    ),
    ("(?i)domain name not found|dns resolution failed", "has a name that cannot be resolved: check --etcd-endpoints"),
    ("no leader", "has no leader: a majority of the members must run and reach each other"),
    ("ping timeout|watchdog timeout", "is connected but does not answer any more"),
    ("Socket closed", "closed the connection"),
    ("Deadline Exceeded", "does not answer in time"),
    ("database space exceeded", "is full: compact and defragment it, then etcdctl alarm disarm"),
    ("user name is empty", "wants a login: set --etcd-username and --etcd-password"),
    ("invalid user ID or password", "refuses the login: check --etcd-username and --etcd-password"),
    ("invalid auth token", "does not accept its own login token any more: trying again"),
)
"""What the message matches, and what that means for a reader; the first one counts."""


def wants_login(error: grpc.aio.AioRpcError) -> bool:
    """Whether a new login may cure it."""
    return error.code() is grpc.StatusCode.UNAUTHENTICATED or any(
        text in (error.details() or "") for text in ("auth store is old", "user name is empty")
    )


def fault(error: grpc.aio.AioRpcError, names: Iterable[str], denied: str) -> Exception:
    """The error to raise. `names` are the members that were asked, `denied` says which right is needed."""
    code, details = error.code(), error.details() or ""
    if code is grpc.StatusCode.OUT_OF_RANGE:
        return HistoryLost(details)
    if code is grpc.StatusCode.NOT_FOUND and "lease not found" in details:
        return EtcdLeaseGone(details)
    if code is grpc.StatusCode.FAILED_PRECONDITION and "lease already exists" in details:
        return EtcdLeaseExists(details)
    if code is grpc.StatusCode.PERMISSION_DENIED:
        return Unavailable(denied)
    return away(names, details or code.name)


def away(names: Iterable[str], details: str) -> Unavailable:
    """etcd cannot be used now, and why."""
    where = f"etcd at {', '.join(names)}"
    sentence = next((sentence for pattern, sentence in _SENTENCES if re.search(pattern, details)), None)
    return Unavailable(f"{where} {sentence}" if sentence else f"{where} does not answer: {details}")
