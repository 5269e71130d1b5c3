"""`flannelette sysdump`: what is in the archive, and that no secret of the host is."""

import asyncio
import base64
import json
import signal
import sys
import tarfile
from collections.abc import Callable, Iterator, Sequence
from io import BytesIO
from pathlib import Path

import pytest

from tests.contract.etcd.test_tls import SIGNED
from tests.contract.etcd.test_tls import make as make_certificate
from tests.etcd.server import EtcdMaker
from tests.hosts.dataplane import Cluster, cluster_of, environment
from tests.hosts.masq import entered
from tests.hosts.namespaces import NetworkNamespace
from tests.pages.host import commands_under
from tests.patience import PATIENCE
from tests.services.lease import ServiceProcess
from tests.services.masq import masq_on

PSK, ACCESS_KEY = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=", "LTAI4Fz9UvWq3"
IPSEC_PSK = "correct-horse-battery-staple"
_OPTIONS = {"Type": "vxlan", "PSK": IPSEC_PSK, "psk": PSK, "AccessKeySecret": ACCESS_KEY}
NETWORK = json.dumps({"Network": "10.5.0.0/16", "Backend": _OPTIONS}, separators=(",", ":"))
PASSWORD, USER = "f1ag-p4ssw0rd", "etcd-us3r"
PRIVATE_KEY = "SEFJQUtFWSBTRUVERUQgSU4gVEhFIEZJTEUgb2Ygd2c="
LOG = {
    "the-t0ken.of-kubeadm": "kubeadm join 10.0.0.1:6443 --token the-t0ken.of-kubeadm --v=1",
    "s3cret-of-a-url": "GET https://admin:s3cret-of-a-url@10.0.0.9:2379/v3: refused",
    "YWxsIGtleXMgYXJlIHNl": "-----BEGIN EC PRIVATE KEY-----\nYWxsIGtleXMgYXJlIHNl\n-----END EC PRIVATE KEY-----",
    "eyJzdWIiOiJmbGFubmVsIn0": "401: eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJmbGFubmVsIn0.c2lnbmF0dXJl",
    "bearer-of-a-secret": "Authorization: Bearer bearer-of-a-secret",
    "with-a-quote": 'psk = "a\\"with-a-quote", port = 5',
    "has-no-end": "client_secret: 'has-no-end",
    "in-three-documents": json.dumps(json.dumps(json.dumps({"accessKeySecret": "in-three-documents"}))),
    "in-json-in-json": json.dumps(json.dumps({"Backend": {"PSK": "in-json-in-json"}})),
}
"""Secrets, and lines that have them."""


@pytest.fixture
def secured(make_etcd: EtcdMaker, tmp_path: Path) -> list[str]:
    """An etcd with TLS and a login; the flags with which a lease service uses it."""
    authority = tmp_path / "ca.pem"
    for name, *more in (("ca",), ("server", *SIGNED, "-addext", "subjectAltName=IP:127.0.0.1"), ("client", *SIGNED)):
        make_certificate(tmp_path, name, *more)
    server = make_etcd(f"--cert-file={tmp_path}/server.pem", f"--key-file={tmp_path}/server.key", scheme="https")
    for command in (
        f"put /coreos.com/network/config {NETWORK}",
        "user add root:root",
        "user grant-role root root",
        f"user add {USER}:{PASSWORD}",
        f"user grant-role {USER} root",
        "auth enable",
    ):
        server.etcdctl(f"--cacert={authority}", *command.split(" "))
    return [
        f"--etcd-endpoints={server.endpoint}",
        f"--etcd-cafile={authority}",
        f"--etcd-certfile={tmp_path}/client.pem",
        f"--etcd-keyfile={tmp_path}/client.key",
        f"--etcd-password={PASSWORD}",
        "--node=n1",
    ]


@pytest.fixture
def secretive(netns: NetworkNamespace, secured: list[str]) -> Iterator[Cluster]:
    """A node whose services are given everything that is secret."""

    class Secretive(Cluster):
        def start_leases(self) -> ServiceProcess:
            (self.directory / "wgkey").write_text(f"{PRIVATE_KEY}\n")
            health = f"--healthz-ip=unix:{self.directory}/health.sock"
            variables = {"FLANNELD_ETCD_USERNAME": USER}
            return ServiceProcess(self.directory, *secured, health, environment=variables)

    with cluster_of(Secretive, netns) as made:
        yield made


@pytest.fixture
def cluster(netns: NetworkNamespace) -> Iterator[Cluster]:
    with cluster_of(Cluster, netns) as made:
        yield made


class Dump:
    """An archive, unpacked."""

    def __init__(self, data: bytes) -> None:
        with tarfile.open(fileobj=BytesIO(data), mode="r:gz") as tar:
            self.top = {member.name.split("/")[0] for member in tar}
            self.modes = {member.mode for member in tar}
            self.members = {member.name.partition("/")[2]: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]

    def text(self, name: str) -> str:
        return self.members[name].decode()

    def places_of(self, secret: bytes) -> list[str]:
        """The members that have the secret, as it is, in hex or in base64."""
        forms = (secret, secret.hex().encode(), base64.b64encode(secret).rstrip(b"="))
        return [name for name, data in self.members.items() for form in forms if form in data]


async def sysdump(
    directory: Path, *words: str, around: Callable[..., Sequence[str]] | None = None
) -> tuple[int, bytes, str]:
    command = [sys.executable, "-m", "flannelette.services.ctl.main", f"--socket-dir={directory}", "sysdump", *words]
    process = await asyncio.create_subprocess_exec(
        *(around(*command) if around else command),
        env=environment(),
        cwd=directory,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(PATIENCE):
        out, errors = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out, errors.decode()


async def test_the_archive_has_everything_of_the_node_and_no_secret(secretive: Cluster, tmp_path: Path) -> None:
    cluster, tls_key = secretive, (tmp_path / "client.key").read_text().splitlines()[1]
    async with cluster.dataplane() as running:
        await running.until()
        with running.log_file.open("a") as log:
            log.writelines(f"{line}\n" for line in LOG.values())
        with entered(cluster.namespace, cluster.directory) as host:
            async with masq_on(host, "--ip-masq") as masq:
                await masq.until()
                (line,) = commands_under("docs/operations.md", "Reporting a bug")[0].splitlines()
                assert line == "flannelette sysdump"
                code, out, errors = await sysdump(cluster.directory)
        assert (code, errors) == (0, "")
        (path,) = cluster.directory.glob("flannelette-sysdump-n1-*Z.tar.gz")
        assert path.stat().st_mode & 0o777 == 0o600
        dump = Dump(path.read_bytes())
        assert (dump.top, dump.modes) == ({path.name.removesuffix(".tar.gz")}, {0o600})

        assert json.loads(dump.text("n1/status.json"))["dataplane"]["response"]["status"]["ready"]
        assert "The kernel forwards no IPv4 packets" in str(json.loads(dump.text("n1/doctor.json")))
        leases = json.loads(dump.text("n1/leases.json"))
        assert leases["leases"]
        assert json.loads(leases["network"]["json"])["Network"] == "10.5.0.0/16"
        assert "SERVICE_STARTED" in dump.text("n1/events-dataplane.json")
        assert json.loads(dump.text("n1/settings-dataplane.json"))["probe-rate"] == "0"
        settings = json.loads(dump.text("n1/settings-lease.json"))
        assert (settings["etcd-password"], settings["etcd-username"]) == ("(left out)", "(left out)")
        assert "flannelette_lease_" in dump.text("n1/metrics-lease.txt")
        written = (cluster.directory / "subnet.env").read_text()
        assert dump.text("n1/system/subnet.env.txt") == written, "that of --subnet-file"
        assert "vxlan id 1" in dump.text("n1/kernel/links.txt")
        assert "net/ipv4/conf/eth0/rp_filter = " in dump.text("n1/kernel/sysctls.txt")
        assert "FLANNEL-POSTRTG" in "".join(dump.text(name) for name in dump.members if "n1/firewall/" in name)
        assert "10.0.0.1:6443 --token (left out) --v=1" in dump.text("n1/logs/dataplane.txt")
        assert dump.text("n1/logs/masq.txt")

        for secret in (PSK, IPSEC_PSK, ACCESS_KEY, PASSWORD, USER, tls_key, PRIVATE_KEY, *LOG):
            assert dump.places_of(secret.encode()) == [], secret
        assert dump.places_of(base64.b64decode(PSK)) == []
        lacking = [name for name, data in dump.members.items() if data.startswith(b"not collected: ")]
        assert all(name.removeprefix("n1/") in dump.text("README") for name in lacking)
        assert all(len(line) <= 80 for line in dump.text("README").splitlines())
        said = out.decode()
        assert f"{path.name}: " in said
        assert f"tar xzf {path.name}" in said


async def test_a_service_that_does_not_answer_leaves_a_dump_without_its_part(cluster: Cluster) -> None:
    async with cluster.dataplane() as running:
        await running.until()
        running.process.send_signal(signal.SIGSTOP)
        try:
            code, out, errors = await sysdump(
                cluster.directory, "-w", "-", "--timeout=10", around=cluster.namespace.command
            )
        finally:
            running.process.send_signal(signal.SIGCONT)
    dump = Dump(out)
    (node,) = {name.split("/")[0] for name in dump.members if "/" in name}
    assert code == 0
    said = json.loads(dump.text(f"{node}/status.json"))["dataplane"]
    assert (said["state"], "flannelette-dataplane at " in said["remarks"][0]) == ("AWAY", True), said
    assert dump.text(f"{node}/peers.json").startswith("not collected: ")
    assert json.loads(dump.text(f"{node}/leases.json"))["leases"]
    assert "vxlan id 1" in dump.text(f"{node}/kernel/links.txt")
    assert dump.text(f"{node}/events-masq.json").startswith("not collected: there is no socket")
    assert "peers.json" in errors
    assert "standard output: " in errors


async def test_all_nodes_of_a_context_are_in_it_with_their_hosts(cluster: Cluster) -> None:
    """From outside of the network namespace of n1, as in the lab; no service of n2 runs."""
    contexts = cluster.directory / "contexts.toml"
    contexts.write_text(
        f'current = "lab"\n[lab.nodes.n1]\nsocket_dir = "{cluster.directory}"\n'
        f'[lab.nodes.n2]\nsocket_dir = "{cluster.directory}/n2"\n'
    )
    async with cluster.dataplane() as running:
        await running.until()
        command = [
            sys.executable,
            "-m",
            "flannelette.services.ctl.main",
            "sysdump",
            "-w",
            str(cluster.directory / "all.tar.gz"),
        ]
        process = await asyncio.create_subprocess_exec(
            *command, env=environment() | {"FLANNELETTE_CONTEXTS": str(contexts)}, stdout=asyncio.subprocess.PIPE
        )
        async with asyncio.timeout(PATIENCE):
            out, _ = await process.communicate()
    dump = Dump((cluster.directory / "all.tar.gz").read_bytes())
    assert process.returncode == 0
    assert "vxlan id 1" in dump.text("n1/kernel/links.txt")
    assert json.loads(dump.text("n1/settings-dataplane.json"))["node"] == "n1"
    assert dump.text("n2/host.txt").startswith("not collected: ")
    assert "host.txt of n2: " in out.decode()
    code, _, errors = await sysdump(cluster.directory, "-w", "all.tar.gz")
    assert (code, "cannot write all.tar.gz: File exists" in errors) == (2, True)


@pytest.mark.modules("wireguard", "esp4")
async def test_no_key_of_the_kernel_is_in_it(netns: NetworkNamespace, tmp_path: Path) -> None:
    private, public = base64.b64encode(bytes(range(1, 33))).decode(), base64.b64encode(bytes(range(9, 41))).decode()
    (tmp_path / "private").write_text(private)
    (tmp_path / "psk").write_text(PSK)
    netns.ip("link", "add", "flannel-wg", "type", "wireguard")
    netns.run(
        *f"wg set flannel-wg private-key {tmp_path}/private peer {public} preshared-key {tmp_path}/psk".split(),
        *"endpoint 10.99.0.12:51820 allowed-ips 10.5.53.0/24".split(),
    )
    encrypting, authenticating = "0x" + bytes(range(64, 80)).hex(), "0x" + bytes(range(80, 100)).hex()
    state = f"xfrm state add src 10.99.0.11 dst 10.99.0.12 proto esp spi 0x77 mode tunnel enc cbc(aes) {encrypting}"
    netns.ip(*state.split(), "auth-trunc", "hmac(sha1)", authenticating, "96")
    _, out, _ = await sysdump(tmp_path, "--host-only", "-w", "-", around=netns.command)
    dump = Dump(out)
    (node,) = {name.split("/")[0] for name in dump.members if "/" in name}
    assert "10.99.0.12:51820" in dump.text(f"{node}/kernel/wireguard-endpoints.txt")
    assert "spi 0x00000077" in dump.text(f"{node}/kernel/xfrm-states.txt")
    for secret in (private, PSK, encrypting[2:], authenticating[2:]):
        assert dump.places_of(secret.encode()) == [], secret
    for key in (range(1, 33), range(32), range(64, 80), range(80, 100)):
        assert dump.places_of(bytes(key)) == [], key
