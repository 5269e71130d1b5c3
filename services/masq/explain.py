"""What becomes of a packet that leaves the node, from the model. Pure."""

from dataclasses import dataclass

from services.core.family import Address
from services.masq.rules import Action, Chain, Rule


@dataclass(frozen=True, slots=True)
class Packet:
    """What the rules look at."""

    source: Address
    destination: Address
    mark: int = 0


def matches(rule: Rule, packet: Packet) -> bool:
    """Whether all that the rule asks for holds."""
    if rule.mark is not None and packet.mark & rule.mark[1] != rule.mark[0]:
        return False
    if rule.source is not None and not rule.source.holds(packet.source):
        return False
    return rule.destination is None or rule.destination.holds(packet.destination)


def deciding_rule(chain: Chain, packet: Packet) -> int | None:
    """The place of the first rule that matches; None if none does."""
    return next((place for place, rule in enumerate(chain.rules) if matches(rule, packet)), None)


def explanation(packet: Packet, rule: Rule | None) -> str:
    """In words, for the rule that decides; None: no rule of ours does."""
    way = f"{packet.source} to {packet.destination}"
    if rule is None:
        return f"{way}: no rule of ours matches; the source address stays, unless another program's rule changes it."
    if rule.action is Action.MASQUERADE:
        return f"{way}: leaves under the address of the interface it leaves by. {rule.reason}"
    return f"{way}: the source address stays, unless another program's rule changes it. {rule.reason}"
