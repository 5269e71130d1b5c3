"""The network configuration, as an operator writes it: of every backend, for every service."""

from ipaddress import ip_network

from services.core.errors import InvalidInput
from services.core.family import FAMILIES, Network
from services.core.network import NetworkConfig, parse_network
from services.dataplane.backends import make_backend
from services.masq.diagnose.host_checks import flows_of, tunnel_of
from services.masq.rules.model import wanted_chains
from services.runtime.lease.wire import network_from_proto, network_to_proto
from tests.examples.dataplane import DUAL_UNDERLAY
from tests.examples.masq_firewall import ALL


def network(data: bytes) -> None:
    """Refused by InvalidInput, or all services understand it alike."""
    text = data.decode(errors="replace")
    for leases_subnets in (True, False):
        try:
            found = parse_network(text, leases_subnets=leases_subnets)
        except InvalidInput as error:
            str(error).encode()
            continue
        message = network_to_proto(found)
        assert network_from_proto(message.FromString(message.SerializeToString())) == found
        _use(found)


def _use(found: NetworkConfig) -> None:
    """What the dataplane and masq do with it first."""
    found.shown.encode()
    subnets: list[Network] = [
        ip_network((row.cidr.network_address, min(row.cidr.prefixlen + 1, row.cidr.max_prefixlen)))
        for row in found.families
    ]
    flows_of(found, subnets)
    tunnel_of(found)
    wanted_chains(found, subnets, ALL)
    try:
        backend = make_backend(found)
    except InvalidInput as error:
        str(error).encode()
        return
    backend.mtu(DUAL_UNDERLAY)
    assert all(found.cidrs(family) or found.family(family) is None for family in FAMILIES)
