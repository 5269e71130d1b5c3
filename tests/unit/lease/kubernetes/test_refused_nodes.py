"""What the watch makes of a Node that cannot be a lease: a reason, and no effect on other nodes."""

from flannelette.services.lease.stores.kube.store import Mirror
from flannelette.services.lease.stores.kube.values import WatchBatch
from tests.kubernetes.node_examples import KEYS, V4, F, make_node


def test_why_a_node_is_refused_is_told_in_a_thousand_characters_however_long_its_annotation_is() -> None:
    mirror = Mirror(V4, KEYS)
    mirror.replace([make_node("good")], "1")
    mirror.fold(WatchBatch((make_node("bad", "10.244.2.0/24", public_ip=100_000 * "x"),), "2"))
    snapshot = mirror.snapshot()
    assert list(snapshot.leases) == ["good"]
    assert len(str(snapshot.refused["bad"])) == 1000


def test_what_an_operator_chooses_for_a_node_is_told_in_no_more_than_a_name_has() -> None:
    mirror = Mirror(V4, KEYS)
    chosen = mirror.replace([make_node(public_ip="", node_public_ip=100_000 * "9")], "1").overrides
    assert chosen is not None
    (override,) = chosen["a"]
    assert override.text == 512 * "9"


def test_a_node_that_names_a_backend_longer_than_any_is_refused() -> None:
    mirror = Mirror(V4, KEYS)
    refused = mirror.replace([make_node(backend_type=513 * "x")], "1").refused["a"]
    assert refused == f"annotation {F}backend-type of node a is longer than any backend's name"
