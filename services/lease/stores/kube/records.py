"""Kubernetes in values of ours: nodes, what happens to them, and how patient we are."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from services.core.errors import Unavailable


class Expired(Exception):
    """There is no going on from this place in the history: list anew."""


class Silent(Unavailable):
    """Nothing has come on an open watch. Nothing need be wrong: ask again."""


class Gone(Exception):
    """There is no such object."""


class Busy(Unavailable):
    """The API server asks to come back later."""

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(message)
        self.seconds = seconds
        """Not before then."""


@dataclass(frozen=True, slots=True)
class Node:
    """What we take of a Node object. Equal if nothing of it has changed; a heartbeat changes nothing."""

    name: str
    pod_cidrs: tuple[str, ...] = ()
    """As Kubernetes wrote them; empty until the controller manager assigns them."""
    annotations: Mapping[str, str] | None = None
    """Those with our prefix; None: there is none."""
    claimed: int = 0
    """When flannel's annotations of it were written last, or else it was made; Unix seconds."""

    def annotation(self, key: str) -> str:
        """Its text, empty when absent."""
        return (self.annotations or {}).get(key, "")


@dataclass(frozen=True, slots=True)
class Deleted:
    """A Node object that is gone."""

    name: str


Event: TypeAlias = Node | Deleted


@dataclass(frozen=True, slots=True)
class Batch:
    """What happened, in order, and where to go on."""

    events: tuple[Event, ...]
    position: str
    """The resourceVersion: opaque."""


@dataclass(frozen=True, slots=True)
class Timing:
    """How patient we are; seconds."""

    call: float = 10.0
    """For the answer to a call."""
    page: float = 30.0
    """For a page of the listing."""
    silence: float = 20.0
    """On an open watch; then it is opened anew, which a server that is frozen does not answer within `call`.

    Each kubelet writes its Node every five minutes, so that where there are many nodes it is never silent, and where
    it is there are few lease services that open a watch anew.
    """
    silence_alone: float = 100.0
    """The same on a watch of one node, of which all that comes is a bookmark each minute, however many there are."""
    watch: float = 300.0
    """Length of a watch, up to twice that: the server ends it then, so that the load moves between servers."""
    retry_first: float = 0.5
    """First pause before reconnecting; doubles, with jitter."""
    retry_most: float = 15.0
    """Longest pause."""
    patch_pause: float = 3.0
    """Between attempts to write, as flannel."""
    patch_total: float = 30.0
    """For all of them together."""
    pod_cidr: float = 10.0
    """That a request for a lease waits for the node's podCIDR; less than callers wait for an answer."""
