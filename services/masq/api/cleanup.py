"""`flannelette teardown --offline`: removes the rules that a stopped masq has left, in a process of its own.

Prints what was done, or would be, as JSON of TeardownRulesResponse.
"""

import asyncio
import sys
from dataclasses import dataclass
from typing import Final

from flannelette.masq.v1 import masq_pb2 as pb

from services.core.errors import Misconfigured
from services.core.formats.ip_text import parse_cidr
from services.masq.firewalls.auto import AutoFirewall
from services.masq.firewalls.detect import HostProbe
from services.masq.firewalls.iptables_legacy.lock import lock_path
from services.masq.reconcile.repairs import commands_of
from services.masq.rules.model import belonging, no_chains
from services.runtime.os.single_instance import single_instance
from services.runtime.process.once import run_once
from services.runtime.process.settings import flag

_ADVICE: Final = "stop it first, or leave --offline out, and it removes its rules itself"


@dataclass(frozen=True, kw_only=True)
class CleanupSettings:
    """What there is to say about it."""

    network: tuple[str, ...] = flag((), "The network whose rules are removed; may be repeated.")
    dry_run: bool = flag(False, "Change nothing.")


async def clean_up(settings: CleanupSettings) -> pb.TeardownRulesResponse:
    """Removes the rules of the networks from every firewall of the host. Raises Misconfigured, Unavailable."""
    networks = [network for text in settings.network if (network := parse_cidr(text)) is not None]
    if not networks:
        raise Misconfigured(
            "the network of this node is not known, so its rules cannot be told from another network's: give "
            "--subnet-file a file with a line like FLANNEL_NETWORK=10.5.0.0/16"
        )
    probe = HostProbe()
    firewall = AutoFirewall("auto", lock_path(), probe)
    try:
        await firewall.open()
        states = await firewall.check(belonging(no_chains(), networks), repair=not settings.dry_run)
        if firewall.stale_rules_error:
            raise Misconfigured(firewall.stale_rules_error)
        return pb.TeardownRulesResponse(commands=commands_of(states))
    finally:
        await firewall.close()
        probe.close()


def _work(settings: CleanupSettings) -> pb.TeardownRulesResponse:
    with single_instance("masq", _ADVICE):
        return asyncio.run(clean_up(settings))


if __name__ == "__main__":
    sys.exit(run_once("python -m services.masq.api.cleanup", CleanupSettings, _work))
