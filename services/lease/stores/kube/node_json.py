"""A Node object's JSON as our Node: the few fields we need, each checked. Pure."""

from collections.abc import Mapping
from datetime import datetime
from sys import intern
from typing import Any

from services.lease.stores.kube.records import Node


class NotANode(ValueError):
    """What the server sent has not the shape of a Node."""


def read_node(document: Any, prefix: str) -> Node:
    """The node. Raises NotANode. `prefix` is what the names of our annotations start with."""
    metadata = _mapping(document, "metadata")
    name = metadata.get("name")
    if not isinstance(name, str) or not name:
        raise NotANode("a Node without a name")
    spec = _mapping(document, "spec")
    pod_cidrs = spec.get("podCIDRs") or ([spec["podCIDR"]] if spec.get("podCIDR") else [])
    # The names of annotations are the same in every node: kept once, they cost 1.6 MB less in 5,000 nodes.
    ours = {intern(key): text for key, text in _mapping(metadata, "annotations").items() if key.startswith(prefix)}
    if not isinstance(pod_cidrs, list) or not all(isinstance(text, str) for text in (*pod_cidrs, *ours.values())):
        raise NotANode(f"Node {name} has fields of the wrong type")
    return Node(name, tuple(pod_cidrs), ours or None, _claimed(metadata, prefix))


def read_version(document: Any) -> str:
    """The resourceVersion of an object or a list. Raises NotANode."""
    version = _mapping(document, "metadata").get("resourceVersion")
    if not isinstance(version, str) or not version:
        raise NotANode("an object without resourceVersion")
    return version


def _claimed(metadata: Mapping[str, Any], prefix: str) -> int:
    """When somebody wrote annotations of ours last, by what the API server notes of it; else when the Node was made.

    A Node is old while what it says is new: by its own age, whoever joined first could take what others publish.
    """
    times = [0]
    entries = metadata.get("managedFields")
    for entry in entries if isinstance(entries, list) else ():
        fields = _mapping(_mapping(_mapping(entry, "fieldsV1"), "f:metadata"), "f:annotations")
        if any(name.startswith(prefix, 2) for name in fields):  # behind `f:`
            times.append(_seconds(entry.get("time")))
    return max(times) or _seconds(metadata.get("creationTimestamp"))


def _seconds(timestamp: Any) -> int:
    """Kubernetes writes whole seconds in UTC: 2026-01-31T12:00:00Z."""
    try:
        return int(datetime.fromisoformat(timestamp).timestamp())
    except (TypeError, ValueError):
        return 0


def _mapping(document: Any, key: str) -> Mapping[str, Any]:
    value = document.get(key) if isinstance(document, dict) else document
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise NotANode(f"{key} is no JSON object")
    return value
