"""The image with all programs in flannel's place: same path, same arguments, two hosts that reach each other."""

import json
import subprocess
from collections.abc import Iterator

import pytest

from flannelette.services.runtime.process.version import VERSION
from tests.compose.composition import docker
from tests.waiting import equals, eventually

pytestmark = [pytest.mark.compose, pytest.mark.usefixtures("directory")]

IMAGE = "flannelette-all"
NETWORK = "flannelette-test-all"
ETCD = "http://10.98.7.2:2379"
CONFIG = {"Network": "10.7.0.0/16", "Backend": {"Type": "vxlan"}}
FLAGS = (f"--etcd-endpoints={ETCD}", "--ip-masq", "--iface=eth0")
AS_IN_THE_MANIFEST = ("--entrypoint=/opt/bin/flanneld", IMAGE, *FLAGS)
AS_FLANNELS_IMAGE = (IMAGE, *FLAGS)
NAMES = [f"{NETWORK}-{name}" for name in ("etcd", "h1", "h2", "flanneld1", "flanneld2")]


def tried(*command: str) -> str:
    """What it complains about; nothing when it succeeds."""
    ran = subprocess.run(["docker", *command], capture_output=True, text=True, check=False)
    return "" if ran.returncode == 0 else f"exit code {ran.returncode}: {ran.stdout}{ran.stderr}"


def remove() -> None:
    subprocess.run(["docker", "rm", "--force", "--volumes", *NAMES], capture_output=True, check=False)
    subprocess.run(["docker", "network", "rm", NETWORK], capture_output=True, check=False)


@pytest.fixture
def hosts() -> Iterator[list[str]]:
    """Two, with an etcd that has flannel's configuration, and addresses of the underlay."""
    remove()
    try:
        etcd, *names = NAMES[:3]
        docker("network", "create", "--subnet=10.98.7.0/24", NETWORK)
        listen = ("--listen-client-urls=http://0.0.0.0:2379", f"--advertise-client-urls={ETCD}")
        docker(
            "run", "--detach", f"--name={etcd}", f"--network={NETWORK}", "--ip=10.98.7.2", "flannelette-etcd", *listen
        )
        for number, name in enumerate(names, 11):
            place = (f"--network={NETWORK}", f"--ip=10.98.7.{number}", "--sysctl=net.ipv4.ip_forward=1")
            docker("run", "--detach", f"--name={name}", *place, "--user=0", "--cap-add=NET_ADMIN", "flannelette-lab")
        yield names
    finally:
        remove()


async def test_two_hosts_with_flannels_arguments_reach_each_other(hosts: list[str]) -> None:
    etcd, flannelds = NAMES[0], NAMES[3:]
    put = ("exec", etcd, "etcdctl", "put", "/coreos.com/network/config", json.dumps(CONFIG))
    await eventually(lambda: tried(*put), equals(""))
    rights = ("--cap-add=NET_ADMIN", "--cap-add=NET_RAW")  # those of kube-flannel's manifest
    for host, flanneld, what in zip(hosts, flannelds, (AS_IN_THE_MANIFEST, AS_FLANNELS_IMAGE), strict=True):
        docker("run", "--detach", f"--name={flanneld}", f"--network=container:{host}", *rights, *what)
    gateways = []
    for host, flanneld in zip(hosts, flannelds, strict=True):
        await eventually(lambda: tried("exec", flanneld, "flannelette", "wait", "--ready", "--timeout=1"), equals(""))  # noqa: B023
        written = docker("exec", flanneld, "cat", "/run/flannel/subnet.env").splitlines()
        values = dict(line.split("=", 1) for line in written)
        assert (values["FLANNEL_NETWORK"], values["FLANNEL_IPMASQ"]) == (CONFIG["Network"], "true")
        gateways.append(values["FLANNEL_SUBNET"].partition("/")[0])
        # A pod's bridge, as far as the overlay sees it.
        docker("exec", host, "ip", "link", "add", "cni0", "type", "bridge")
        docker("exec", host, "ip", "address", "add", values["FLANNEL_SUBNET"], "dev", "cni0")
        docker("exec", host, "ip", "link", "set", "cni0", "up")
    first, second = gateways
    for host, source, target in ((hosts[0], first, second), (hosts[1], second, first)):
        ping = ("exec", host, "ping", "-c1", "-W1", "-I", source, target)
        await eventually(lambda: tried(*ping), equals(""))  # noqa: B023
    for flanneld in flannelds:
        assert docker("inspect", "--format={{.State.Running}}", flanneld).strip() == "true"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--version",), f"flanneld (flannelette {VERSION})"),
        (("flanneld", "--version"), f"flanneld (flannelette {VERSION})"),
        (("flannelette", "flanneld", "--version"), f"flanneld (flannelette {VERSION})"),
        (("flannelette-lease", "--version"), f"flannelette-lease {VERSION}"),
        (("version",), f"flannelette {VERSION}"),
        (("cp", "--version"), "cp (GNU coreutils)"),  # kube-flannel's manifest copies its CNI configuration with it
    ],
)
def test_it_runs_any_program(arguments: tuple[str, ...], expected: str) -> None:
    assert docker("run", "--rm", "--network=none", IMAGE, *arguments).startswith(expected)
