"""From Node objects to leases and back, without Kubernetes: annotations, podCIDRs, patches."""

from ipaddress import ip_address

import pytest

from flannelette.services.core.errors import InvalidInput, Misconfigured, NotYet
from flannelette.services.core.family import FAMILIES, IPV4
from flannelette.services.core.leases.lease import FamilyRequest, LeaseRequest, OpaqueData, VxlanData
from flannelette.services.lease.stores.kube.store import (
    annotations_patch,
    condition_patch,
    lease_of,
    require_pod_cidrs,
)
from flannelette.services.lease.stores.kube.values import Node, annotations
from tests.kubernetes.node_examples import DUAL, KEYS, MAC, V4, F, make_node


@pytest.mark.parametrize(
    ("prefix", "public"),
    [
        ("flannel.alpha.coreos.com", "flannel.alpha.coreos.com/public-ip"),
        ("flannel.alpha.coreos.com/", "flannel.alpha.coreos.com/public-ip"),
        ("example.com/net", "example.com/net-public-ip"),
        ("example.com/net-", "example.com/net-public-ip"),
        ("example.com/my_net-2", "example.com/my_net-2-public-ip"),
    ],
)
def test_annotations_are_named_by_flannels_rules(prefix: str, public: str) -> None:
    keys = annotations(prefix)
    assert keys.ipv4.public == public
    start = public.removesuffix("public-ip")
    assert (keys.managed, keys.backend_type) == (f"{start}kube-subnet-manager", f"{start}backend-type")
    assert (keys.ipv4.data, keys.ipv6.data) == (f"{start}backend-data", f"{start}backend-v6-data")
    assert (keys.ipv4.overwrite, keys.ipv6.overwrite) == (f"{public}-overwrite", f"{start}public-ipv6-overwrite")
    assert (keys.ipv4.chosen, keys.ipv6.chosen) == (f"{start}node-public-ip", f"{start}node-public-ipv6")
    assert keys.ipv6.public == f"{start}public-ipv6"


@pytest.mark.parametrize(
    "prefix",
    ["", "/", "a/b/c", "nodots/x", "Upper.com", "example.com-", "example.com/UP", "example.com/a b", "-a.com"],
)
def test_a_prefix_that_breaks_flannels_rules_is_refused_with_an_example(prefix: str) -> None:
    with pytest.raises(Misconfigured, match=r"--kube-annotation-prefix .* for instance"):
        annotations(prefix)


def test_each_family_of_a_node_stands_for_itself() -> None:
    cidrs = ("10.244.1.0/24", "fd00:244:0:1::/64")
    data6 = '{"VNI":1,"VtepMAC":"02:00:00:00:00:06"}'
    whole = lease_of(make_node("a", *cidrs, public_ipv6="fd00::1", backend_v6_data=data6), DUAL, KEYS)
    assert whole is not None
    assert [subnet.public_address for subnet in whole.subnets] == [ip_address("192.168.0.1"), ip_address("fd00::1")]
    for node, version in (
        (make_node("a", *cidrs), 4),
        (make_node("a", cidrs[0], public_ipv6="fd00::1", backend_v6_data=data6), 4),
        (make_node("a", *reversed(cidrs), public_ip="", public_ipv6="fd00::1", backend_v6_data=data6), 6),
        (make_node("a", cidrs[1], public_ip="0.0.0.0", public_ipv6="fd00::1", backend_v6_data=data6), 6),  # noqa: S104
    ):
        lease = lease_of(node, DUAL, KEYS)
        assert lease is not None
        assert [subnet.cidr.version for subnet in lease.subnets] == [version]
    alone = lease_of(make_node("a", *cidrs, public_ipv6="fd00::1"), V4, KEYS)
    assert alone is not None
    assert [subnet.cidr.version for subnet in alone.subnets] == [4], "the network has no IPv6"


@pytest.mark.parametrize("managed", ["", "false", "True", "yes"])
def test_a_node_on_which_flannel_does_not_run_is_none_of_ours(managed: str) -> None:
    assert lease_of(make_node(kube_subnet_manager=managed, public_ip="nonsense"), V4, KEYS) is None
    assert lease_of(Node("a", (), make_node().annotations), V4, KEYS) is None


@pytest.mark.parametrize(
    ("node", "sentence"),
    [
        (make_node("a", "10.9.0.0/24"), r"podCIDR 10\.9\.0\.0/24 of node a lies outside the network 10\.244"),
        (make_node("a", "10.0.0.0/8"), "lies outside"),
        (make_node("a", "nonsense"), "node a has the podCIDRs nonsense: one a family"),
        (make_node("a", "10.244.1.0/24", "10.244.2.0/24"), "one a family"),
        (make_node(public_ip="fd00::1"), "public-ip of node a is 'fd00::1', which is not an IPv4 address"),
        (make_node(backend_data="{"), "backend-data of node a is not valid JSON"),
        (make_node(backend_data="[" * 100_000), "is not valid JSON"),
        (make_node(backend_data='{"VNI":1,"VtepMAC":"x"}'), "not a MAC address"),
        (make_node(backend_data="7"), "must be a JSON object"),
    ],
)
def test_what_cannot_be_read_names_the_node_and_the_annotation(node: Node, sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        lease_of(node, V4, KEYS)


def test_data_of_other_backends_is_kept_as_it_is() -> None:
    for kind, text, data in (
        ("host-gw", "null", None),
        ("extension", '"a b"', OpaqueData('"a b"')),
        ("udp", "", None),
    ):
        lease = lease_of(make_node(backend_type=kind, backend_data=text), V4, KEYS)
        assert lease is not None
        assert lease.subnets[0].data == data


def request(
    kind: str = "vxlan", mac: str | None = MAC, public: str = "192.168.0.1", **more: FamilyRequest
) -> LeaseRequest:
    part = FamilyRequest(ip_address(public), VxlanData(1, mac) if mac else None)
    return LeaseRequest("a", kind, (part, *more.values()))


def patched(node: Node, asked: LeaseRequest) -> dict[str, str]:
    patch = annotations_patch(node, asked, KEYS)
    assert patch is not None
    return {key.removeprefix(F): text for key, text in patch["metadata"]["annotations"].items()}


def test_only_what_is_new_is_written() -> None:
    assert annotations_patch(make_node(), request(), KEYS) is None
    assert patched(make_node(), request(public="192.168.0.2")) == {"public-ip": "192.168.0.2"}
    assert patched(Node("a"), request()).keys() == {
        "kube-subnet-manager",
        "backend-type",
        "backend-data",
        "public-ip",
    }


def test_ipv6_is_written_by_the_backends_that_have_it() -> None:
    wish6 = FamilyRequest(ip_address("fd00::1"))
    for kind, written in (("host-gw", True), ("extension", True), ("ipip", False), ("udp", False), ("vxlan", False)):
        keys = patched(Node("a"), request(kind, MAC if kind == "vxlan" else None, wish6=wish6)).keys()
        assert ("backend-v6-data" in keys, "public-ipv6" in keys) == (written, written), kind


def test_what_the_operator_overwrites_wins_over_what_was_found_out() -> None:
    """A regression test of defect 20 of flannel v0.28."""
    node = make_node(public_ip_overwrite="203.0.113.7", node_public_ip="198.51.100.1")
    assert patched(node, request()) == {"public-ip": "203.0.113.7"}
    chosen = make_node(node_public_ip="198.51.100.1")
    assert annotations_patch(chosen, request(), KEYS) is None, "what is chosen, the node asks for by itself"
    with pytest.raises(NotYet, match="public-ip-overwrite of node a is 'fd00::1', which is not an IPv4 address"):
        annotations_patch(make_node(public_ip_overwrite="fd00::1"), request(), KEYS)


def test_a_condition_that_is_there_is_not_written_again() -> None:
    patch = condition_patch({}, "2026-01-31T12:00:00Z")
    assert patch is not None
    (condition,) = patch["status"]["conditions"]
    assert condition["lastTransitionTime"] == condition["lastHeartbeatTime"] == "2026-01-31T12:00:00Z"
    assert condition_patch({"status": {"conditions": [{"type": "Ready"}, condition]}}, "later") is None
    for other in ({"status": "True"}, {"reason": "CalicoIsUp"}):
        assert condition_patch({"status": {"conditions": [condition | other]}}, "later") is not None


def test_a_node_needs_a_pod_cidr_of_each_family_inside_the_network() -> None:
    require_pod_cidrs(make_node(), V4, FAMILIES, KEYS)
    require_pod_cidrs(make_node(), DUAL, (IPV4,), KEYS)
    for node, network, sentence in (
        (Node("a"), V4, "node a has no podCIDR yet"),
        (make_node(), DUAL, "node a has no IPv6 podCIDR yet"),
        (make_node("a", "10.9.0.0/24"), V4, "lies outside"),
        (make_node("a", "nonsense"), V4, "one a family"),
    ):
        with pytest.raises(NotYet, match=sentence):
            require_pod_cidrs(node, network, FAMILIES, KEYS)
