"""Leases that claim what another lease has: found among the peers, not in the kernel. Pure."""

from collections.abc import Iterator
from itertools import islice
from typing import Final

from services.core.conflicts import KINDS
from services.dataplane.diagnose.seen import Finding
from services.dataplane.peers import Peer
from services.dataplane.roster import Roster

_OURS: Final = frozenset({"own-subnet", "own-address", "own-mac"})
"""Rules of `admission` by which a lease claims what this node has."""
_MOST: Final = 10
"""Findings; ListPeers has all."""


def claim_findings(roster: Roster) -> list[Finding]:
    """What of our lease other nodes do not carry, and which leases of others are not carried for what they claim."""
    own = [
        Finding(
            "own-claim",
            f"Other nodes send no packets here: our lease loses to that of {loss.winner.node or loss.winner.name}.",
            f"The own lease {loss.lease.name}: {loss.reason}.",
            "",
            "",
        )
        for loss in roster.own_losses
    ]
    return own + list(islice(_of_others(list(roster.peers.values())), _MOST))


def _of_others(peers: list[Peer]) -> Iterator[Finding]:
    for peer in peers:
        for refusal in peer.refusals:
            if refusal.rule not in _OURS and refusal.rule not in KINDS:
                continue
            who = f"Node {peer.lease.node}" if peer.lease.node else f"The lease {peer.lease.name}"
            whose = "of this node" if refusal.rule in _OURS else "of another node"
            yield Finding(
                "claim",
                f"{who} claims a subnet, MAC, key or address {whose}, and gets no packets.",
                f"The lease {peer.lease.name}: {refusal.reason}.",
                "",
                "",
                ((peer.lease.name, peer.lease.node),),
            )
