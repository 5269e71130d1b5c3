"""Each device has the MTU that flanneld's has, and subnet.env says what flanneld's does.

An option MTU above what the underlay has leads to what fits, as with flanneld. Regression tests of holes 13 and 14.
"""

import json
from typing import Any, Final

import pytest

from tests.flannel.turns import assert_turns_change_nothing, node
from tests.hosts.namespaces import NamespaceMaker, NetworkNamespace
from tests.hosts.two_hosts import TwoHosts, network

FULL: Final = {4: 1450, 6: 1430}
"""What fits into the devices, over an underlay of 1500 bytes."""


def mtus(hosts: TwoHosts) -> list[int]:
    return [json.loads(hosts.cluster.ip(f"-j link show {own.device}"))[0]["mtu"] for own, _ in hosts.rows]


def with_option(families: str, **options: Any) -> str:
    """The network configuration, with options of the backend."""
    document = json.loads(network("vxlan", families))
    document["Backend"] |= options
    return json.dumps(document)


async def test_in_dual_stack_packets_of_full_size_pass_through_a_take_over_and_a_hand_over(
    netns: NetworkNamespace, make_netns: NamespaceMaker
) -> None:
    async with node(netns, make_netns, "vxlan", "dual") as n1:
        assert mtus(n1.hosts) == list(FULL.values())
        assert "FLANNEL_MTU=1450\n" in (n1.cluster.directory / "subnet.env").read_text()
        await assert_turns_change_nothing(n1, sizes=FULL)


@pytest.mark.parametrize("option", [1350, 1480, 1500])
async def test_with_the_option_mtu_each_device_is_as_flanneld_makes_it(
    netns: NetworkNamespace, make_netns: NamespaceMaker, option: int
) -> None:
    async with node(netns, make_netns, "vxlan", "dual", configuration=with_option("dual", MTU=option)) as n1:
        assert mtus(n1.hosts) == [option - 50, min(option - 50, 1430)]
        await assert_turns_change_nothing(n1, sizes=dict(zip((4, 6), mtus(n1.hosts), strict=True)))


@pytest.mark.parametrize("families", ["ipv4", "dual"])
async def test_with_an_option_mtu_above_the_underlays_flannelds_devices_stay_and_pods_get_an_mtu_that_fits(
    netns: NetworkNamespace, make_netns: NamespaceMaker, families: str
) -> None:
    """A regression test of hole 13."""
    async with node(netns, make_netns, "vxlan", families, configuration=with_option(families, MTU=9000)) as n1:
        assert mtus(n1.hosts) == list(FULL.values())[: len(n1.hosts.rows)]
        path = n1.cluster.directory / "subnet.env"
        assert "FLANNEL_MTU=8950\n" in path.read_text(), "flanneld's own, which no device carries"
        await assert_turns_change_nothing(n1, sizes=FULL, flannels_file=False)
        async with n1.cluster.dataplane("--ip-masq") as running:
            status = await running.until(peers=1)
            assert [warning[:37] for warning in status.warnings] == ["the backend's option MTU is 9000, but"]
