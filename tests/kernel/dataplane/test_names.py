"""Abstract names of the services in the hands of somebody without rights: nothing is kept from starting."""

import signal

from tests.faults.squatter import squatter
from tests.hosts.dataplane import Cluster

MAC = "06:0c:56:6d:fb:b3"


async def test_a_user_who_holds_all_names_keeps_the_dataplane_from_nothing_and_is_named(cluster: Cluster) -> None:
    with squatter(cluster.namespace) as process:
        async with cluster.dataplane() as running:
            await cluster.join("n2", "10.99.0.12", MAC, "10.5.53.0/24")
            status = await running.until(peers=1)
            found = [each for each in status.findings if each.check == "name-taken"]
            assert found, status
            assert found[0].problem.endswith("a name of this service.")
            assert "@flannelette" in found[0].problem
            assert "user 0" in found[0].evidence
            assert f"process {process.pid} (python" in found[0].evidence
            assert not any(each.broken for each in found)


async def test_a_user_in_a_loop_keeps_no_restart_of_the_dataplane_from_its_network(cluster: Cluster) -> None:
    with squatter(cluster.namespace, held=0):
        for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGTERM, signal.SIGKILL, signal.SIGTERM):
            async with cluster.dataplane() as running:
                await running.until()
                await running.end(number)


async def test_beside_such_a_user_a_second_dataplane_is_still_refused(cluster: Cluster) -> None:
    with squatter(cluster.namespace):
        async with cluster.dataplane() as running:
            await running.until()
            code, said = cluster.try_to_run(f"--listen=unix:{cluster.directory}/other.sock")
            assert (code, "another dataplane runs in this network namespace" in said) == (1, True)
            assert (await running.status()).ready
