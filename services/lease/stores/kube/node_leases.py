"""From a node to its lease: pure, the same for our own node and for every other."""

import json

from services.core.choices import Chosen, ChosenAddress
from services.core.errors import InvalidInput
from services.core.family import FAMILIES, Address, Family, Network
from services.core.flannel import parse_data
from services.core.lease import BackendData, Lease, Subnet
from services.core.network import FamilyNetwork, NetworkConfig
from services.core.notation import parse_address, parse_cidr
from services.lease.stores.kube.annotations import Annotations
from services.lease.stores.kube.records import Node


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


def chosen_for(node: Node, keys: Annotations) -> Chosen:
    """What the operator has chosen for a node, also where flannel does not run; the node finds out if it will do."""
    names = ((family.version, keys.of(family).chosen) for family in FAMILIES)
    return tuple(
        ChosenAddress(version, text, f"annotation {name}")
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
        raise InvalidInput(f"{where} is {text!r}, which is no {family} address: correct it")
    return None if address.is_unspecified else address


def _data(node: Node, key: str, backend_type: str) -> BackendData | None:
    text, where = node.annotation(key), f"annotation {key} of node {node.name}"
    if not text:
        return None
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidInput(f"{where} is no JSON: {text:.60}") from None
    return parse_data(text, backend_type, where)
