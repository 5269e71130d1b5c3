"""What the lab's trial takes for a change of the overlay's kernel objects."""

import pytest

from lab.changes import ChangeWatch
from tests.hosts.namespaces import NamespaceMaker, NetworkNamespace


@pytest.fixture
def host(make_netns: NamespaceMaker) -> NetworkNamespace:
    namespace, other = make_netns(), make_netns()
    make_netns.connect(namespace, "10.9.0.1/24", other, "10.9.0.2/24")
    return namespace


async def test_a_route_of_ours_that_comes_goes_or_is_replaced_is_a_change(host: NetworkNamespace) -> None:
    with ChangeWatch(host) as watch:
        host.ip("route", "add", "10.5.1.0/24", "via", "10.9.0.2", "proto", "77")
        assert watch.look() == 1
        host.ip("route", "replace", "10.5.1.0/24", "via", "10.9.0.3", "proto", "77")
        assert watch.look() == 2
        host.ip("route", "del", "10.5.1.0/24", "proto", "77")
        assert watch.look() == 3


async def test_a_permanent_neighbour_or_forwarding_entry_is_a_change(host: NetworkNamespace) -> None:
    host.ip("link", "add", "flannel.1", "type", "vxlan", "id", "1", "dev", "eth0", "dstport", "8472", "nolearning")
    host.ip("link", "set", "flannel.1", "up")
    mac = "0a:00:00:00:00:01"
    with ChangeWatch(host) as watch:
        host.ip("neighbour", "add", "10.5.1.0", "lladdr", mac, "dev", "flannel.1", "nud", "permanent")
        assert watch.look() == 1
        host.run("bridge", "fdb", "add", mac, "dev", "flannel.1", "dst", "10.9.0.2", "self", "permanent")
        assert watch.look() == 2


async def test_what_others_do_is_no_change(host: NetworkNamespace) -> None:
    with ChangeWatch(host) as watch:
        host.ip("route", "add", "10.6.1.0/24", "via", "10.9.0.2")
        host.ip("neighbour", "add", "10.9.0.7", "lladdr", "0a:00:00:00:00:02", "dev", "eth0", "nud", "reachable")
        assert watch.look() == 0
