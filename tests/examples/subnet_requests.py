"""Who asks for which subnets of which network, for the tests of the choice."""

from collections.abc import Sequence
from functools import partial
from ipaddress import ip_address, ip_network

from flannelette.services.core.family import Network
from flannelette.services.core.ipam import SubnetPool, Use, choose_subnets
from flannelette.services.core.leases.lease import FamilyRequest, LeaseRequest
from flannelette.services.core.network import NetworkConfig, parse_network

PUBLIC = {4: ip_address("192.0.2.1"), 6: ip_address("2001:db8::1")}


def request(*previous: Network | None, versions: tuple[int, ...] = (4,)) -> LeaseRequest:
    parts = (
        FamilyRequest(PUBLIC[v], previous=p)
        for v, p in zip(versions, previous or (None,) * len(versions), strict=True)
    )
    return LeaseRequest("n1", "vxlan", tuple(parts))


def pick(index: int, _: int) -> int:
    return index


def occupied(network: NetworkConfig, taken: Sequence[Network]) -> SubnetPool:
    return SubnetPool(network, [(cidr, Use.LEASED) for cidr in taken])


def no_draw(_: int) -> int:
    raise AssertionError("nothing is to be drawn")


V4 = parse_network('{"Network": "10.5.0.0/16", "Backend": {"Type": "vxlan"}}')


DUAL = parse_network(
    '{"Network": "10.5.0.0/16", "EnableIPv6": true, "IPv6Network": "fd00:10:5::/48", "Backend": {"Type": "vxlan"}}'
)


def choose(network: NetworkConfig, *taken: str, previous: Sequence[str | None] = (), index: int = 0) -> list[str]:
    versions = tuple(n.family.version for n in network.families)
    asked = request(*(ip_network(p) if p else None for p in previous), versions=versions)
    pool = occupied(network, [ip_network(t) for t in taken])
    return [str(cidr) for cidr in choose_subnets(pool, asked, partial(pick, index))]
