"""A comparison of the firewall with the rules, and a repair, beside foreign rules; and flanneld's way to do it."""

import asyncio
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from ipaddress import ip_network
from pathlib import Path
from statistics import median
from typing import Final

from bench.result import Bench, BenchFailed, Result
from flannelette.services.core.network import parse_network
from flannelette.services.masq.firewalls.firewall import Firewall
from flannelette.services.masq.firewalls.iptables import chain_form
from flannelette.services.masq.firewalls.iptables_legacy.firewall import IptablesFirewall
from flannelette.services.masq.firewalls.iptables_nft import IptablesNftFirewall
from flannelette.services.masq.firewalls.nftables import NftablesFirewall
from flannelette.services.masq.rules import RuleSettings, wanted_chains

CHAINS: Final = wanted_chains(
    parse_network('{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}'),
    (ip_network("10.5.27.0/24"),),
    RuleSettings(masquerade=True, forward=True, fully_random=True),
)
_ROUNDS: Final = 15
_FLUSH: Final = {
    "nftables": "nft flush chain ip flannelette postrtg",
    "iptables-nft": "iptables-nft -t nat -F FLANNEL-POSTRTG",
    "iptables-legacy": "iptables-legacy -w -t nat -F FLANNEL-POSTRTG",
}


def run(parameters: Mapping[str, int]) -> Result:
    """Runs the bench. Raises BenchFailed."""
    try:
        return asyncio.run(_run(parameters["rules"]))
    except subprocess.CalledProcessError as error:
        raise BenchFailed(f"{error.cmd}: {error.stderr}") from None


async def _run(foreign: int) -> Result:
    figures: dict[str, float] = {}
    peers: dict[str, float] = {}
    cpu = 0.0
    with tempfile.TemporaryDirectory() as directory:
        lock = Path(directory) / "xtables.lock"
        for firewall in (NftablesFirewall(), IptablesNftFirewall(), IptablesFirewall(lock)):
            add_foreign(firewall.name, foreign)
            key = firewall.name.replace("-", "_")
            before = time.process_time()
            figures |= {f"{key}_{name}_ms": figure for name, figure in (await _measured(firewall)).items()}
            if firewall.name == "nftables":
                cpu = time.process_time() - before
            else:
                ask = partial(ask_each, firewall.name)
                peers[f"{firewall.name} -C for each rule"] = await _milliseconds(ask)
            await firewall.close()
            reset(firewall.name)
    ours = figures.pop("nftables_check_ms")
    return Result("masq", {"rules": foreign}, "ms a check", ours, peers, True, cpu, figures)


async def _measured(firewall: Firewall) -> dict[str, float]:
    await firewall.check(CHAINS, repair=True)
    await firewall.check(CHAINS, repair=True)
    return {
        "check": await _milliseconds(partial(firewall.check, CHAINS, repair=False)),
        "repair": await _repairs(firewall),
    }


async def _repairs(firewall: Firewall) -> float:
    took = []
    for _ in range(5):
        _shell(_FLUSH[firewall.name])
        start = time.perf_counter()
        await firewall.check(CHAINS, repair=True)
        took.append(time.perf_counter() - start)
    return median(took) * 1000


async def ask_each(program: str) -> None:
    """Asks for every rule with a process, as flanneld does."""
    for chain in CHAINS:
        form = chain_form(chain)
        for rule in (form.jump, *form.rules):
            _shell(f"{program} -w -t {chain.table} {rule.text.replace('-A ', '-C ', 1)}")


async def _milliseconds(call: Callable[[], Awaitable[object]]) -> float:
    took = []
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        await call()
        took.append(time.perf_counter() - start)
    return median(took) * 1000


def add_foreign(firewall: str, number: int) -> None:
    """Makes so many rules that are not ours."""
    addresses = [f"172.{16 + (i >> 16)}.{i >> 8 & 255}.{i & 255}" for i in range(number)]
    if firewall == "nftables":
        rules = "\n".join(f"ip saddr {address} counter accept" for address in addresses)
        _shell("nft -f -", f"table ip foreign {{\n chain x {{\n{rules}\n }}\n}}\n")
    else:
        rules = "\n".join(f"-A FOREIGN -s {address}/32 -j ACCEPT" for address in addresses)
        _shell(f"{firewall}-restore --noflush", f"*filter\n:FOREIGN - [0:0]\n{rules}\nCOMMIT\n")


def reset(firewall: str) -> None:
    """Removes all rules of a firewall."""
    if firewall == "iptables-legacy":
        _shell(
            "nft flush ruleset; iptables-legacy -w -F; iptables-legacy -w -t nat -F; "
            "iptables-legacy -w -X; iptables-legacy -w -t nat -X"
        )
    else:
        _shell("nft flush ruleset")


def _shell(command: str, text: str = "") -> None:
    subprocess.run(["sh", "-c", command], input=text, check=True, capture_output=True, text=True)


MASQ: Final = Bench(
    "masq", "a check of the masquerade rules beside foreign ones, in all three firewalls", {"rules": 1000}, run
)
