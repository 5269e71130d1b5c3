"""A real flanneld and we, in turn on one node of one cluster: pods notice nothing."""

import os
from typing import Final

import pytest

from tests.flannel.turns import node
from tests.hosts.namespaces import NamespaceMaker, NetworkNamespace

TURNS: Final = 20 if os.environ.get("FLANNELETTE_SOAK") else 2


def marked(objects: list[str]) -> list[str]:
    """Those that bear our mark."""
    return [line for line in objects if " proto 77 metric " in line]


@pytest.mark.parametrize(
    ("backend", "families"), [("vxlan", "ipv4"), ("vxlan", "dual"), ("direct", "ipv4"), ("host-gw", "dual")]
)
async def test_flanneld_and_we_take_turns_and_no_packet_is_lost(
    netns: NetworkNamespace, make_netns: NamespaceMaker, backend: str, families: str
) -> None:
    async with node(netns, make_netns, backend, families) as n1:
        with n1.hosts.stream() as stream:
            async with stream:
                for turn in range(TURNS):
                    async with n1.cluster.dataplane() as running:
                        await running.until(peers=1)
                        assert len(marked(await n1.objects())) == len(n1.hosts.rows)
                        ours = await n1.cluster.lives_on(n1.key)
                        await running.hand_over()
                        assert await n1.objects() == n1.flannels
                        if turn % 2:  # whoever starts flanneld first is as well off
                            await n1.start_flanneld()
                        assert await running.end() == 0
                    if not turn % 2:
                        await n1.start_flanneld()
                    assert await n1.objects() == n1.flannels
                    assert await n1.cluster.lives_on(n1.key) != ours, "else the key would go with us"
                    await n1.flanneld.stop()
            assert (stream.sent > 50 * TURNS, stream.lost) == (True, [])


@pytest.mark.parametrize(("backend", "families"), [("vxlan", "dual"), ("direct", "ipv4"), ("host-gw", "dual")])
async def test_without_a_handover_our_routes_stay_until_they_are_cleaned_up_and_no_packet_is_lost(
    netns: NetworkNamespace, make_netns: NamespaceMaker, backend: str, families: str
) -> None:
    async with node(netns, make_netns, backend, families) as n1:
        with n1.hosts.stream() as stream:
            async with stream:
                async with n1.cluster.dataplane() as running:
                    await running.until(peers=1)
                    refused = await n1.flannelette("teardown", "--keep-foreign", "--yes")
                    assert refused.returncode == 2
                    assert (
                        "another dataplane runs in this network namespace: `flannelette handover`" in refused.stderr
                    )
                    await running.end()
                ours = marked(await n1.objects())
                await n1.start_flanneld()
                assert marked(await n1.objects()) == ours
                planned = await n1.flannelette("teardown", "--keep-foreign", "--dry-run")
                assert ("ip route replace " in planned.stdout) is (backend == "host-gw"), "it took ours for its own"
                cleaned = await n1.flannelette("teardown", "--keep-foreign", "--yes")
                assert (cleaned.returncode, cleaned.stderr) == (0, "")
                assert cleaned.stdout == planned.stdout.replace("to run", "run")
                assert await n1.objects() == n1.flannels
                again = await n1.flannelette("teardown", "--keep-foreign", "--yes")
                assert (again.returncode, again.stdout) == (0, "# dataplane: nothing to do\n")
            assert (stream.sent > 50, stream.lost) == (True, [])


async def test_what_we_have_made_ourselves_flanneld_keeps(
    netns: NetworkNamespace, make_netns: NamespaceMaker
) -> None:
    async with node(netns, make_netns, "vxlan", "ipv4") as n1:
        netns.ip("link", "del", "flannel.1")
        async with n1.cluster.dataplane() as running:
            await running.until(peers=1)
            with n1.hosts.stream() as stream:
                async with stream:
                    device, _ = n1.hosts.devices()
                    await running.hand_over()
                    await running.end()
                    await n1.start_flanneld()
                    assert n1.hosts.devices()[0] == device, "with its index and its MAC"
                    assert await n1.objects() == n1.flannels
            assert (stream.sent > 20, stream.lost) == (True, [])
