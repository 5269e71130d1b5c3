"""docs/quickstart.md, "Run it on a host", docs/operations.md, docs/subnets.md: typed on a host with an etcd."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts.namespaces import NetworkNamespace
from tests.pages.host import PREFIX, PageHost, commands_under, page_host
from tests.patience import PATIENCE

OPERATIONS, SUBNETS = "docs/operations.md", "docs/subnets.md"


@pytest.fixture
def host(netns: NetworkNamespace, tmp_path: Path) -> Iterator[PageHost]:
    with page_host(netns, tmp_path) as it:
        yield it


def test_a_host_joins_the_overlay_and_leaves_it_as_the_pages_say(host: PageHost) -> None:
    path = install_and_start(host)
    status = host.until_typed(f"{path}\nflannelette status")
    assert status.startswith(host.type("hostname").strip().lower() + " is healthy")
    assert "11 of 11 programmed" in status
    subnet_file = host.type("cat /run/flannel/subnet.env")
    assert "FLANNEL_IPMASQ=true" in subnet_file
    assert "MASQUERADE" in host.type("iptables-save")

    free = 95 if "10.5.96." in subnet_file else 96
    route = f"10.5.{free}.0/24 via 10.5.{free}.0 dev flannel.1 proto 77"
    host.join(2, free)
    host.until(lambda: route in host.type("ip route"), route)
    what_happened(host, path)
    subnets(host, path)

    (block,) = commands_under(OPERATIONS, "Many leases are gone at once")
    quarantine, confirm = block.splitlines()
    host.etcd.etcdctl("del", "--prefix", f"{PREFIX}/subnets/")
    host.until(lambda: "12 removals held" in host.tried(f"{path}\n{quarantine}").stdout, quarantine)
    assert route in host.type("ip route")
    assert "12 leases removed" in host.type(f"{path}\n{confirm}", answer="y\n")
    host.until(lambda: route not in host.type("ip route"), confirm)

    (block,) = commands_under(OPERATIONS, "Taking a node out")
    host.type(f"{path}\n{block}")
    assert host.etcd.etcdctl("get", "--prefix", "--keys-only", f"{PREFIX}/subnets/").strip() == ""
    assert "flannel" not in host.type("ip link; iptables-save").lower()


def install_and_start(host: PageHost) -> str:
    """Types the lines of the quick start, those of the services each in its terminal; the one that sets the PATH."""
    network, block = commands_under("docs/quickstart.md", "Run it on a host")
    host.type(network)
    install, path, *services = block.splitlines()
    host.type(install, seconds=8 * PATIENCE)
    programs = [line.split()[0] for line in services]
    assert sorted(programs) == ["flannelette-dataplane", "flannelette-lease", "flannelette-masq"]
    for program, line in zip(programs, reversed(services), strict=True):  # "in any order"
        host.start(program, "sh", "-euc", f"{path}\nexec {line}")
    return path


def subnets(host: PageHost, path: str) -> None:
    """Types docs/subnets.md, which leaves the leases as they are."""
    (block,) = commands_under(SUBNETS, "Reserve a subnet")
    printed = host.type(f"{path}\n{block}")
    assert "h9" in printed
    assert "10.5.8.0" in printed
    (block,) = commands_under(SUBNETS, "Free subnets")
    leases, reclaim = block.splitlines()
    assert "n13" in host.type(f"{path}\n{leases}")
    assert host.tried(f"{path}\n{reclaim}").returncode in (0, 1)  # 1: there are some


def what_happened(host: PageHost, path: str) -> None:
    """Types each line of what the page has on events, until Ctrl-C where it follows."""
    (block,) = commands_under(OPERATIONS, "What has happened?")
    for line in block.splitlines():
        if "--follow" in line:
            follower = host.start("events", "sh", "-euc", f"{path}\nexec {line}")
            host.until(lambda: "n2" in (host.home / "events.log").read_text(), line)
            follower.send_signal(signal.SIGINT)
            assert follower.wait(PATIENCE) == 0
        else:
            words = "rules put in place" if "--service masq" in line else "n2"
            assert words in host.type(f"{path}\n{line}"), line
