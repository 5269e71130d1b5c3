"""Two networks of one host whose backend makes one device in flannel: wireguard, and udp in user space."""

import re
import signal
from typing import Final

import pytest

from tests.hosts.namespaces import NamespaceMaker
from tests.kernel.cluster.test_two_networks import everything, teardown
from tests.services.networks import two_networks

NETWORK: Final = '{"Network":"10.%d.0.0/16","Backend":{"Type":%s}}'


@pytest.mark.parametrize(
    ("kind", "option", "port", "taken"),
    [
        pytest.param(
            "wg", '"wireguard","ListenPort"', 51820, "51820 wireguard", marks=pytest.mark.modules("wireguard")
        ),
        pytest.param("udp", '"udp","Mode":"user","Port"', 8285, "8285 udp"),
    ],
)
async def test_each_network_has_its_device_and_port_and_nothing_of_the_other(
    make_netns: NamespaceMaker, kind: str, option: str, port: int, taken: str
) -> None:
    """Also after kill -9, after the upgrade from a release that had one name for both, and after a teardown."""
    names = ("blue", "red")
    configurations = {name: NETWORK % (5 + n, f"{option}:{port + n}") for n, name in enumerate(names)}
    blue, red = ((f"fl-{kind}-{name}", f"10.{5 + n}") for n, name in enumerate(names))
    async with two_networks(make_netns, configurations) as networks:
        n1, n2 = networks.n1, networks.n2
        empty = everything(n1)
        apart = [n1.serve("dataplane", name) for name in names]
        there = [n2.serve(kind, name) for kind in ("dataplane", "masq") for name in names]
        for service in (*apart, *there):
            await service.until_in_force()
        for host, peer in ((n1, n2), (n2, n1)):
            listed = re.findall(r"\bfl[\w.-]+(?=:)", host.namespace.ip("-o", "link"))
            assert sorted(listed) == [blue[0], red[0]]
            for name, (device, net), (_, other) in (("blue", blue, red), ("red", red, blue)):
                found = host.objects(device, net)
                for words in (f"{host.address(name)}/32", f"{net}.0.0/16 ", f"{peer.address(name)}/24"):
                    assert words in found, (words, found)
                assert f"{other}." not in found
        before = n1.objects(*blue), n1.objects(*red)
        traced = n2.flannelette("--network", "red", "trace", str(n2.address("red")), str(n1.address("red")))
        assert f"dev {red[0]}" in traced, traced

        with networks.stream() as stream:
            async with stream:
                for service in (*apart, *there):
                    service.end(signal.SIGKILL)
                    service.start()
                for service in (*apart, *there):
                    await service.until_in_force()
        assert stream.sent > 0
        assert stream.lost == []
        assert (n1.objects(*blue), n1.objects(*red)) == before

        networks.add("green", NETWORK % (7, f"{option}:{port}"))
        green = n1.serve("dataplane", "green")
        reason = (
            f"UDP port {taken} of network green and UDP port {taken} of network blue, which is on this host too, "
            "cannot be there at once: change one of them"
        )
        await green.until(lambda status: reason in status.reasons)
        green.end()

        if kind == "wg":  # what 0.2.0 has left of a network with a name
            apart[0].end(signal.SIGKILL)
            for words in (f"{blue[0]} down", f"{blue[0]} name flannel-wg", "flannel-wg up"):
                n1.namespace.ip("link", "set", *words.split())
            apart[0].start()
            await apart[0].until(lambda status: status.ready and status.peers.programmed == 1)
            assert n1.objects(*blue) == before[0]

        for service in n1.services:
            service.end(signal.SIGKILL)
        assert "dataplane-red" not in teardown(n1, "--network=blue", "--yes")
        assert (n1.objects(*blue), n1.objects(*red)) == ("", before[1])
        teardown(n1, "--yes")
        assert everything(n1) == empty
