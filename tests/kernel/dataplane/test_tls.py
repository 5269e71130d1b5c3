"""A dataplane far from its lease service: over TCP with TLS, beyond loopback."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from flannelette.services.core.access import Principal, Role
from flannelette.services.runtime.tls import TlsFiles
from tests.hosts.dataplane import Cluster, Running, cluster_of, environment
from tests.hosts.namespaces import NetworkNamespace
from tests.patience import PATIENCE
from tests.services.certificates import Certificates, flags
from tests.services.lease import ServiceProcess
from tests.waiting import contains, eventually

LEASES, DATAPLANE = "10.99.0.11:7070", "10.99.0.11:7071"


def certificate_of_n1(signer: Certificates) -> TlsFiles:
    uris = (Principal(Role.DATAPLANE, "n1").uri,)
    return signer.make("n1", "n1", uris=uris, addresses=("10.99.0.11",))


class FarCluster(Cluster):
    """Its lease service serves TCP with TLS."""

    def start_leases(self) -> ServiceProcess:
        self.certificates = Certificates(self.directory / "tls")
        return ServiceProcess(
            self.directory,
            f"--net-config-path={self.network_file}",
            f"--store-file={self.directory}/leases.db",
            f"--listen=unix:{self.directory}/lease.sock,{LEASES}",
            *flags(self.certificates.server(addresses=("10.99.0.11",))),
            namespace=self.namespace,
        )

    def ctl(self, who: str, *words: str) -> "subprocess.CompletedProcess[str]":
        """The command line on this host, with the certificate of somebody."""
        options = [f"--dataplane={DATAPLANE}", *flags(self.certificates.client(who))]
        return subprocess.run(
            self.namespace.command(sys.executable, "-m", "flannelette.services.ctl.main", *options, *words),
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )


@pytest.fixture
def cluster(netns: NetworkNamespace) -> Iterator[FarCluster]:
    with cluster_of(FarCluster, netns) as made:
        yield made


async def reason(running: Running, text: str) -> None:
    """Until the dataplane gives a reason with this text for not being ready."""
    await eventually(running.reasons, contains(text))


async def test_a_refused_certificate_is_the_reason_until_a_good_one_is_in_its_place(cluster: FarCluster) -> None:
    stranger = certificate_of_n1(Certificates(cluster.directory / "others"))
    files = certificate_of_n1(cluster.certificates)
    good = files.certificate.read_bytes(), files.key.read_bytes()
    files.certificate.write_bytes(stranger.certificate.read_bytes())
    files.key.write_bytes(stranger.key.read_bytes())
    async with cluster.dataplane(f"--lease-address={LEASES}", *flags(files)) as running:
        await reason(running, f"no connection to {LEASES}: the server refuses the certificate {files.certificate}")
        files.certificate.write_bytes(good[0])
        files.key.write_bytes(good[1])
        await running.until(peers=0)
        await cluster.join("n2", "10.99.0.12", "06:0c:56:6d:fb:b3")
        await running.until(peers=1)


async def test_a_certificate_of_another_node_gets_no_lease_and_says_why(cluster: FarCluster) -> None:
    files = cluster.certificates.client("h2")
    async with cluster.dataplane(f"--lease-address={LEASES}", *flags(files)) as running:
        await reason(
            running, "a certificate with the URI flannelette://node/n1/dataplane; this is flannelette://node/h2"
        )
        assert not (await running.status()).lease.name


async def test_others_may_look_at_a_dataplane_and_an_administrator_may_change_it(cluster: FarCluster) -> None:
    listen = f"--listen=unix:{cluster.directory}/dataplane.sock,{DATAPLANE}"
    own = certificate_of_n1(cluster.certificates)
    await cluster.join("n2", "10.99.0.12", "06:0c:56:6d:fb:b3")
    async with cluster.dataplane(f"--lease-address={LEASES}", listen, *flags(own)) as running:
        await running.until(peers=1)
        looked = cluster.ctl("h2", "peers")
        assert (looked.returncode, "n2" in looked.stdout) == (0, True)
        refused = cluster.ctl("h2", "resync", "dataplane")
        assert refused.returncode == 1
        assert "the call needs a certificate with a URI flannelette://admin/NAME" in refused.stderr
        assert cluster.ctl("admin", "teardown", "dataplane", "--yes").returncode == 0
        assert cluster.routes() == []
        assert cluster.ctl("admin", "resync", "dataplane").returncode == 0
        await running.until(peers=1)
