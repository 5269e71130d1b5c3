"""`flannelette teardown --offline`: removes the rules that a stopped masq has left; JSON of TeardownRulesResponse."""

import asyncio
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from flannelette.masq.v1 import masq_pb2 as pb
from flannelette.services.core.addresses import parse_cidr
from flannelette.services.core.errors import Misconfigured
from flannelette.services.core.formats.shell_words import read_lines
from flannelette.services.masq.firewalls.auto import AutoFirewall, HostProbe
from flannelette.services.masq.firewalls.firewall import commands_of
from flannelette.services.masq.firewalls.guard_table import GuardTable
from flannelette.services.masq.guard import GUARD_TABLE
from flannelette.services.masq.kernel.legacy_tables import lock_path
from flannelette.services.masq.reconcile.clamp import MssClamp
from flannelette.services.masq.reconcile.pods import PodTable
from flannelette.services.masq.rules import NFT_TABLE, belonging, no_chains
from flannelette.services.runtime.networks import NodeNetwork
from flannelette.services.runtime.os.names import single_instance
from flannelette.services.runtime.process.once import run_once
from flannelette.services.runtime.process.settings import flag


@dataclass(frozen=True, kw_only=True)
class CleanupSettings:
    """What there is to say about it."""

    network: str = flag("", "Name of the network, if it has one: its rules are in nftables table flannelette-NAME.")
    subnet_file: Path = flag(Path("/run/flannel/subnet.env"), "File with the network of this node; see --network.")
    dry_run: bool = flag(False, "Change nothing.")


async def clean_up(settings: CleanupSettings, said: Mapping[str, str]) -> pb.TeardownRulesResponse:
    """Removes our rules of the network that the file says from every firewall. Raises Misconfigured, Unavailable."""
    ours = [n for key in ("FLANNEL_NETWORK", "FLANNEL_IPV6_NETWORK") if (n := parse_cidr(said.get(key, "")))]
    network = NodeNetwork(settings.network)
    if not ours:  # and without one, rules of another network would go too
        where = network.place(settings.subnet_file)
        raise Misconfigured(f"{where} names no network: write FLANNEL_NETWORK=10.5.0.0/16 or the like")
    table = f"{NFT_TABLE}{network.suffix}"
    probe = HostProbe(table)
    firewall = AutoFirewall("auto", lock_path(), probe)
    try:
        states = await firewall.check(belonging(no_chains(), ours, table), repair=not settings.dry_run)
        if firewall.stale_rules_error:
            raise Misconfigured(firewall.stale_rules_error)
        guard = GuardTable(f"{GUARD_TABLE}{network.suffix}").remove(dry_run=settings.dry_run)
        clamp = MssClamp(network.suffix).teardown(dry_run=settings.dry_run)
        pods = [] if network.suffix else PodTable().remove(dry_run=settings.dry_run)
        return pb.TeardownRulesResponse(commands=[*commands_of(states), *guard, *clamp, *pods])
    finally:
        await firewall.close()
        probe.close()


def _work(settings: CleanupSettings) -> pb.TeardownRulesResponse:
    network = NodeNetwork(settings.network)
    path = network.place(settings.subnet_file)
    said = read_lines(path.read_text(errors="replace") if path.is_file() else "")
    with single_instance(f"masq{network.suffix}", "stop it first"):
        return asyncio.run(clean_up(settings, said))


if __name__ == "__main__":
    sys.exit(run_once("python -m flannelette.services.masq.api.cleanup", CleanupSettings, _work))
