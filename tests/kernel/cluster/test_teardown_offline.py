"""`flannelette teardown --offline`: what services have left when they were killed goes, and nothing else."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.etcd.server import EtcdServer
from tests.hosts.masq import Host
from tests.kernel.cluster.test_flanneld import etcd as etcd
from tests.kernel.cluster.test_flanneld import host as host
from tests.services.flanneld_command import Flanneld, foreign_directory

PREFIX = "/coreos.com/network"
BACKENDS = {
    "vxlan": {"VNI": 1, "VtepMAC": "ea:1c:bd:03:3e:0c"},
    "host-gw": None,
}
"""What the peer publishes with each."""


def everything(host: Host) -> list[str]:
    """Devices, routes, neighbours and rules of the host, of which addresses may get older."""
    looks = (
        "ip -br link",
        "ip route show table all",
        "ip -6 route show table all",
        "ip neigh show nud permanent",
        "ip rule",
        "nft list ruleset",
    )
    found = [host.run(*look.split()) for look in looks]
    return [" ".join(line.split()) for text in found for line in sorted(text.splitlines())] + host.save()


def teardown(host: Host, subnet_file: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    command = (sys.executable, "-P", "-m", "flannelette.services.ctl.main", "teardown", "--offline", *words)
    return subprocess.run(
        host.netns.command(*command),
        env=host.environment | {"FLANNELD_SUBNET_FILE": str(subnet_file)},
        cwd=foreign_directory(subnet_file.parent),
        capture_output=True,
        text=True,
        check=False,
    )


@contextmanager
def node(host: Host, etcd: EtcdServer, tmp_path: Path, backend: str) -> Iterator[Flanneld]:
    """The services of n1, which has programmed its peer n2."""
    etcd.etcdctl("put", f"{PREFIX}/config", json.dumps({"Network": "10.5.0.0/16", "Backend": {"Type": backend}}))
    data = BACKENDS[backend]
    peer = {"PublicIP": "10.99.0.12", "BackendType": backend, **({"BackendData": data} if data else {})}
    etcd.etcdctl("put", f"{PREFIX}/subnets/10.5.53.0-24", json.dumps(peer))
    flanneld = Flanneld(host, tmp_path, "-ip-masq")
    try:
        flanneld.until_ready()
        flanneld.until(lambda: "10.5.53.0/24" in host.run("ip", "route", "show", "proto", "77"))
        flanneld.until(lambda: bool(host.rules("FLANNEL-POSTRTG")))
        yield flanneld
    finally:
        flanneld.process.kill()
        flanneld.process.wait()


@pytest.mark.parametrize("backend", BACKENDS)
def test_all_that_killed_services_have_left_goes_and_what_others_made_stays(
    host: Host, etcd: EtcdServer, tmp_path: Path, backend: str
) -> None:
    host.run(*"ip route add 10.5.77.0/24 via 10.99.0.13".split())
    host.run(*"ip link add other type vxlan id 77 dstport 4789 dev eth0".split())
    host.iptables("-t nat -A POSTROUTING -s 192.0.2.0/24 -j MASQUERADE")
    before = everything(host)
    with node(host, etcd, tmp_path, backend) as flanneld:
        refused = teardown(host, flanneld.subnet_file, "--yes")
        assert (refused.returncode, refused.stdout) == (2, "")
        assert "another dataplane runs in this network namespace: stop it first" in refused.stderr
        assert "another masq runs in this network namespace: stop it first" in refused.stderr
        flanneld.process.kill()  # and its children with it
        flanneld.until_gone()
    left = everything(host)
    assert left != before
    asked = teardown(host, flanneld.subnet_file)
    assert (asked.returncode, "there is no terminal to ask on" in asked.stderr) == (2, True)
    blind = teardown(host, tmp_path / "none", "--dry-run")
    assert (blind.returncode, "proto 77" in blind.stdout) == (1, backend == "host-gw"), (
        "a device takes its routes along"
    )
    assert "names no network: write FLANNEL_NETWORK=10.5.0.0/16" in blind.stderr
    planned = teardown(host, flanneld.subnet_file, "--dry-run")
    assert (planned.returncode, planned.stderr) == (0, "")
    assert everything(host) == left
    done = teardown(host, flanneld.subnet_file, "--yes")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == planned.stdout.replace(" to run", " run")
    assert everything(host) == before
    again = teardown(host, flanneld.subnet_file, "--yes")
    assert (again.returncode, again.stdout) == (0, "# dataplane: nothing to do\n# masq: nothing to do\n")
