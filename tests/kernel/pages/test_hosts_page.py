"""docs/hosts.md, upgrading.md, uninstall.md: a host becomes one of the overlay; its units have rights enough.

There is no systemd in a test's namespaces: `setpriv` gives what the units give.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts.namespaces import NetworkNamespace
from tests.pages.host import PREFIX, PageHost, commands_under, page_host
from tests.pages.units import Systemctl
from tests.patience import PATIENCE

PAGE = "docs/hosts.md"
OUTSIDE = """\
ip -o link | cut -d: -f2
ip route
iptables-save | grep -i flannel || true
find /opt /run /var/lib /etc/systemd /etc/sysusers.d /etc/tmpfiles.d -iname '*flannel*' 2>/dev/null || true
grep flannel /etc/passwd /etc/group || true
"""
"""What shows the traces of an installation."""


@pytest.fixture
def host(netns: NetworkNamespace, tmp_path: Path) -> Iterator[PageHost]:
    if "4294967295" not in Path("/proc/self/uid_map").read_text():
        pytest.skip("an ordinary user's namespace has no other users: run the tests as root")
    with page_host(netns, tmp_path, opened=True) as it:
        yield it


def test_the_page_makes_a_host_one_of_the_overlay(host: PageHost) -> None:
    systemctl = Systemctl(host)
    before = host.type(OUTSIDE)
    host.type("rm -rf /etc/sysusers.d; mkdir -p /etc/systemd/system")  # as on Debian
    for block in commands_under(PAGE, "Install"):
        for line in (typed := block.splitlines()):
            if line.startswith("systemctl "):
                systemctl(line)
                typed = typed[1:]
        if typed and not block.startswith("systemctl"):
            host.type(block, seconds=8 * PATIENCE)
        elif typed:
            assert "is healthy" in host.until_typed("\n".join(typed))
    users_have_what_they_need(host)
    is_upgraded(host, systemctl)
    docker_is_told(host)
    (block,) = commands_under(PAGE, "With flanneld's command line")
    assert "--kube-subnet-mgr" in host.type(block)
    (block,) = commands_under("docs/uninstall.md", "A host")
    stop, *removals, reload = block.splitlines()
    for line in (stop, reload):
        systemctl(line)
    assert "ip link del" in host.type("\n".join(["export PATH=/opt/flannelette/bin:$PATH", *removals]))
    assert host.type(OUTSIDE) == before


def users_have_what_they_need(host: PageHost) -> None:
    places = "stat --format='%A %U %G %n' /run/flannelette* /run/flannel /run/xtables.lock"
    assert host.type(places).splitlines() == [
        "drwxrwx--- root flannelette /run/flannelette",
        "drwxr-s--- flannelette-cloud flannelette /run/flannelette-cloud",
        "drwxr-x--- flannelette-lease flannelette-lease /run/flannelette-lease",
        "drwxr-xr-x flannelette-dataplane flannelette /run/flannel",
        "-rw------- root root /run/xtables.lock",
    ]
    written = host.type("cat /run/flannel/subnet.env")
    subnet = re.search(r"^FLANNEL_SUBNET=(.+)\.1/24$", written, re.MULTILINE)
    assert subnet
    assert "FLANNEL_IPMASQ=true" in written
    assert f"/subnets/{subnet[1]}.0-24" in host.etcd.etcdctl("get", "--prefix", "--keys-only", PREFIX)
    assert "flannel.1" in host.type("ip link show flannel.1")
    assert "MASQUERADE" in host.type("iptables-save")
    for service, user in (("dataplane", "flannelette-dataplane"), ("masq", "root")):
        state = f"/var/lib/flannelette-{service}/{service}.state"
        host.until_typed(f"test -f {state}")  # a second after a change
        assert host.type(f"stat --format='%A %U' {state}") == f"-rw------- {user}\n"
    own = host.type("stat --format='%A %U %G' /run/flannelette/dataplane.sock")
    assert own == "srw-rw---- flannelette-dataplane flannelette\n"
    own = host.type("stat --format='%A %U %G' /run/flannelette-lease/lease.sock")
    assert own == "srw-rw---- flannelette-lease flannelette-lease\n"


def is_upgraded(host: PageHost, systemctl: Systemctl) -> None:
    """As docs/upgrading.md says, from this release to this one."""
    for block in commands_under("docs/upgrading.md", "A host"):
        for line in block.splitlines():
            if line.startswith("systemctl "):
                systemctl(line)
            elif " wait " in line:
                host.until_typed(line)
            else:
                host.type(line, seconds=8 * PATIENCE)


def docker_is_told(host: PageHost) -> None:
    (block,) = commands_under(PAGE, "docker")
    host.type(block)
    drop_in = host.type("cat /etc/systemd/system/docker.service.d/flannelette.conf")
    before = re.search(r"^ExecStartPre=(.+)$", drop_in, re.MULTILINE)
    options = re.search(r"^EnvironmentFile=-(.+)$", drop_in, re.MULTILINE)
    assert before
    assert options
    host.type(before[1])
    subnet = re.search(r"FLANNEL_SUBNET=(.+)", host.type("cat /run/flannel/subnet.env"))
    assert subnet
    assert host.type(f"cat {options[1]}") == f'DOCKER_OPTS=" --bip={subnet[1]} --ip-masq=false --mtu=1450"\n'
    assert drop_in.endswith("$DOCKER_OPTS\n")
