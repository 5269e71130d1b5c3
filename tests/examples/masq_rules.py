"""What a feed tells of network and lease goes in; the chains that masq wants, and what they do, come out."""

from collections.abc import Sequence
from ipaddress import ip_address
from typing import Any, Final

from flannelette.services.core.family import Network
from flannelette.services.core.leases.table import Step, Table
from flannelette.services.core.network import NetworkConfig
from flannelette.services.masq.reconcile.inputs import RuleInputs, next_inputs
from flannelette.services.masq.rules import (
    Action,
    Packet,
    RuleSettings,
    deciding_rule,
    explanation,
    no_chains,
    wanted_chains,
)

NO_CHAINS: Final = no_chains()
"""Chains that shall not exist."""


def chains(
    network: NetworkConfig | None,
    subnets: Sequence[Network],
    *,
    masquerade: bool = True,
    forward: bool = True,
    fully_random: bool = True,
) -> Any:
    """The chains for a network and the node's subnets, by these flags."""
    settings = RuleSettings(masquerade=masquerade, forward=forward, fully_random=fully_random)
    return wanted_chains(network, tuple(subnets), settings)


def is_masquerading(rule: Any) -> bool:
    return bool(rule.action is Action.MASQUERADE)


def decided_by(chain: Any, source: str, destination: str, mark: int = 0) -> int | None:
    """Which rule of the chain decides about a packet."""
    return deciding_rule(chain, Packet(ip_address(source), ip_address(destination), mark=mark))


def explained(source: str, destination: str, rule: Any) -> str:
    """What `explain` says of a packet that this rule decides about; None: no rule does."""
    return explanation(Packet(ip_address(source), ip_address(destination)), rule)


class Masq:
    """masq of node n1, which follows a feed. It believes networks within `allowed`; None: any."""

    def __init__(self, allowed: Sequence[Network] | None = None, connected: Sequence[Network] = ()) -> None:
        """`connected`: the networks that the host is connected to."""
        self._table = Table()
        self._known = RuleInputs()
        self._limits: dict[str, Any] = {"connected": tuple(connected)}
        if allowed is not None:
            self._limits["allowed"] = tuple(allowed)

    def learns(self, *steps: Step) -> "Masq":
        for step in steps:
            self._table.fold(step)
            self._known = next_inputs(self._known, self._table, "n1", **self._limits)
        return self

    def starts(self, *, cached: NetworkConfig | None = None) -> "Masq":
        """One that starts now, with what the feed has told, and perhaps a network that the one before has left."""
        started = Masq()
        started._table, started._limits = self._table, self._limits
        started._known = next_inputs(RuleInputs(), self._table, "n1", **self._limits, cached=cached)
        return started

    @property
    def network(self) -> NetworkConfig | None:
        """The network in force."""
        return self._known.network

    @property
    def network_error(self) -> str:
        return self._known.network_error

    @property
    def subnets(self) -> tuple[Network, ...]:
        """The node's own, in force."""
        return self._known.subnets

    @property
    def has_lease(self) -> bool:
        return self._known.has_lease

    @property
    def reasons(self) -> tuple[str, str]:
        """What is said of the network, and of the lease; empty: all is well."""
        return self._known.reasons("n1")
