"""An option MTU above what the underlay has: the devices get what fits, as the kernel gives it to flanneld."""

import pytest

from tests.flannel.turns import assert_turns_change_nothing, node
from tests.hosts.namespaces import NamespaceMaker, NetworkNamespace
from tests.kernel.dataplane.test_hole_14_mtu_per_device import FULL, mtus, with_option


@pytest.mark.parametrize("families", ["ipv4", "dual"])
async def test_hole_13_flanneld_s_devices_stay_and_pods_get_an_mtu_that_fits(
    netns: NetworkNamespace, make_netns: NamespaceMaker, families: str
) -> None:
    async with node(netns, make_netns, "vxlan", families, configuration=with_option(families, MTU=9000)) as n1:
        assert mtus(n1.hosts) == list(FULL.values())[: len(n1.hosts.rows)]
        path = n1.cluster.directory / "subnet.env"
        assert "FLANNEL_MTU=8950\n" in path.read_text(), "flanneld's own, which no device carries"
        await assert_turns_change_nothing(n1, sizes=FULL, flannels_file=False)
        async with n1.cluster.dataplane("--ip-masq") as running:
            status = await running.until(peers=1)
            assert [warning[:37] for warning in status.warnings] == ["the backend's option MTU is 9000, but"]
