"""What etcd and gRPC complain about, in sentences that say what to do."""

import re
from typing import Final

import grpc

from services.lease.stores.etcd.rpc.values import EtcdLeaseExists, EtcdLeaseGone, HistoryLost, NotAllowed, TooLarge

_REASONS: Final = (
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
        "(?i)CERTIFICATE.REQUIRED|BAD_CERTIFICATE|UNKNOWN_CA|CERTIFICATE_(EXPIRED|REVOKED|UNKNOWN)",
        "wants a certificate of ours, valid and of an authority it trusts: check --etcd-certfile and --etcd-keyfile",
    ),
    ("(?i)domain name not found|dns resolution failed", "has a name that cannot be resolved: check --etcd-endpoints"),
    ("before receiving SETTINGS frame", "takes connections but does not answer: it hangs, or is not etcd"),
    (
        r"(?i)No route to host|is unreachable|(Connection|attempt|connect\(\)) timed out|handshaker shutdown",
        "cannot be reached: check the network, and --etcd-endpoints",
    ),
    ("no leader|leader changed", "has no leader: a majority of the members must run and reach each other"),
    ("(?i)ping timeout|watchdog timeout", "is connected but does not answer any more"),
    ("Socket closed|Connection reset|Broken pipe|GOAWAY", "closed the connection"),
    ("Internal error from Core", "ended a call while it was sent: it is slow, or the connection broke"),
    ("(?i)deadline exceeded|request timed out", "does not answer in time"),
    ("database space exceeded", "is full: compact and defragment it, then etcdctl alarm disarm"),
    ("invalid auth token", "does not accept its own login token any more: trying again"),
)
"""What the message matches, and what that means for a reader; the first one counts."""

_NOT_ALLOWED: Final = {
    "user name is empty": "wants a login: set --etcd-username and --etcd-password",
    "invalid user ID or password": "refuses the login: check --etcd-username and --etcd-password",
    "user name not found": "does not know the user: check --etcd-username, or etcdctl user add",
}


_PASSING: Final = (
    "(?i)no leader|leader changed|request timed out|deadline exceeded|"
    "socket closed|connection reset|broken pipe|goaway|internal error from core"
)


def wants_login(error: grpc.aio.AioRpcError) -> bool:
    """Whether a new login may cure it."""
    return error.code() is grpc.StatusCode.UNAUTHENTICATED or any(
        text in (error.details() or "") for text in ("auth store is old", "user name is empty")
    )


def may_pass(error: grpc.aio.AioRpcError) -> bool:
    """Whether it may be over in a second or two: an election, a lost write, a connection that broke in the middle."""
    details = error.details() or ""
    return re.search(_PASSING, details) is not None and not details.startswith("failed to connect")


def answer_in(error: grpc.aio.AioRpcError, where: str, denied: str) -> Exception | None:
    """The error to raise when etcd has answered: another member would say the same. None: this member is the problem.

    `where` names the members, `denied` says which right is needed.
    """
    code, details = error.code(), error.details() or ""
    if code is grpc.StatusCode.OUT_OF_RANGE:
        return HistoryLost(details)
    if code is grpc.StatusCode.NOT_FOUND and "lease not found" in details:
        return EtcdLeaseGone(details)
    if code is grpc.StatusCode.FAILED_PRECONDITION and "lease already exists" in details:
        return EtcdLeaseExists(details)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in details:
        return TooLarge(details)
    if code is grpc.StatusCode.PERMISSION_DENIED:
        return NotAllowed(denied)
    sentence = next((sentence for text, sentence in _NOT_ALLOWED.items() if text in details), None)
    return NotAllowed(f"etcd at {where} {sentence}") if sentence else None


def reason_in(details: str) -> str:
    """What is wrong with a member, to be read behind its name."""
    sentence = next((sentence for pattern, sentence in _REASONS if re.search(pattern, details)), None)
    return sentence or f"does not answer: {details}"
