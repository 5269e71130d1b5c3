"""What a dataplane of the last release leaves behind is taken as it is: tests/golden/dataplane/released.

FLANNELETTE_RELEASE=1 captures it anew, when a release is made.
"""

import os
import shutil
from typing import Final

from services.runtime.cache.node_state import decode
from tests import paths
from tests.hosts.namespaces import NamespaceMaker, NetworkNamespace
from tests.hosts.reboots import restarted, state_file
from tests.hosts.two_hosts import TwoHosts, two_hosts

RELEASED: Final = paths.GOLDEN / "dataplane/released"


async def capture(hosts: TwoHosts) -> None:
    """What makes its kernel objects, and its files."""
    hosts.leave_flanneld_state()
    await hosts.join()
    async with restarted(hosts.cluster) as running:
        await running.until(peers=1)
        await running.teardown()
        commands = (await running.resync(dry_run=True)).commands
        await running.end()
    (RELEASED / "commands.txt").write_text("".join(f"{command}\n" for command in commands))
    shutil.copyfile(state_file(hosts.cluster), RELEASED / "dataplane.state")
    shutil.copy(hosts.cluster.directory / "subnet.env", RELEASED)


async def test_an_upgrade_from_the_last_release_changes_nothing_and_loses_no_packet(
    netns: NetworkNamespace, make_netns: NamespaceMaker
) -> None:
    if "FLANNELETTE_RELEASE" in os.environ:
        with two_hosts(make_netns(), make_netns, "vxlan", "ipv4") as hosts:
            await capture(hosts)
    with two_hosts(netns, make_netns, "vxlan", "ipv4") as hosts:
        hosts.make_peer()
        await hosts.join()
        for command in (RELEASED / "commands.txt").read_text().splitlines():
            hosts.cluster.run(command)
        state_file(hosts.cluster).parent.mkdir()
        shutil.copy(RELEASED / "dataplane.state", state_file(hosts.cluster))
        shutil.copy(RELEASED / "subnet.env", hosts.cluster.directory)
        await hosts.cluster.quiet()
        before = hosts.objects() + hosts.devices()
        with hosts.stream() as stream:
            async with stream, restarted(hosts.cluster) as running:
                status = await running.until(peers=1)
        assert (stream.sent > 0, stream.lost) == (True, [])
        assert hosts.objects() + hosts.devices() == before
        assert (status.last_resync_changes, status.repairs, list(status.unclaimed)) == (0, 0, [])
        assert "is not used" not in running.log


def test_what_the_last_release_remembers_is_understood() -> None:
    table = decode("dataplane", (RELEASED / "dataplane.state").read_bytes(), "n1").table()
    assert {lease.node: [str(cidr) for cidr in lease.cidrs] for lease in table.leases.values()} == {
        "n1": ["10.5.27.0/24"],
        "n2": ["10.5.53.0/24"],
    }
