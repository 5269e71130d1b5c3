"""What masq costs beside thousands of foreign rules that change all the time, and how soon it repairs its own."""

import resource
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Final

from bench.masq import add_foreign, reset
from bench.masq_idle import FIREWALLS, cpu_of_all, lease_service, running_masq
from bench.result import Bench, BenchFailed, Result

_CHANGES: Final = {
    "nftables": "nft add rule ip other x ip saddr 192.0.2.1 counter accept; nft flush chain ip other x",
    "iptables-nft": "iptables-nft -A OTHER -s 192.0.2.1 -j ACCEPT; iptables-nft -D OTHER 1",
    "iptables-legacy": "iptables-legacy -w -A OTHER -s 192.0.2.1 -j ACCEPT; iptables-legacy -w -D OTHER 1",
}
"""Two changes each. In a small chain: the program that changes it takes no more of the machine than it has to."""
_CHAIN: Final = {
    "nftables": ("nft flush chain ip flannelette forward", "nft list chain ip flannelette forward"),
    "iptables-nft": ("iptables-nft -F FLANNEL-FWD", "iptables-nft -S FLANNEL-FWD"),
    "iptables-legacy": ("iptables-legacy -w -F FLANNEL-FWD", "iptables-legacy -w -S FLANNEL-FWD"),
}
_DUMPS: Final = {
    "nftables": "nft list ruleset",
    "iptables-nft": "iptables-nft-save",
    "iptables-legacy": "iptables-legacy-save",
}
_REPAIRS: Final = 5
_PATIENCE_SECONDS: Final = 20.0


def run(parameters: Mapping[str, int]) -> Result:
    """Runs the bench. Raises BenchFailed."""
    figures: dict[str, float] = {}
    peers: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as directory, lease_service(Path(directory)):
        for firewall in FIREWALLS:
            prepare(firewall, parameters["rules"], parameters["tables"])
            key = firewall.replace("-", "_")
            with (
                running_masq(Path(directory), firewall) as process,
                _changing(firewall, parameters["changes"]) as made,
            ):
                time.sleep(parameters["settle"])
                before, first = cpu_of_all(process), made[0]
                time.sleep(parameters["seconds"])
                figures[f"{key}_percent"] = 100 * (cpu_of_all(process) - before) / parameters["seconds"]
                figures[f"{key}_changes_a_minute"] = 60 * (made[0] - first) / parameters["seconds"]
                figures[f"{key}_repair_ms"] = 1000 * median(_repair(firewall) for _ in range(_REPAIRS))
            dumps = 100 * _dump_seconds(firewall) * parameters["changes"] / 60
            peers[f"{_DUMPS[firewall]} after each change"] = dumps
            reset(firewall)
    ours = max(value for name, value in figures.items() if name.endswith("_percent"))
    return Result("masq_changes", dict(parameters), "% of a core", ours, peers, True, ours, figures)


def prepare(firewall: str, rules: int, tables: int) -> None:
    """Makes the foreign rules, half of them in as many native tables as that, and the chain that changes."""
    add_foreign(firewall, rules // 2)
    each = rules // 2 // tables
    for table in range(tables):
        lines = "\n".join(f"ip saddr 172.20.{i >> 8}.{i & 255} accept" for i in range(each))
        base = "type filter hook forward priority 10;"
        _shell("nft -f -", f"table inet many{table} {{\n chain x {{\n{base}\n{lines}\n }}\n}}\n")
    if firewall == "nftables":
        _shell("nft add table ip other; nft add chain ip other x")
    else:
        _shell(f"{firewall} -N OTHER")


@contextmanager
def _changing(firewall: str, changes: int) -> Iterator[list[int]]:
    """Another program that makes so many changes a minute; how many it has made."""
    made, stopped = [0], threading.Event()

    def run_until_stopped() -> None:
        due = time.monotonic()
        while not stopped.is_set():
            _shell(_CHANGES[firewall])
            made[0] += 2
            due += 120 / changes
            stopped.wait(max(due - time.monotonic(), 0))

    thread = threading.Thread(target=run_until_stopped)
    thread.start()
    try:
        yield made
    finally:
        stopped.set()
        thread.join()


def _repair(firewall: str) -> float:
    """Seconds until our chain has its rules again after another program has emptied it."""
    empty, listed = _CHAIN[firewall]
    _shell(empty)
    start = time.monotonic()
    while "10.5.0.0/16" not in _shell(listed):
        if time.monotonic() - start > _PATIENCE_SECONDS:
            raise BenchFailed(f"masq has not repaired its rules in {firewall}")
        time.sleep(0.005)
    return time.monotonic() - start


def _dump_seconds(firewall: str) -> float:
    """CPU of one full dump."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    _shell(_DUMPS[firewall])
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _shell(command: str, text: str = "") -> str:
    done = subprocess.run(["sh", "-c", command], input=text, check=True, capture_output=True, text=True)
    return done.stdout


MASQ_CHANGES: Final = Bench(
    "masq_changes",
    "masq beside foreign rules that change all the time, in all three firewalls",
    {"rules": 20_000, "tables": 20, "changes": 420, "seconds": 20, "settle": 8},
    run,
)
