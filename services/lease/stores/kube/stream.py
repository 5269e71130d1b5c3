"""A watch as the server sends it, lines of JSON, as batches of events. Pure."""

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final

from services.lease.stores.kube.faults import refusal
from services.lease.stores.kube.node_json import NotANode, read_node, read_version
from services.lease.stores.kube.records import Batch, Deleted, Event, Expired

_LONGEST: Final = 16 << 20
"""Bytes in a line; etcd, and so Kubernetes, refuses objects of more than 1.5 MB."""
_TRANSIENT: Final = frozenset({429, 500, 502, 503, 504})
"""Codes of an ERROR event after which the same place can be asked for again."""


class Lines:
    """Chunks of bytes to whole lines."""

    def __init__(self) -> None:
        self.rest = b""
        """The beginning of the next one."""

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """The lines that are complete now. Raises ValueError for one that does not end."""
        *whole, self.rest = (self.rest + chunk).split(b"\n")
        if len(self.rest) > _LONGEST:
            raise ValueError(f"a line of more than {_LONGEST} bytes")
        return (line for line in whole if line.strip())


def read_batch(lines: Iterable[bytes], prefix: str, server: str) -> Batch | None:
    """The events in these lines; None if there are none, not even a bookmark.

    Raises ValueError for what is no event, Expired or Unavailable for an ERROR: events before it are dropped, and
    come again from the same place.
    """
    events: list[Event] = []
    position = ""
    for line in lines:
        document = json.loads(line)
        kind, thing = (document.get("type"), document.get("object")) if isinstance(document, dict) else (None, None)
        if kind == "ERROR":
            raise _error(server, thing)
        position = read_version(thing)
        if kind in ("ADDED", "MODIFIED"):
            events.append(read_node(thing, prefix))
        elif kind == "DELETED":
            events.append(Deleted(read_node(thing, prefix).name))
        elif kind != "BOOKMARK":
            raise NotANode(f"an event of type {kind!r}")
    return Batch(tuple(events), position) if position else None


def _error(server: str, status: Any) -> Exception:
    code = status.get("code") if isinstance(status, dict) else None
    if code in _TRANSIENT:
        return refusal(server, "watch nodes", code, status)
    return Expired(f"the watch ended with {status!r:.300}")
