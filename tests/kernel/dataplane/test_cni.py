"""The CNI configuration and a dataplane process: pods are not let in before their packets get out."""

from tests.hosts.dataplane import cluster_in
from tests.hosts.namespaces import NetworkNamespace
from tests.waiting import eventually_exists

TEXT = '{"name": "cbr0", "cniVersion": "0.3.1", "plugins": [{"type": "flannel"}]}'


async def test_the_configuration_comes_with_the_first_complete_snapshot_and_outlives_the_service(
    netns: NetworkNamespace,
) -> None:
    with cluster_in(netns) as cluster:
        source, target = cluster.directory / "cni-conf.json", cluster.directory / "net.d" / "10-flannel.conflist"
        flags = (f"--cni-config-path={source}", f"--cni-install-path={target}")
        code, said = cluster.try_to_run(*flags)
        assert (code, said.splitlines()[-1][:60]) == (
            1,
            f"flannelette-dataplane: there is no CNI configuration {source}"[:60],
        )

        source.write_text(TEXT)
        cluster.leases.kill()
        async with cluster.dataplane(*flags) as running:
            await running.until(ready=False)
            assert not target.parent.exists()
            cluster.leases = cluster.start_leases()
            await running.until()
            await eventually_exists(target)
            assert target.read_text() == TEXT
            assert "inet 10.5.27.0/32" in cluster.ip("addr show flannel.1")

            target.unlink()
            await running.resync()
            await eventually_exists(target)
        assert target.exists()
