"""Who sends to whom, in the notation of docs/compatibility.md; the kernel tests send these packets."""

from ipaddress import IPv4Address
from typing import Final

from flannelette.services.core.family import IPV4
from flannelette.services.masq.rules import Action, Packet, Rule, deciding_rule
from tests.hosts.masq import CHAINS

ADDRESSES: Final = {
    "a pod of this node": "10.5.27.2",
    "a pod of another node": "10.5.3.2",
    "this node": "192.0.2.1",
    "this node's bridge (cni0)": "10.5.27.1",
    "this node's flannel.1": "10.5.27.0",
    "the outside": "192.0.2.9",
    "multicast": "224.0.1.7",
}
PAIRS: Final = (
    ("a pod of this node", "the outside"),
    ("a pod of this node", "a pod of another node"),
    ("a pod of this node", "multicast"),
    ("a pod of another node", "a pod of this node"),
    ("a pod of another node", "the outside"),
    ("the outside", "a pod of this node"),
    ("the outside", "a pod of another node"),
    ("this node", "a pod of this node"),
    ("this node", "a pod of another node"),
    ("this node", "the outside"),
    ("this node's bridge (cni0)", "the outside"),
    ("this node's bridge (cni0)", "multicast"),
    ("this node's flannel.1", "a pod of another node"),
)
BY_FLANNELDS_NFTABLES: Final = (("the outside", "a pod of another node"), ("this node", "a pod of another node"))
"""The pairs flanneld's nftables mode decides otherwise; tests/kernel/masq/test_flanneld_nftables.py sends them."""
_MARKED: Final = 0x4000


def deciding(sender: str, receiver: str, mark: int = 0) -> Rule | None:
    """The rule that decides about the source address; None: no rule of ours."""
    chain = next(chain for chain in CHAINS if chain.family is IPV4 and chain.table == "nat")
    place = deciding_rule(chain, Packet(IPv4Address(ADDRESSES[sender]), IPv4Address(ADDRESSES[receiver]), mark))
    return None if place is None else chain.rules[place]


def flannelds_nftables_table() -> str:
    """The rows of the matrix in which a flanneld in nftables mode decides otherwise, as Markdown."""
    lines = ["| from | to | with masq the receiver sees | with flanneld's nftables mode |", "|---|---|---|---|"]
    lines += [f"| {sender} | {receiver} | **the node** | the sender |" for sender, receiver in BY_FLANNELDS_NFTABLES]
    return "\n".join(lines) + "\n"


def table() -> str:
    """The matrix as Markdown."""
    lines = ["| from | to | the receiver sees | because |", "|---|---|---|---|"]
    for sender, receiver in PAIRS:
        rule = deciding(sender, receiver)
        seen = "**the node**" if rule and rule.action is Action.MASQUERADE else "the sender"
        because = rule.reason if rule else "No rule of ours matches."
        lines.append(f"| {sender} | {receiver} | {seen} | {because} |")
    marked = {deciding(sender, receiver, _MARKED) for sender, receiver in PAIRS}
    (rule,) = marked
    assert rule is not None
    lines.append(
        f"| any source, with kube-proxy's mark | any destination | what kube-proxy decides | {rule.reason} |"
    )
    return "\n".join(lines) + "\n"
