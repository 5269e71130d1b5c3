"""`flannelette connectivity` passes in the wiring of the lab in other backends; test_connectivity.py has vxlan."""

import pytest

from lab.topology import NETWORK_V6
from tests.ctl.connectivity import all_pass
from tests.hosts.network_change import pending_scene


@pytest.mark.parametrize(
    ("backend", "family", "families"),
    [
        ("host-gw", "dual", 2),
        pytest.param("ipip", "ipv4", 1, marks=pytest.mark.modules("ipip")),
        pytest.param("wireguard", "dual", 2, marks=pytest.mark.modules("wireguard")),
    ],
)
async def test_all_passes_and_after_a_change_to_vxlan_in_both_families_too(
    backend: str, family: str, families: int
) -> None:
    async with pending_scene("embedded", nodes=3, family=family, backend=backend) as scene:
        await all_pass(scene, 3, families)
        if backend == "host-gw":
            both = {"EnableIPv6": True, "IPv6Network": str(NETWORK_V6)}
            async with scene.pinged() as lost:
                await scene.configure(**both, Backend={"Type": "vxlan"})
                await scene.until(lambda s: s.ready and s.backend == "vxlan" and s.peers.programmed == 2)
            assert lost == []
            await all_pass(scene, 3, families)
