"""A lease service that was taken over: what its user can do to the other services of a node.

The services are started with the users, groups and capabilities of their units, in directories that sysusers.d and
tmpfiles.d of the package make.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ctl.sysdump import unpacked
from tests.hosts.namespaces import NetworkNamespace
from tests.pages.host import PageHost, page_host
from tests.pages.units import Systemctl
from tests.paths import ROOT
from tests.upgrade.releases import LAST, files_of

SERVICES = ("lease", "dataplane", "masq")
FLANNELETTE = f"{sys.executable} -m flannelette.services.ctl.main"
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

STRANGER = """
import os, socket
for path in ("/run/flannelette/dataplane.sock", "/run/flannelette/masq.sock", "/run/flannelette-lease/lease.sock"):
    try:
        socket.socket(socket.AF_UNIX).connect(path)
    except PermissionError:
        continue
    raise SystemExit(f"{path}: not refused")
"""
"""With no group, tries to reach the services."""
TAKEN_OVER = """
import os, socket, sys, time
path = "/run/flannelette/dataplane.sock"
if os.path.exists(path):
    os.unlink(path)
listening = socket.socket(socket.AF_UNIX)
listening.bind(path)
listening.listen()
if sys.argv[1:]:
    os.symlink(sys.argv[1], "/run/flannel/subnet.env")
print("listens", flush=True)
time.sleep(600)
"""
"""In the dataplane's place, with its rights: has another file in the place of its subnet file."""


@pytest.fixture
def host(netns: NetworkNamespace, tmp_path: Path) -> Iterator[PageHost]:
    if "4294967295" not in Path("/proc/self/uid_map").read_text():
        pytest.skip("an ordinary user's namespace has no other users: run the tests as root")
    with page_host(netns, tmp_path, opened=True) as it:
        yield it


def install(host: PageHost, deployment: Path) -> None:
    """As docs/hosts.md and docs/upgrading.md say, from the files of a release."""
    host.type(
        "mkdir -p /etc/systemd/system /etc/sysusers.d /etc/tmpfiles.d /etc/flannelette\n"
        f"cd {deployment}\n"
        "cp *.service *.target /etc/systemd/system\n"
        "cp sysusers.d/* /etc/sysusers.d; cp tmpfiles.d/* /etc/tmpfiles.d\n"
        "systemd-sysusers flannelette.conf; systemd-tmpfiles --create flannelette.conf\n"
        "echo FLANNELD_IFACE=eth0 >/etc/flannelette/flannelette.env\n"
        "echo FLANNELD_STORE=etcd >/etc/flannelette/lease.env\n"
        "echo FLANNELD_ETCD_ENDPOINTS=http://127.0.0.1:2379 >>/etc/flannelette/lease.env"
    )
    host.etcd.etcdctl("put", "/coreos.com/network/config", '{"Network": "10.5.0.0/16", "Backend": {"Type": "vxlan"}}')


def of_kernel(host: PageHost) -> list[str]:
    commands = "ip -4 route show", "ip -4 neigh show nud permanent", "bridge fdb show dev flannel.1"
    return [*(host.type(each) for each in commands), host.type("cat /run/flannel/subnet.env")]


@pytest.mark.parametrize("order", [SERVICES, SERVICES[::-1]], ids=["the lease service first", "last"])
def test_a_host_of_the_release_before_gets_the_directory_and_loses_nothing(
    host: PageHost, tmp_path: Path, order: tuple[str, ...]
) -> None:
    former = files_of(LAST, tmp_path, "services", "proto", "deploy/systemd")
    tmp_path.chmod(0o755)
    install(host, former / "deploy/systemd")
    systemctl = Systemctl(host)
    path = f"PYTHONPATH={former}:{former}/proto"
    for service in SERVICES:
        started = ("env", "PYTHONSAFEPATH=1", path, sys.executable, "-m", f"services.{service}.main")
        systemctl.start(f"flannelette-{service}.service", *started)
    host.until_typed(f"{FLANNELETTE} wait --ready")
    assert "lease.sock" in host.type("ls /run/flannelette")
    before = of_kernel(host)
    install(host, ROOT / "deploy/systemd")
    assert "lease.table" in host.type("ls /run/flannelette-lease"), "what the former service remembered"
    for service in order:
        assert "10.99.0.11" in host.type(f"{FLANNELETTE} leases"), (
            "the command line finds the lease service all the time"
        )
        systemctl.stop(f"flannelette-{service}.service")
        systemctl.start(
            f"flannelette-{service}.service", sys.executable, "-m", f"flannelette.services.{service}.main"
        )
        host.until_typed(f"{FLANNELETTE} leases")  # also while the dataplane is of before, or the lease service
        assert of_kernel(host) == before
    host.until_typed(f"{FLANNELETTE} wait --ready")
    assert "lease.sock" in host.type("ls /run/flannelette-lease")
    assert of_kernel(host) == before
    assert "is healthy" in host.type(f"{FLANNELETTE} status")


def test_a_user_of_the_lease_service_reaches_neither_the_dataplane_nor_masq(host: PageHost) -> None:
    """Nor does that of the cloud's process; the services and an operator reach what they need."""
    install(host, ROOT / "deploy/systemd")
    systemctl = Systemctl(host)
    for service in SERVICES:
        systemctl.start(
            f"flannelette-{service}.service", sys.executable, "-m", f"flannelette.services.{service}.main"
        )
    host.until_typed(f"{FLANNELETTE} wait --ready")
    for user, more in (("lease", "--clear-groups"), ("cloud", "--groups=flannelette-lease")):
        rights = f"--reuid=flannelette-{user} --regid=flannelette-{user} {more} --bounding-set=-all --no-new-privs"
        host.type(f"setpriv {rights} {sys.executable} - flannelette-{user} <<'END'\n{HOSTILE}\nEND")
    nobody = "--reuid=65002 --regid=65002 --clear-groups --bounding-set=-all --no-new-privs"
    host.type(f"setpriv {nobody} {sys.executable} - <<'END'\n{STRANGER}\nEND")
    operator = "HOME=/ setpriv --reuid=65001 --regid=65001 --groups=flannelette,flannelette-lease --bounding-set=-all"
    assert "is healthy" in host.type(f"{operator} {FLANNELETTE} status")


@pytest.mark.parametrize("is_named", [True, False], ids=["named by a flag", "by a symbolic link"])
def test_a_user_of_the_dataplane_has_root_read_no_file_for_it(host: PageHost, is_named: bool) -> None:
    """Nor is one shown in the archive of `sysdump`, which people send to others."""
    install(host, ROOT / "deploy/systemd")
    host.type("echo FLANNEL_SUBNET=for-root-alone >/etc/secret; chmod 600 /etc/secret")
    rights = "--reuid=flannelette-dataplane --regid=flannelette --clear-groups --bounding-set=-all --no-new-privs"
    program = ("setpriv", *rights.split(), sys.executable, "-c", TAKEN_OVER, *(() if is_named else ("/etc/secret",)))
    host.start("taken-over", *program, FLANNELD_SUBNET_FILE="/etc/secret" if is_named else "")
    host.until_typed("test -S /run/flannelette/dataplane.sock")
    host.until_typed(f"grep listens {host.home}/taken-over.log")
    host.tried(f"{FLANNELETTE} sysdump --timeout 3 -w {host.home}/dump.tar.gz")
    members = unpacked((host.home / "dump.tar.gz").read_bytes())
    assert members
    assert not [name for name, text in members.items() if "for-root-alone" in text]
