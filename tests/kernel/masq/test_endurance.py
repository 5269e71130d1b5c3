"""The firewalls over many checks, and beside somebody who writes all the time."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.masq import CHAINS, KINDS, LEGACY, Host, firewall_of, put_right

SOAK = bool(os.environ.get("FLANNELETTE_SOAK"))
CHECKS = 100_000 if SOAK else 400
WRITES = 1_000 if SOAK else 40
LEAK_MIB = 8


@pytest.fixture(params=KINDS)
async def firewall(request: pytest.FixtureRequest, host: Host) -> AsyncIterator[Any]:
    it = firewall_of(request.param, host)
    yield it
    await it.close()


def resident_mib(firewall: Any) -> float:
    """Of this process and of the firewall's workers."""
    workers = firewall.worker_pids.values() if firewall.name == LEGACY else ()
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in ("self", *workers))
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


async def test_memory_stays_flat_over_many_checks(firewall: Any) -> None:
    await put_right(firewall)
    for _ in range(50):
        await firewall.check(CHAINS, repair=False)
    before = resident_mib(firewall)
    # A check of iptables-nft is a handful of processes, which take their memory with them.
    for _ in range(20 if firewall.name == "iptables-nft" else CHECKS):
        await firewall.check(CHAINS, repair=False)
    assert resident_mib(firewall) < before + LEAK_MIB


async def test_somebody_who_writes_all_the_time_loses_nothing_and_ours_are_right_in_the_end(
    host: Host, firewall: Any
) -> None:
    await put_right(firewall)
    program = "iptables-legacy -w" if firewall.name == "iptables-legacy" else "iptables-nft"
    ours = "ip flannelette postrtg" if firewall.name == "nftables" else "FLANNEL-POSTRTG"
    flush = f"nft flush chain {ours}" if firewall.name == "nftables" else f"{program} -t nat -F {ours}"
    script = (
        f"{program} -N FOREIGN; i=0; while [ $i -lt {WRITES} ]; do i=$((i+1));"
        f" {program} -A FOREIGN -s 172.16.$((i/250)).$((i%250)) -j ACCEPT || exit 1; {flush} || exit 1; done"
    )
    writer = host.start("sh", "-c", script)
    while writer.poll() is None:
        await firewall.check(CHAINS, repair=True)
        await asyncio.sleep(0)
    assert writer.returncode == 0
    assert host.run("sh", "-c", f"{program} -S FOREIGN").count("-A FOREIGN") == WRITES
    await put_right(firewall)
    assert await put_right(firewall) == []
