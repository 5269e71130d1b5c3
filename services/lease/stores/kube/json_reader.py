"""What the API server sends, as values: a page of nodes, a Node object, the lines of a watch. Pure."""

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from sys import intern
from typing import Any, Final

from flannelette.services.lease.stores.kube.annotations import Annotations
from flannelette.services.lease.stores.kube.values import Batch, Deleted, Event, Expired, Node, refusal


class NotANode(ValueError):
    """What the server sent has not the shape of a Node."""


def read_node(document: Any, keys: Annotations) -> Node:
    """The node, with the annotations that are ours. Raises NotANode."""
    metadata = _mapping(document, "metadata")
    name = _encodable(metadata.get("name"))
    if not isinstance(name, str) or not name:
        raise NotANode("a Node without a name")
    spec = _mapping(document, "spec")
    pod_cidrs = spec.get("podCIDRs") or ([spec["podCIDR"]] if spec.get("podCIDR") else [])
    # The names of annotations are the same in every node: kept once, they cost 1.6 MB less in 5,000 nodes.
    ours = {
        intern(key): _encodable(text)
        for key, text in _mapping(metadata, "annotations").items()
        if key.startswith(keys.prefix)
    }
    if not isinstance(pod_cidrs, list) or not all(isinstance(text, str) for text in (*pod_cidrs, *ours.values())):
        raise NotANode(f"Node {name} has fields of the wrong type")
    return Node(name, tuple(pod_cidrs), ours or None, _claimed(metadata, keys))


def _encodable(text: Any) -> Any:
    """The text; half a surrogate pair, which no program in Go writes, is a question mark."""
    return text if not isinstance(text, str) or text.isascii() else text.encode(errors="replace").decode()


def read_page(document: Any, keys: Annotations) -> tuple[list[Node], str, str]:
    """The nodes of a listing, its resourceVersion, and where it continues, empty at its end. Raises NotANode."""
    items = document.get("items") if isinstance(document, dict) else document
    if not isinstance(items, list | None):
        raise NotANode("items is not a JSON array")
    following = _mapping(document, "metadata").get("continue")
    return [read_node(item, keys) for item in items or ()], read_version(document), str(following or "")


def read_version(document: Any) -> str:
    """The resourceVersion of an object or a list. Raises NotANode."""
    version = _mapping(document, "metadata").get("resourceVersion")
    if not isinstance(version, str) or not version:
        raise NotANode("an object without resourceVersion")
    return version


def _claimed(metadata: Mapping[str, Any], keys: Annotations) -> int:
    """When what the node claims was written last, by the API server's managedFields; not before the Node was created.

    The age of the Node says nothing: the oldest node could take what others publish. But whoever may patch a Node may
    write its managedFields too, and any time into them.
    """
    times = [0]
    entries = metadata.get("managedFields")
    for entry in entries if isinstance(entries, list) else ():
        fields = _mapping(_mapping(_mapping(entry, "fieldsV1"), "f:metadata"), "f:annotations")
        if any(name[2:] in keys.claiming for name in fields):  # after `f:`
            times.append(_seconds(entry.get("time")))
    return max(*times, _seconds(metadata.get("creationTimestamp")))


def _seconds(timestamp: Any) -> int:
    """Kubernetes writes whole seconds in UTC: 2026-01-31T12:00:00Z. 0: not known, or before 1970, which is older
    than any claim can be.
    """
    try:
        return max(int(datetime.fromisoformat(timestamp).timestamp()), 0)
    except (TypeError, ValueError, OverflowError):
        return 0


def _mapping(document: Any, key: str) -> Mapping[str, Any]:
    value = document.get(key) if isinstance(document, dict) else document
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise NotANode(f"{key} is not a JSON object")
    return value


_LONGEST: Final = 16 << 20
"""Bytes in a line; etcd, and so Kubernetes, refuses objects of more than 1.5 MB."""
_TRANSIENT: Final = frozenset({429, 500, 502, 503, 504})
"""Codes of an ERROR event after which the watch can be resumed at the same position."""


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


def read_batch(lines: Iterable[bytes], keys: Annotations, server: str) -> Batch | None:
    """The events in these lines; None if there are none, not even a bookmark.

    Raises ValueError for what is no event, Expired or Unavailable for an ERROR: events before it are dropped, and
    come again from the same position.
    """
    events: list[Event] = []
    position = ""
    for line in lines:
        try:
            document = json.loads(line)
        except RecursionError:
            raise NotANode("JSON that is nested too deeply") from None
        kind, target = (document.get("type"), document.get("object")) if isinstance(document, dict) else (None, None)
        if kind == "ERROR":
            raise _error(server, target)
        position = read_version(target)
        if kind in ("ADDED", "MODIFIED"):
            events.append(read_node(target, keys))
        elif kind == "DELETED":
            events.append(Deleted(read_node(target, keys).name))
        elif kind != "BOOKMARK":
            raise NotANode(f"an event of type {kind!r}")
    return Batch(tuple(events), position) if position else None


def _error(server: str, status: Any) -> Exception:
    code = status.get("code") if isinstance(status, dict) else None
    if isinstance(code, int) and code in _TRANSIENT:
        return refusal(server, "watch nodes", code, status)
    return Expired(f"the watch ended with {status!r:.300}")
