"""What unanswered probes say, of the peers that do not answer."""

from types import SimpleNamespace
from typing import Any

import pytest

from flannelette.services.core.family import IPV4
from flannelette.services.core.leases.lease import Lease
from flannelette.services.core.network import parse_network
from flannelette.services.dataplane.backends.ipip import Ipip
from flannelette.services.dataplane.backends.vxlan import Vxlan
from flannelette.services.dataplane.peers import Overlay, Peer, PeerContext
from flannelette.services.dataplane.probes.prober import Prober
from flannelette.services.dataplane.probes.record import Layer, ProbedPath, Record
from tests.examples.dataplane import LINKS, subnet

CONTEXT = PeerContext(
    parse_network('{"Network":"10.5.0.0/16","Backend":{"Type":"ipip"}}'),
    Ipip(),
    LINKS,
    earlier=(Overlay("vxlan", Vxlan(), LINKS),),
)
CARRIERS = {"vxlan": "UDP port 8472", "ipip": "IP protocol 4 (IPIP)"}


def record(layer: Layer, round_trip: float | None) -> tuple[ProbedPath, Record]:
    path = ProbedPath(layer, IPV4, LINKS.underlay.addresses[0], 1450, must_answer=True)
    made = Record(must_answer=True, mtu=1450)
    for _ in range(3):
        made.note(0, round_trip, 0.0)
    return path, made


@pytest.mark.parametrize("kinds", [("vxlan",), ("ipip",), ("ipip", "vxlan")])
def test_while_the_backend_changes_a_silent_tunnel_is_that_of_the_peer(kinds: tuple[str, ...]) -> None:
    leases = [
        Lease(f"10.5.{n}.0-24", f"n{n}", (subnet(f"10.5.{n}.0/24", f"10.99.0.{n}"),), kind)
        for n, kind in enumerate(kinds)
    ]
    peers = {lease.name: Peer(lease, (), (), lease.subnets) for lease in leases}
    dataplane: Any = SimpleNamespace(programmer=SimpleNamespace(context=CONTEXT, peers=peers), detours={})
    prober = Prober(dataplane, 0)
    prober.silent |= peers.keys()
    prober.records = {name: dict([record(Layer.OVERLAY, None), record(Layer.UNDERLAY, 0.1)]) for name in peers}
    (finding,) = prober.findings()
    assert f" drops {' or '.join(CARRIERS[kind] for kind in kinds)}, or ICMP" in finding.cause
