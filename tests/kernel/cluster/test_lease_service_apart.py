"""A lease service that was taken over: what its user can do to the other services of a node.

The services are started with the users, groups and capabilities of their units, in directories that sysusers.d and
tmpfiles.d of the package make.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts.namespaces import NetworkNamespace
from tests.pages.host import PageHost, page_host
from tests.pages.units import Systemctl

HOSTILE = """
import os, socket, sys
own = f"/run/{sys.argv[1]}"
def connect(path):
    socket.socket(socket.AF_UNIX).connect(path)
for name in ("dataplane", "masq"):
    path = f"/run/flannelette/{name}.sock"
    os.symlink(path, f"{own}/way-in")
    for attempt in (
        lambda: connect(path),
        lambda: connect(f"{own}/way-in"),
        lambda: os.unlink(path),
        lambda: os.rename(path, f"{own}/taken"),
        lambda: os.rename(f"{own}/way-in", path),
        lambda: os.link(path, f"{own}/linked"),
        lambda: open(f"{path}.lock"),
        lambda: os.listdir("/run/flannelette"),
        lambda: os.mkdir("/run/flannelette/more"),
        lambda: os.rename("/run/flannelette", "/run/gone"),
        lambda: os.chmod("/run/flannelette", 0o777),
    ):
        try:
            attempt()
        except PermissionError:
            continue
        raise SystemExit(f"{path}: not refused")
    os.unlink(f"{own}/way-in")
connect("/run/flannelette-lease/lease.sock")
"""
"""With the user, groups and rights of a unit, tries to reach, remove and replace the sockets of the others."""


@pytest.fixture
def host(netns: NetworkNamespace, tmp_path: Path) -> Iterator[PageHost]:
    if "4294967295" not in Path("/proc/self/uid_map").read_text():
        pytest.skip("an ordinary user's namespace has no other users: run the tests as root")
    with page_host(netns, tmp_path, opened=True) as it:
        yield it


def test_a_user_of_the_lease_service_reaches_neither_the_dataplane_nor_masq(host: PageHost) -> None:
    """Nor does that of the cloud's process; the services and an operator reach what they need."""
    host.type(
        "mkdir -p /etc/systemd/system /etc/sysusers.d /etc/tmpfiles.d /etc/flannelette\n"
        "cp deploy/systemd/*.service deploy/systemd/*.target /etc/systemd/system\n"
        "cp deploy/systemd/sysusers.d/* /etc/sysusers.d; cp deploy/systemd/tmpfiles.d/* /etc/tmpfiles.d\n"
        "systemd-sysusers flannelette.conf; systemd-tmpfiles --create flannelette.conf\n"
        "printf 'FLANNELD_IFACE=eth0\\nFLANNELD_STORE=etcd\\n' >/etc/flannelette/flannelette.env"
    )
    host.etcd.etcdctl("put", "/coreos.com/network/config", '{"Network": "10.5.0.0/16", "Backend": {"Type": "vxlan"}}')
    systemctl = Systemctl(host)
    for service in ("lease", "dataplane", "masq"):
        systemctl.start(f"flannelette-{service}.service", sys.executable, "-m", f"services.{service}.main")
    flannelette = f"{sys.executable} -m services.ctl.main"
    host.until_typed(f"{flannelette} wait --ready")
    for user, more in (("lease", "--clear-groups"), ("cloud", "--groups=flannelette-lease")):
        rights = f"--reuid=flannelette-{user} --regid=flannelette-{user} {more} --bounding-set=-all --no-new-privs"
        host.type(f"setpriv {rights} {sys.executable} - flannelette-{user} <<'END'\n{HOSTILE}\nEND")
    operator = "HOME=/ setpriv --reuid=65001 --regid=65001 --groups=flannelette,flannelette-lease --bounding-set=-all"
    assert "is healthy" in host.type(f"{operator} {flannelette} status")
