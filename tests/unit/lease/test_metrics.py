"""What a lease service counts, as Prometheus gets it: in the event loop, where HTTP is answered."""

from prometheus_client import generate_latest

from flannelette.services.core.family import IPV4, Family
from flannelette.services.core.ipam import Usage
from flannelette.services.lease.metrics import follow_subnets


async def test_how_full_the_network_is_is_asked_when_somebody_looks() -> None:
    def usage(family: Family) -> Usage:
        return Usage(10, leased=3, reserved=2, blocked=1) if family is IPV4 else Usage(0)

    follow_subnets(usage)
    shown = generate_latest().decode().splitlines()
    for use, number in (("free", 4), ("leased", 3), ("reserved", 2), ("blocked", 1)):
        assert f'flannelette_lease_subnets{{family="IPv4",use="{use}"}} {number}.0' in shown
        assert f'flannelette_lease_subnets{{family="IPv6",use="{use}"}} 0.0' in shown
