"""The rule model, a pure function: which packets leave a node under the node's address, and that the node forwards
them.

One model for both families and every firewall; a firewall renders it and compares it. What is no chain in the
result of `wanted_chains` is left as it is; a chain without rules shall not exist, nor the jump to it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import field, replace
from enum import StrEnum
from ipaddress import summarize_address_range
from typing import Final

from flannelette.services.core.family import FAMILIES, Address, Family, Network, family_of
from flannelette.services.core.frozen import frozen
from flannelette.services.core.network import NetworkConfig

NFT_TABLE: Final = "flannelette"
"""Table of the network without a name; a named one's is `flannelette-NAME`."""
KUBE_PROXY_MARK: Final = (0x4000, 0x4000)
"""Value and mask by which kube-proxy marks what it will masquerade itself."""


class Action(StrEnum):
    """What becomes of a packet that a rule matches."""

    RETURN = "RETURN"
    """The chain has nothing more to say about it."""
    ACCEPT = "ACCEPT"
    """The node forwards the packet."""
    MASQUERADE = "MASQUERADE"
    """The packet leaves under the address of the interface it leaves by."""
    SNAT = "SNAT"
    """The packet leaves under an address of the rule."""


TRANSLATIONS: Final = (Action.MASQUERADE, Action.SNAT)
"""Actions that give the packet another source."""


@frozen
class Pool:
    """Addresses of one family under which packets leave, from the first to the last."""

    first: Address
    last: Address

    def __str__(self) -> str:
        """Writes it as every firewall does, and as `--ip-masq-source` has it."""
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"

    @property
    def networks(self) -> tuple[Network, ...]:
        """The networks that are these addresses and no other."""
        return tuple(summarize_address_range(self.first, self.last))

    @property
    def is_one(self) -> bool:
        """Whether it is one address. Of several, a pod has the same for all that it sends."""
        return self.first == self.last


@frozen
class AddressMatch:
    """Addresses inside a network, or all the others."""

    cidr: Network
    negated: bool = False

    def holds(self, address: Address) -> bool:
        """Whether it is one of these."""
        return (address in self.cidr) is not self.negated


@frozen
class Rule:
    """One rule: a packet that all its matches hold for meets the action."""

    action: Action
    reason: str
    """Why it exists, one sentence."""
    source: AddressMatch | None = None
    destination: AddressMatch | None = None
    mark: tuple[int, int] | None = None
    """Value and mask of the packet's mark; None: any."""
    fully_random: bool = False
    """A translation chooses random source ports: they cannot be guessed, and two CPUs rarely choose the same."""
    pool: Pool | None = None
    """The addresses of SNAT; None: of any other action."""


@frozen
class Chain:
    """One of our chains, with the jump to it from a chain of the kernel's."""

    family: Family
    table: str
    """Table of the chain: `nat` or `filter`."""
    hook: str
    """The kernel's chain, which jumps to ours after the rules of other programs."""
    name: str
    comment: str
    """Comment on every rule and on the jump: how people recognise them."""
    reason: str
    """Why the jump exists, one sentence."""
    rules: tuple[Rule, ...]
    """Empty: chain and jump shall not exist."""
    networks: tuple[Network, ...] | None = field(default=None, compare=False)
    """What is ours: flannel's rules about other networks stay in the chain, and it with them. None: everything is."""
    nft_table: str = field(default=NFT_TABLE, compare=False)
    """The nftables table of each family that is ours."""
    replaces_old: bool = field(default=False, compare=False)
    """Rules of a flannel before v0.20, which stand in the hook itself, are searched and shall not exist."""


@frozen
class RuleSettings:
    """What the operator chose."""

    masquerade: bool
    """Whether packets are masqueraded: `--ip-masq`."""
    forward: bool
    """Whether rules let the overlay's packets be forwarded: `--iptables-forward-rules`."""
    fully_random: bool
    """Whether source ports are chosen at random: not `--ip-masq-fully-random-disable`."""
    excluded: tuple[Network, ...] = ()
    """`--ip-masq-exclude`: where pods send under their own addresses, beside those of the network configuration."""
    pools: tuple[Pool, ...] = ()
    """`--ip-masq-source`: under which addresses packets leave, one of each family at most. A family without one has
    the address of the interface."""
    allowed: tuple[Network, ...] = ()
    """`--allowed-network`: no network outside of these is taken. Empty: any."""
    suffix: str = ""
    """What follows the names of what the network has of its own: `-blue`; empty: it has no name."""

    @property
    def nft_table(self) -> str:
        """See Chain."""
        return f"{NFT_TABLE}{self.suffix}"


def wanted_chains(
    network: NetworkConfig | None, subnets: Iterable[Network], settings: RuleSettings
) -> tuple[Chain, ...]:
    """The chains of both families, IPv4 first: what is decided so far.

    Without a network that is what is switched off only. Without the own subnet of a family its masquerade rules
    are not decided. A family that the network does not have shall have no chains.
    """
    own = {family_of(subnet): subnet for subnet in subnets}
    chains: list[Chain] = []
    for family in FAMILIES:
        row = network.family(family) if network else None
        enabled = network is None or row is not None
        cidrs = network.cidrs(family) if network else ()
        subnet = own.get(family)
        if not (settings.masquerade and enabled):
            chains.append(_masquerade_chain(family, ()))
        elif cidrs and subnet:
            names = (each for each in excluded(network, settings) if each.version == family.version)
            kept = [AddressMatch(each) if each.prefixlen else None for each in names]  # /0: rules ask for no address
            rules = _masquerade_rules(family, cidrs, subnet, kept, settings)
            chains.append(_masquerade_chain(family, rules))
        if not (settings.forward and enabled):
            chains.append(_forward_chain(family, ()))
        elif cidrs:
            chains.append(_forward_chain(family, _forward_rules(cidrs)))
    return tuple(chains)


def excluded(network: NetworkConfig | None, settings: RuleSettings) -> tuple[Network, ...]:
    """Returns the networks that pods reach under their own addresses, each once."""
    return tuple(dict.fromkeys((*settings.excluded, *(network.no_masquerade if network else ()))))


def no_chains() -> tuple[Chain, ...]:
    """What is wanted after a teardown: nothing of ours, in either family."""
    return tuple(make(family, ()) for family in FAMILIES for make in (_masquerade_chain, _forward_chain))


def belonging(
    chains: Iterable[Chain], networks: Iterable[Network] | None, nft_table: str = NFT_TABLE
) -> tuple[Chain, ...]:
    """The chains, of which only rules about these networks are ours, and of the nftables tables this one."""
    ours = None if networks is None else tuple(networks)
    return tuple(replace(chain, networks=ours, nft_table=nft_table) for chain in chains)


def _masquerade_chain(family: Family, rules: tuple[Rule, ...]) -> Chain:
    reason = "Decides which packets leave under the node's address, after the rules of other programs."
    return Chain(family, "nat", "POSTROUTING", "FLANNEL-POSTRTG", "flanneld masq", reason, rules)


def _forward_chain(family: Family, rules: tuple[Rule, ...]) -> Chain:
    reason = (
        "Lets the node forward the overlay's packets that no other rule decides about, also where its policy is DROP."
    )
    return Chain(family, "filter", "FORWARD", "FLANNEL-FWD", "flanneld forward", reason, rules)


def _masquerade_rules(
    family: Family,
    networks: Sequence[Network],
    subnet: Network,
    excluded: Sequence[AddressMatch | None],
    settings: RuleSettings,
) -> tuple[Rule, ...]:
    """Makes the rules that masquerade. Packets between the networks count as inside; there are several while a change
    of the network is pending.
    """
    inside, outside = [AddressMatch(network) for network in networks], AddressMatch(networks[0], negated=True)
    in_subnet, fully_random = AddressMatch(subnet), settings.fully_random
    pool = next((each for each in settings.pools if each.first.version == family.version), None)
    return (
        Rule(
            Action.RETURN,
            "kube-proxy masquerades the packets that it has marked; a second masquerade would be wrong.",
            mark=KUBE_PROXY_MARK,
        ),
        *(
            Rule(Action.RETURN, "Pods of this node talk to other pods under their own address.", in_subnet, network)
            for network in inside
        ),
        Rule(Action.RETURN, "Other pods talk to pods of this node under their own address.", inside[0], in_subnet),
        Rule(Action.RETURN, "Clients from outside stay visible to the pods of this node.", outside, in_subnet),
        *(
            Rule(Action.RETURN, "These hosts have a route back to pods, as the operator says.", network, kept)
            for network in inside
            for kept in excluded
        ),
        *(
            Rule(
                Action.SNAT if pool else Action.MASQUERADE,
                "Hosts outside the overlay have no route back to a pod; multicast needs no answer.",
                network,
                AddressMatch(family.multicast, negated=True),
                fully_random=fully_random,
                pool=pool,
            )
            for network in inside
        ),
        *(
            Rule(
                Action.MASQUERADE,
                "Replies from pods of other nodes must return through this node, which forwarded the packets.",
                AddressMatch(network.cidr, negated=True),
                network,
                fully_random=fully_random,
            )
            for network in inside
        ),
    )


def _forward_rules(networks: Sequence[Network]) -> tuple[Rule, ...]:
    return tuple(
        rule
        for network in networks
        for rule in (
            Rule(Action.ACCEPT, "The node forwards what pods send.", source=AddressMatch(network)),
            Rule(Action.ACCEPT, "The node forwards what is sent to pods.", destination=AddressMatch(network)),
        )
    )


@frozen
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
    """Explains to an operator what happens to the packet, given the rule that decides, or None."""
    way = f"{packet.source} to {packet.destination}"
    if rule is None:
        return f"{way}: no rule of ours matches; the source address stays, unless another program's rule changes it."
    if rule.action is Action.MASQUERADE:
        return f"{way}: leaves under the address of the interface it leaves by. {rule.reason}"
    if rule.pool is not None:
        which = f"the address {rule.pool}" if rule.pool.is_one else f"an address of {rule.pool}"
        return f"{way}: leaves under {which} (--ip-masq-source). {rule.reason}"
    return f"{way}: the source address stays, unless another program's rule changes it. {rule.reason}"
