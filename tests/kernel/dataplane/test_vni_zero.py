"""A written VNI of 0 is the VNI 0, as with flanneld: the device is flannel.0.

Regression tests of hole 16.
"""

import json

import pytest

from tests.flannel.turns import assert_turns_change_nothing, node
from tests.hosts.namespaces import NamespaceMaker, NetworkNamespace
from tests.kernel.dataplane.test_mtu import FULL, with_option


@pytest.mark.parametrize("families", ["ipv4", "dual"])
async def test_a_flanneld_with_vni_0_and_we_take_turns_and_no_packet_is_lost(
    netns: NetworkNamespace, make_netns: NamespaceMaker, families: str
) -> None:
    async with node(netns, make_netns, "vxlan", families, configuration=with_option(families, VNI=0)) as n1:
        (link,) = json.loads(n1.cluster.ip("-d -j link show flannel.0"))
        assert link["linkinfo"]["info_data"]["id"] == 0
        await assert_turns_change_nothing(n1, sizes=FULL)


async def test_our_own_device_of_vni_0_is_as_flanneld_takes_it(
    netns: NetworkNamespace, make_netns: NamespaceMaker
) -> None:
    async with node(netns, make_netns, "vxlan", "dual", configuration=with_option("dual", VNI=0)) as n1:
        for own, _ in n1.hosts.rows:
            netns.ip("link", "del", own.device)
        async with n1.cluster.dataplane() as running:
            await running.until(peers=1)
            await running.hand_over()
            devices = n1.hosts.devices()
        await n1.start_flanneld()
        assert n1.hosts.devices() == devices, "with their indexes and MACs"
        assert await n1.objects() == n1.flannels
        await n1.flanneld.stop()
