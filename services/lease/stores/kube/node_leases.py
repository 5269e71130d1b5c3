"""Translates a Node object to its lease, and a lease request to the patch of the Node object. Pure."""

import json
from collections.abc import Container, Mapping
from typing import Any, Final

from flannelette.services.core.backend_types import BACKEND_TYPES, AllocOptions
from flannelette.services.core.errors import InvalidInput
from flannelette.services.core.family import FAMILIES, IPV4, Address, Family, Network
from flannelette.services.core.formats.ip_text import parse_address, parse_cidr
from flannelette.services.core.leases.flannel_json import format_data, parse_data
from flannelette.services.core.leases.lease import BackendData, FamilyRequest, Lease, LeaseRequest, Subnet
from flannelette.services.core.leases.table import PublicIpOverride, PublicIpOverrides
from flannelette.services.core.limits import LONGEST_NAME
from flannelette.services.core.network import FamilyNetwork, NetworkConfig
from flannelette.services.lease.stores.kube.settings import Annotations
from flannelette.services.lease.stores.kube.values import Node, NodeProblem, Problem


def lease_of(node: Node, network: NetworkConfig, keys: Annotations, *, is_kept: bool = False) -> Lease | None:
    """The lease that a node holds, None if flannel does not run on it, or it has no podCIDR yet.

    Each family stands for itself: one that lacks podCIDR or address is left out, and peers reach the node in the
    other. (flanneld ignores the whole node, and what changes in it.) Raises InvalidInput for what cannot be read, and
    for a podCIDR outside the network, unless the node was published before the network was, or is kept: its lease
    was served with it already.
    """
    if node.annotation(keys.managed) != "true":
        return None
    cidrs, backend_type = pod_cidrs(node), node.annotation(keys.backend_type)
    if len(backend_type) > LONGEST_NAME:
        raise InvalidInput(f"annotation {keys.backend_type} of node {node.name} is longer than any backend's name")
    subnets = []
    for n in network.families:
        cidr, address = cidrs.get(n.family.version), _address(node, n.family, keys)
        if cidr is None or address is None:
            continue
        if not (is_kept or is_published_before(node, network, keys)):
            require_inside(node, cidr, n)
        subnets.append(Subnet(cidr, address, _data(node, keys.of(n.family).data, backend_type)))
    if not subnets:
        return None
    return Lease(node.name, node.name, tuple(subnets), backend_type, claim_order=node.claimed)


def is_published_before(node: Node, network: NetworkConfig, keys: Annotations) -> bool:
    """Whether the node was one of the overlay when the network may have been another (ADR 25)."""
    return node.annotation(keys.managed) == "true" and node.claimed < network.revision


def chosen_for(node: Node, keys: Annotations) -> PublicIpOverrides:
    """What the operator has chosen for a node, also where flannel does not run; the node finds out if it will do."""
    names = ((family.version, keys.of(family).chosen) for family in FAMILIES)
    return tuple(
        PublicIpOverride(version, text[:LONGEST_NAME], f"annotation {name}")
        for version, name in names
        if (text := node.annotation(name))
    )


def pod_cidrs(node: Node) -> dict[int, Network]:
    """The podCIDRs by IP version, none while none is assigned. Raises InvalidInput."""
    found: dict[int, Network] = {}
    for text in node.pod_cidrs:
        cidr = parse_cidr(text)
        if cidr is None or cidr.version in found:
            raise InvalidInput(
                f"node {node.name} has the podCIDRs {', '.join(node.pod_cidrs)}: one a family is needed, such as "
                "10.244.1.0/24"
            )
        found[cidr.version] = cidr
    return found


def require_inside(node: Node, cidr: Network, n: FamilyNetwork) -> None:
    """Raises InvalidInput for a podCIDR of the node outside the network."""
    if not n.fits(cidr):
        raise InvalidInput(
            f"the podCIDR {cidr} of node {node.name} lies outside the network {n.cidr}: correct the network "
            "configuration, or --cluster-cidr of kube-controller-manager"
        )


def _address(node: Node, family: Family, keys: Annotations) -> Address | None:
    key = keys.of(family).public
    text = node.annotation(key)
    return parse_public_address(text, family, f"annotation {key} of node {node.name}") if text else None


def parse_public_address(text: str, family: Family, where: str) -> Address | None:
    """The address, None for 0.0.0.0 and ::. Raises InvalidInput, naming `where`."""
    address = parse_address(text)
    if address is None or address.version != family.version:
        raise InvalidInput(f"{where} is {text!r}, which is not an {family} address: correct it")
    return None if address.is_unspecified else address


def _data(node: Node, key: str, backend_type: str) -> BackendData | None:
    text, where = node.annotation(key), f"annotation {key} of node {node.name}"
    if not text:
        return None
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidInput(f"{where} is not valid JSON: {text:.60}") from None
    return parse_data(text, backend_type, where)


WITHDRAWN: Final = "false"
"""Not removed but set: watchers see that this is no accident."""
_NO_DATA: Final = "null"
"""What flannel writes for a backend that has none."""
_UNTYPED: Final = AllocOptions
"""Options of a node that names no backend, as nodes of alloc, udp and the clouds."""
CONDITION: Final = "NetworkUnavailable"
_REASON: Final = "FlannelIsUp"


def require_pod_cidrs(
    node: Node, network: NetworkConfig, families: Container[Family], keys: Annotations, *, is_kept: bool = False
) -> None:
    """Raises NodeProblem, with what to do, unless the node has a podCIDR of each of these families of the network.

    That it lies outside is no reason for a node that has a lease with it: see `lease_of`.
    """
    try:
        cidrs = pod_cidrs(node)
        for n in network.families:
            cidr = cidrs.get(n.family.version)
            if cidr is None and n.family not in families:
                continue
            if cidr is None:
                which = f"{n.family} podCIDR" if cidrs else "podCIDR"
                raise NodeProblem(
                    node.name,
                    Problem.NO_POD_CIDR,
                    f"node {node.name} has no {which} yet: waiting for Kubernetes to assign it "
                    "(kube-controller-manager with --allocate-node-cidrs and --cluster-cidr)",
                )
            if not (is_kept or is_published_before(node, network, keys)):
                require_inside(node, cidr, n)
    except InvalidInput as error:
        raise NodeProblem(node.name, Problem.LEASE_REFUSED, str(error)) from None


def annotations_patch(node: Node, request: LeaseRequest, keys: Annotations) -> Mapping[str, Any] | None:
    """The strategic merge patch that publishes what the node asks for; None if it says so already.

    An address that the operator overwrites wins over the one asked for; those chosen for the node, the node has asked
    for already. Raises NodeProblem if such a one is no address.
    """
    wanted = {keys.managed: "true", keys.backend_type: request.backend_type}
    for family in FAMILIES:
        part = request.part(family)
        if part is not None and _is_published(family, request.backend_type, part):
            wanted[keys.of(family).data] = format_data(part.data) if part.data else _NO_DATA
            wanted[keys.of(family).public] = _public_address(node, family, part, keys)
    has = node.annotations or {}
    news = {key: text for key, text in wanted.items() if has.get(key) != text}
    return {"metadata": {"annotations": news}} if news else None


def withdrawal_patch(node: Node, keys: Annotations) -> Mapping[str, Any] | None:
    """The patch after which flannel does not run on this node; the rest stays, for when it does again."""
    is_ours = node.annotation(keys.managed) not in ("", WITHDRAWN)
    return {"metadata": {"annotations": {keys.managed: WITHDRAWN}}} if is_ours else None


def condition_patch(document: Mapping[str, Any], now: str) -> Mapping[str, Any] | None:
    """The patch that says that the network of this Node works; None if it says so already. `now` in RFC 3339."""
    conditions = document.get("status", {}).get("conditions") or []
    for condition in conditions:
        if condition.get("type") == CONDITION and (condition.get("status"), condition.get("reason")) == (
            "False",
            _REASON,
        ):
            return None
    condition = {
        "type": CONDITION,
        "status": "False",
        "reason": _REASON,
        "message": "Flannel is running on this node",
        "lastTransitionTime": now,
        "lastHeartbeatTime": now,
    }
    return {"status": {"conditions": [condition]}}


def _is_published(family: Family, backend_type: str, part: FamilyRequest) -> bool:
    backend = BACKEND_TYPES.get(backend_type, _UNTYPED)
    if backend.needs_data:
        return part.data is not None
    return family is IPV4 or backend.publishes_ipv6


def _public_address(node: Node, family: Family, part: FamilyRequest, keys: Annotations) -> str:
    key = keys.of(family).overwrite
    text = node.annotation(key)
    if not text:
        return str(part.public_address)
    try:
        parse_public_address(text, family, f"annotation {key} of node {node.name}")
    except InvalidInput as error:
        raise NodeProblem(node.name, Problem.LEASE_REFUSED, str(error)) from None
    return text
