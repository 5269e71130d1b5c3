"""The callers over TLS: the certificate behind each connection, and how much one certificate may call.

A member of the cluster may read everything, and so could use up the memory and the time of a service. Calls in
progress are limited for each certificate; a certificate that calls faster than any program of ours is cut off.
"""

import time
from collections import Counter as Tally
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from flannelette.services.core.errors import Unavailable
from flannelette.services.runtime.os.own_sockets import Address, packed
from flannelette.services.runtime.telemetry.logs import LogLimiter, get_logger
from flannelette.services.runtime.telemetry.metrics import Counter

log = get_logger()

_CUT_OFF = Counter(
    "flannelette_callers_cut_off", "Calls over TLS whose connection was closed: too many of one client"
)


@dataclass(frozen=True, slots=True)
class Allowance:
    """What one certificate may do."""

    open: int
    """Largest number of calls in progress."""
    a_second: float
    at_once: float
    """Calls that may come at once, beyond `a_second`, after a time without calls."""


MEMBER: Final = Allowance(open=256, a_second=100, at_once=1_000)
"""A node has a handful of calls in progress, and makes a few a second."""
RELAY: Final = Allowance(open=16_384, a_second=5_000, at_once=50_000)
"""A relay calls for all of its nodes."""
_REFUSED_COUNTS: Final = 10
"""Weight of a call that is refused as one too many. No program of ours repeats it at once."""
_BAN_SECONDS: Final = 10.0
_MOST_REMEMBERED: Final = 65_536


class _Account:
    """The calls of one certificate."""

    def __init__(self, allowance: Allowance, now: float) -> None:
        self.left = allowance.at_once
        self.at = now
        self.banned_until = 0.0


class Callers:
    """The callers of a server. `known`, `forget` and `take_cut` are for any thread, the rest for the event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.known: dict[Address, str] = {}
        """Connections on which a certificate was accepted, and whose it is."""
        self.on_cut: Callable[[], None] = lambda: None
        """Called when there is a connection to close."""
        self._clock = clock
        self._open = Tally[str]()
        self._accounts: dict[str, _Account] = {}
        self._cut: dict[Address, bool] = {}
        self._may_log = LogLimiter()

    @contextmanager
    def call(self, peer: str, who: str, allowance: Allowance) -> Iterator[None]:
        """Counts a call while the block runs. `peer` is gRPC's, such as `ipv4:192.0.2.1:4242`.

        Raises Unavailable: the certificate has too many calls in progress, or was cut off.
        """
        endpoint = endpoint_of(peer)
        if endpoint is not None:
            self.known[endpoint] = who
        is_too_many = self._open[who] >= allowance.open
        self._charge(endpoint, who, allowance, _REFUSED_COUNTS if is_too_many else 1)
        if is_too_many:
            raise Unavailable(f"{who} has {allowance.open} calls in progress: wait until one has ended")
        self._open[who] += 1
        try:
            yield
        finally:
            self._open[who] -= 1
            if not self._open[who]:
                del self._open[who]

    @property
    def has_cut(self) -> bool:
        """Whether there are connections to close."""
        return bool(self._cut)

    def forget(self, endpoint: Address) -> None:
        """The connection is gone."""
        self.known.pop(endpoint, None)

    def take_cut(self) -> dict[Address, bool]:
        """The connections to close, and whether their addresses are to get no other for a while."""
        taken, self._cut = self._cut, {}
        return taken

    def close(self, peer: str) -> None:
        """Has this connection closed: its client has to connect again."""
        if (endpoint := endpoint_of(peer)) is not None:
            self._cut[endpoint] = False
            self.on_cut()

    def _charge(self, endpoint: Address | None, who: str, allowance: Allowance, calls: int) -> None:
        now = self._clock()
        if who not in self._accounts:
            if len(self._accounts) >= _MOST_REMEMBERED:
                self._accounts.clear()
            self._accounts[who] = _Account(allowance, now)
        account = self._accounts[who]
        account.left = min(allowance.at_once, account.left + (now - account.at) * allowance.a_second)
        account.at = now
        if account.left >= calls and now >= account.banned_until:
            account.left -= calls
            return
        if now >= account.banned_until:
            account.banned_until = now + _BAN_SECONDS
        _CUT_OFF.inc()
        if endpoint is not None:
            self._cut[endpoint] = True
            self.on_cut()
        if self._may_log(who):
            log.warning(
                "a client calls too often; its connections are closed",
                who=who,
                address=str(endpoint) if endpoint else "",
                allowed_a_second=allowance.a_second,
                seconds=_BAN_SECONDS,
            )
        raise Unavailable(f"{who} calls too often: more than {allowance.a_second:.0f} times a second")


def endpoint_of(peer: str) -> Address | None:
    """The address of a client over TCP in gRPC's notation; None: it is of another kind."""
    kind, _, rest = peer.replace("%5B", "[").replace("%5D", "]").partition(":")
    host, _, port = rest.rpartition(":")
    if kind not in ("ipv4", "ipv6") or not port.isdecimal():
        return None
    return Address(packed(host.strip("[]").partition("%")[0]), int(port))
