"""Nodes as the Kubernetes store knows them, for its unit tests."""

from flannelette.services.core.network import parse_network
from flannelette.services.lease.stores.kube.values import Node, annotations

KEYS = annotations()
F = "flannel.alpha.coreos.com/"
V4 = parse_network('{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}', leases_subnets=False)
DUAL = parse_network(
    '{"Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:244::/48","Backend":{"Type":"vxlan"}}',
    leases_subnets=False,
)
MAC = "02:00:00:00:00:01"


def make_node(name: str = "a", *pod_cidrs: str, **annotations: str) -> Node:
    """A vxlan node; annotations without prefix, `_` for `-`."""
    base = {
        "kube-subnet-manager": "true",
        "backend-type": "vxlan",
        "backend-data": f'{{"VNI":1,"VtepMAC":"{MAC}"}}',
        "public-ip": "192.168.0.1",
    }
    given_ = base | {key.replace("_", "-"): text for key, text in annotations.items()}
    return Node(name, pod_cidrs or ("10.244.1.0/24",), {F + key: text for key, text in given_.items()})
