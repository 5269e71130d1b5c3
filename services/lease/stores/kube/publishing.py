"""What to write into the Node object of a node: pure, patches from what it says now."""

from collections.abc import Mapping
from typing import Any, Final

from services.core.errors import InvalidInput, NotYet
from services.core.family import FAMILIES, IPV4, Family
from services.core.flannel import format_data
from services.core.lease import LeaseRequest, Wish
from services.core.network import NetworkConfig
from services.lease.stores.kube.annotations import Annotations
from services.lease.stores.kube.node_leases import (
    is_published_before,
    parse_public_address,
    pod_cidrs,
    require_inside,
)
from services.lease.stores.kube.records import Node

WITHDRAWN: Final = "false"
"""And not no annotation: whoever watches sees that this is no accident."""
_NO_DATA: Final = "null"
"""What flannel writes for a backend that has none."""
_NEEDS_DATA: Final = frozenset({"vxlan", "wireguard"})
"""Without data of a family these do not publish it."""
_DUAL_STACK: Final = _NEEDS_DATA | {"host-gw", "extension"}
"""The others publish no IPv6."""
CONDITION: Final = "NetworkUnavailable"
_REASON: Final = "FlannelIsUp"


def require_pod_cidrs(node: Node, network: NetworkConfig, keys: Annotations, *, is_kept: bool = False) -> None:
    """Raises NotYet, with what to do, unless the node has a podCIDR of each family, inside the network.

    That it lies outside is no reason for a node that has a lease with it: see `lease_of`.
    """
    try:
        cidrs = pod_cidrs(node)
        for n in network.families:
            cidr = cidrs.get(n.family.version)
            if cidr is None:
                which = f"{n.family} podCIDR" if cidrs else "podCIDR"
                raise NotYet(
                    f"node {node.name} has no {which} yet: waiting for Kubernetes to assign it "
                    "(kube-controller-manager with --allocate-node-cidrs and --cluster-cidr)"
                )
            if not (is_kept or is_published_before(node, network, keys)):
                require_inside(node, cidr, n)
    except InvalidInput as error:
        raise NotYet(str(error)) from None


def annotations_patch(node: Node, request: LeaseRequest, keys: Annotations) -> Mapping[str, Any] | None:
    """The strategic merge patch that publishes what the node asks for; None if it says so already.

    An address that the operator overwrites wins over the one asked for; those chosen for the node, the node has asked
    for already. Raises NotYet if such a one is no address.
    """
    wanted = {keys.managed: "true", keys.backend_type: request.backend_type}
    for family in FAMILIES:
        wish = request.wish(family)
        if wish is not None and _is_published(family, request.backend_type, wish):
            wanted[keys.of(family).data] = format_data(wish.data) if wish.data else _NO_DATA
            wanted[keys.of(family).public] = _public_address(node, family, wish, keys)
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


def _is_published(family: Family, backend_type: str, wish: Wish) -> bool:
    if backend_type in _NEEDS_DATA:
        return wish.data is not None
    return family is IPV4 or backend_type in _DUAL_STACK


def _public_address(node: Node, family: Family, wish: Wish, keys: Annotations) -> str:
    key = keys.of(family).overwrite
    text = node.annotation(key)
    if not text:
        return str(wish.public_address)
    try:
        parse_public_address(text, family, f"annotation {key} of node {node.name}")
    except InvalidInput as error:
        raise NotYet(str(error)) from None
    return text
