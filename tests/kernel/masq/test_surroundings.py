"""What the firewall says when the machine lacks something, and the lock and the poll by themselves."""

import asyncio
import fcntl
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from flannelette.services.core.errors import Misconfigured, Unavailable
from flannelette.services.core.family import FAMILIES, IPV4, Family
from flannelette.services.masq.firewalls.iptables_legacy.firewall import IptablesFirewall
from flannelette.services.masq.kernel.legacy_tables import TableReader, existing_tables, lock_path, xtables_lock
from flannelette.services.masq.kernel.routing import connected_networks
from tests.hosts.masq import CHAINS, Host, put_right
from tests.hosts.namespaces import NetworkNamespace

OPEN = """
import asyncio, pathlib
from flannelette.services.core.errors import Misconfigured
from flannelette.services.masq.firewalls.iptables_legacy.firewall import IptablesFirewall
async def main():
    firewall = IptablesFirewall(pathlib.Path("lock"))
    try:
        await firewall.open()
        print("works")
    except Misconfigured as error:
        print(error)
    finally:
        await firewall.close()
asyncio.run(main())
"""

AS_NOBODY = """
import os
from flannelette.services.core.errors import Unavailable
from flannelette.services.core.family import IPV4
from flannelette.services.masq.kernel.legacy_tables import existing_tables
os.setgroups([]), os.setgid(65534), os.setuid(65534)
try:
    print(existing_tables(IPV4))
except Unavailable as error:
    print(error)
"""


def opening(host: Host, *around: str) -> str:
    """What a firewall says that is opened inside of some command."""
    return host.run(*around, sys.executable, "-c", OPEN).strip()


def test_on_a_complete_machine_it_opens(host: Host) -> None:
    assert opening(host) == "works"
    assert host.tables() == set()


@pytest.mark.parametrize(("capability", "name"), [("net_raw", "CAP_NET_RAW"), ("net_admin", "CAP_NET_ADMIN")])
def test_a_missing_capability_is_named(host: Host, capability: str, name: str) -> None:
    drop = ("setpriv", f"--bounding-set=-{capability}", f"--inh-caps=-{capability}")
    assert opening(host, *drop) == (f"legacy iptables needs {name}: run the service as root with these capabilities")


def test_who_is_not_root_is_told_to_be(host: Host) -> None:
    host.run("iptables-legacy", "-w", "-t", "filter", "-N", "OTHER")
    told = host.run(sys.executable, "-c", AS_NOBODY)
    assert told.startswith("only root may list the kernel's tables: run the service as root, with ")


def hiding(host: Host, what: str) -> str:
    script = f'{what} && exec "$@"'
    return opening(host, "unshare", "--mount", "sh", "-c", script, "sh")


def test_missing_extensions_are_named_with_the_package_that_has_them(host: Host) -> None:
    said = hiding(host, "for d in /usr/lib/*/xtables; do mount -t tmpfs tmpfs $d; done")
    assert said.endswith("apt-get install iptables")
    assert "extension" in said


@pytest.mark.parametrize("library", ["libip4tc", "libip6tc", "libxtables"])
def test_a_library_that_cannot_be_loaded_is_named(host: Host, library: str) -> None:
    said = hiding(host, f"for f in /usr/lib/*/{library}.so.*; do mount --bind /dev/null $(readlink -f $f); done")
    assert library in said
    assert "apt-get install" in said


def test_a_lock_that_cannot_be_made_is_said_with_its_cure(tmp_path: Path) -> None:
    with (
        pytest.raises(
            Unavailable, match=r"No such file or directory; mount .* writable, or name another file in XTA"
        ),
        xtables_lock(tmp_path / "nowhere" / "lock", 1),
    ):
        pass


def test_a_lock_that_another_program_keeps_is_waited_for_and_then_named(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with path.open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        start = time.monotonic()
        with (
            pytest.raises(Unavailable, match=r"held the iptables lock .* see which with `fuser"),
            xtables_lock(path, 0.1),
        ):
            pass
        assert time.monotonic() - start >= 0.1
    with xtables_lock(path, 0.1):
        assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
        with path.open() as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_the_lock_is_the_one_of_iptables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XTABLES_LOCKFILE", raising=False)
    assert lock_path() == Path("/run/xtables.lock")
    monkeypatch.setenv("XTABLES_LOCKFILE", "/elsewhere")
    assert lock_path() == Path("/elsewhere")


async def test_a_lock_that_is_kept_makes_the_check_fail_and_the_worker_stay(host: Host) -> None:
    firewall = IptablesFirewall(host.lock)
    await put_right(firewall)
    pid = firewall.worker_pids[IPV4]
    descriptor = os.open(host.lock, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    check = asyncio.create_task(firewall.check(CHAINS, repair=True))
    with pytest.raises(Unavailable, match="iptables lock"):
        await check
    os.close(descriptor)
    assert await put_right(firewall) == []
    assert firewall.worker_pids[IPV4] == pid
    await firewall.close()


async def test_opening_fails_as_a_misconfiguration(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    firewall = IptablesFirewall(host.lock)
    shadow = host.lock.parent / "flannelette"  # found before the installed one, and without the worker
    shadow.mkdir()
    (shadow / "__init__.py").touch()
    monkeypatch.setattr(sys, "path", [str(host.lock.parent)])
    with pytest.raises(
        Misconfigured, match=r"IPv4 worker ended with status 1: .*No module named 'flannelette.services'"
    ):
        await firewall.open()
    await firewall.close()


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_a_fingerprint_changes_with_rules_chains_and_policies_but_not_with_counters(
    family: Family, host: Host
) -> None:
    program = "iptables-legacy" if family is IPV4 else "ip6tables-legacy"
    reader = TableReader(family)
    seen = [reader.digest()[1]]
    assert seen == [()]
    assert existing_tables(family) == ()
    for change in (
        ("-A", "OUTPUT", "-o", "lo", "-j", "ACCEPT"),
        ("-R", "OUTPUT", "1", "-o", "l0", "-j", "ACCEPT"),
        ("-N", "OTHER"),
        ("-P", "OUTPUT", "DROP"),
        ("-P", "OUTPUT", "ACCEPT"),
        ("-E", "OTHER", "ANOTHER"),
        ("-A", "OUTPUT", "-j", "ANOTHER"),
        ("-D", "OUTPUT", "1"),
    ):
        host.run(program, "-w", "-t", "filter", *change)
        seen.append(reader.digest()[1])
        host.run(program, "-w", "-t", "filter", "-Z")
        host.run(program, "-w", "-t", "filter", "-A", "INPUT", "-c", "5", "500")
        host.run(program, "-w", "-t", "filter", "-D", "INPUT", "1")
        assert reader.digest()[1] == seen[-1]
    assert len(seen) == len(set(seen)) + 1  # the policy came back to where it was
    assert reader.mentioned(["OTHER", "ANOTHER"]) == {"ANOTHER"}
    assert existing_tables(family) == ("filter",)
    reader.close()


def test_the_networks_of_the_underlay_are_read_from_the_kernel(netns: NetworkNamespace) -> None:
    netns.ip("link", "add", "eth0", "type", "veth", "peer", "name", "veth0")
    netns.ip("addr", "add", "10.99.0.11/24", "dev", "eth0")
    netns.ip("addr", "add", "fd99::b/64", "dev", "eth0", "nodad")
    netns.ip("link", "set", "eth0", "up")
    netns.ip("link", "set", "veth0", "up")
    with netns.inside():
        assert list(map(str, connected_networks())) == ["10.99.0.0/24", "fd99::/64"]
