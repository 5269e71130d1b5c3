"""What the API server sends, whose Nodes many may annotate: the lines of a watch, and a page of a listing.

A case is lines, as a watch has them.
"""

import json
from typing import Final

from flannelette.services.core.errors import Unavailable
from flannelette.services.core.leases.table import Step, Upserted
from flannelette.services.lease.stores.kube.store import (
    Mirror,
    annotations_patch,
    require_pod_cidrs,
    withdrawal_patch,
)
from flannelette.services.lease.stores.kube.values import (
    Expired,
    Lines,
    Node,
    NodeProblem,
    WatchBatch,
    read_batch,
    read_page,
)
from flannelette.services.lease.stores.store import Changed, Snapshot
from flannelette.services.runtime.lease.wire import step_from_bytes, step_to_bytes
from tests.examples.leases import make_request
from tests.kubernetes.node_examples import DUAL, KEYS, make_node

_GOOD: Final = (
    make_node("good1", "10.244.200.0/24", public_ip="192.168.7.1"),
    make_node("good2", "10.244.201.0/24", public_ip="192.168.7.2"),
)
_REQUEST: Final = make_request("fuzzed", "192.168.0.77")


def kubernetes(data: bytes) -> None:
    """A line that cannot be read costs its batch; a Node that cannot be used costs that Node alone."""
    lines = list(Lines().feed(data + b"\n"))
    for line in lines:
        _page(line)
    try:
        batch = read_batch(lines, KEYS, "https://example")
    except (ValueError, Expired, Unavailable) as error:
        str(error)
        return
    if batch is not None:
        _folded(batch)


def _page(line: bytes) -> None:
    try:
        nodes, version, _ = read_page(json.loads(line), KEYS)
    except (ValueError, RecursionError):
        return
    mirror = Mirror(DUAL, KEYS)
    _leaves_others(mirror.replace((*_GOOD, *nodes), version), {node.name for node in nodes})


def _folded(batch: WatchBatch) -> None:
    mirror = Mirror(DUAL, KEYS)
    served = dict(mirror.replace(_GOOD, "1").leases)
    changed = mirror.fold(batch)
    for change in changed.changes if changed else ():
        if isinstance(change, Upserted):
            served[change.lease.name] = change.lease
        else:
            del served[change.name]
    assert mirror.leases == served, "what was told is what is served"
    _leaves_others(mirror.snapshot(), {event.name for event in batch.events})
    _is_told(changed)
    for node in batch.events:
        if isinstance(node, Node):
            _is_patched(node)


def _leaves_others(snapshot: Snapshot, touched: set[str]) -> None:
    for node in _GOOD:
        if node.name not in touched:
            assert str(snapshot.leases[node.name].cidrs[0]) == node.pod_cidrs[0]
            assert node.name not in snapshot.refused


def _is_told(changed: Changed | None) -> None:
    """To dataplanes, as it is."""
    for change in changed.changes if changed else ():
        step = Step(changes=(change,))
        assert step_from_bytes(step_to_bytes(step)) == step


def _is_patched(node: Node) -> None:
    """Its own lease service takes it as it is, or says why not."""
    try:
        require_pod_cidrs(node, DUAL, (), KEYS)
        json.dumps(annotations_patch(node, _REQUEST, KEYS))
    except NodeProblem as error:
        str(error)
    json.dumps(withdrawal_patch(node, KEYS))
