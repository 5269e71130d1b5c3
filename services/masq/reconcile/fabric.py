"""Keeps the fabric guard in the kernel, for the leases that the feed brings.

Guarantees: before there is a complete table the guard of before stays as it is; while the lease service is away no
member goes; a change of a lease changes its own members alone.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from ipaddress import ip_network
from typing import Final

from flannelette.services.core.conditions import Condition, found
from flannelette.services.core.errors import Unavailable
from flannelette.services.core.family import Address, Network
from flannelette.services.core.leases.lease import Lease
from flannelette.services.core.leases.table import Table
from flannelette.services.core.network import NetworkConfig
from flannelette.services.masq.firewalls.guard_table import GuardRule, GuardTable
from flannelette.services.masq.guard import (
    GuardMode,
    GuardSettings,
    Member,
    Membership,
    guard_of,
    member_of,
    members_of,
    verdict,
)
from flannelette.services.masq.rules import Packet
from flannelette.services.runtime.telemetry.logs import get_logger

log = get_logger()

_SECONDS: Final = 5.0
"""Longest time until the table is put back that another program has changed."""
_MOST_NAMED: Final = 8


class FabricGuard:
    """The guard of one network on this node."""

    def __init__(
        self, node: str, settings: GuardSettings, table: GuardTable, own_addresses: Callable[[], Iterable[Network]]
    ) -> None:
        self.settings = settings
        self.failure = ""
        """Why there is no guard though one is wanted, or not the right one; empty: there is."""
        self._node, self._table, self._own_addresses = node, table, own_addresses
        self._members = Membership()
        self._network: NetworkConfig | None = None
        self._leases: Mapping[str, Lease] = {}
        """The table of leases that the members are of."""
        self._own: Lease | None = None
        self._warning = ""
        """Why the guard only counts though it shall drop; empty: it drops."""
        self._touched = set[Member]()
        self._is_decided, self._is_paused = False, False

    @property
    def reason(self) -> str:
        """What the guard does, for the status."""
        if self.settings.mode is GuardMode.OFF:
            return ""
        if self.failure:
            return f"the fabric guard is not in place: {self.failure}"
        if not self._is_decided:
            return "the fabric guard waits for the leases"
        if guard_of(self._network, self._effective(), ()) is None:
            return "no fabric guard: packets of this backend need none"
        if self._warning:
            return f"the fabric guard only counts: {self._warning}"
        if self.settings.mode is GuardMode.WARN:
            return "the fabric guard only counts: --fabric-guard=warn"
        inside = "" if self.settings.is_masquerading else "; sources inside are only counted, without --ip-masq"
        return f"the fabric guard drops what is no peer's{inside}"

    def learn(
        self,
        table: Table,
        touched: Iterable[str] | None,
        network: NetworkConfig | None,
        unmasked: Iterable[Network],
    ) -> None:
        """Takes the present table, of which only these leases differ from the last one; None: any may."""
        if self.settings.mode is GuardMode.OFF or not (table.synced and network):
            return
        if not self._is_decided and table.awaited:
            return  # leases of another cluster are not known yet, and what is in the kernel may know them
        if table.leases is not self._leases:
            touched, self._leases = None, table.leases
        self._is_decided, self._network = True, network
        names = {*table.leases, *self._members.names} if touched is None else touched
        for name in names:
            self._put(name, table.leases.get(name))
        self._touched.update(self._members.put("", map(member_of, unmasked)))  # a name that no lease has
        self._apply()

    async def run(self) -> None:
        """Looks after the table until cancelled."""
        while True:
            await asyncio.sleep(_SECONDS)
            await self._tidy()

    def resync(self) -> None:
        """Puts the guard in place at once, also after a teardown."""
        self._is_paused = False
        self._apply()

    def teardown(self, *, dry_run: bool) -> list[str]:
        """Removes the table until `resync`; returns the commands. Raises Unavailable."""
        self._is_paused |= not dry_run
        return self._table.remove(dry_run=dry_run)

    def rules(self) -> list[GuardRule]:
        """The rules with their counters; none if they cannot be read."""
        try:
            return [] if self._is_paused else self._table.rules()
        except Unavailable:
            return []

    def verdict(self, packet: Packet, hook: str, incoming: str, protocol: int, port: int) -> str:
        """What the guard does with a packet, one sentence; empty: nothing."""
        guard = None if self._is_paused else guard_of(self._network, self._effective(), self._members.masks)
        why = verdict(guard, self._members.all, packet, hook, incoming, protocol, port) if guard else ""
        if guard is None or not why:
            return ""
        return f"The fabric guard {'drops' if guard.mode is GuardMode.ON else 'counts'} it: {why}."

    def conditions(self) -> list[Condition]:
        """What is wrong: a guard that is wanted and is not there, and senders that are no peers."""
        if self._is_paused or self.settings.mode is GuardMode.OFF:
            return []
        if self.failure:
            return [found("guard.absent", reason=self.failure)]
        try:
            seen, outsiders = self._table.strangers(), self._table.outsiders()
        except Unavailable:
            return []
        is_dropping = self._effective().mode is GuardMode.ON
        verb = _verb(is_dropping)
        names = self._members.names_of(seen.values())
        leases = {sender: self._leases.get(names.get(inside, "")) for sender, inside in seen.items()}
        told = [_of_peer(sender, lease, verb) for sender, lease in leases.items() if lease][:_MOST_NAMED]
        strangers = [sender for sender, lease in leases.items() if not lease]
        if strangers:
            told.append(found("guard.strangers", addresses=_named(strangers), verb=verb))
        if outsiders:
            verb = _verb(is_dropping and self.settings.is_masquerading)
            told.append(found("guard.outsiders", addresses=_named(outsiders), verb=verb))
        return told

    def close(self) -> None:
        """Frees what the table holds; the rules stay."""
        self._table.close()

    def _put(self, name: str, lease: Lease | None) -> None:
        if lease is not None and lease.node == self._node:
            self._own, lease = lease, None
            self._warning = self._foreign_address()
        members = () if lease is None else members_of(lease)
        self._touched.update(self._members.put(name, members))

    def _foreign_address(self) -> str:
        """Why nobody can tell here which addresses the packets of peers have; empty: those of their leases."""
        own = list(self._own_addresses())
        for address in self._own.addresses if self._own and not self.settings.sources else ():
            if not any(address in network for network in own if network.num_addresses == 1):
                return (
                    f"the public address {address} of this node is none of its own, so that peers behind the same "
                    "translation may send from others than theirs; name them with --fabric-guard-source"
                )
        return ""

    def _effective(self) -> GuardSettings:
        is_warning = self.settings.mode is GuardMode.ON and self._warning
        return self.settings.with_mode(GuardMode.WARN) if is_warning else self.settings

    async def _tidy(self) -> None:
        """Puts the table right, and takes what has left from it, in a thread, because the kernel takes its time."""
        self._apply()
        if not self._is_decided or self._is_paused or self.failure:
            return
        gone = self._table.gone(self._members.all, self._touched)
        self._touched.clear()
        try:
            self._table.repair(self._members.all)
            await asyncio.to_thread(self._table.forget, gone)
        except Unavailable as error:
            log.warning("the fabric guard cannot be looked after; it is tried again", reason=str(error))
        self._touched.update(gone)  # some may be wanted again, or still be there
        self._apply()

    def _apply(self) -> None:
        """Adds what is missing, at once."""
        if not self._is_decided or self._is_paused:
            return
        guard = guard_of(self._network, self._effective(), self._members.masks)
        try:
            if guard is None:
                self._table.remove()
            else:
                self._table.put(guard, self._members.all, self._touched)
            self._touched = {each for each in self._touched if each not in self._members.all}
            self.failure = ""
        except Unavailable as error:
            if str(error) != self.failure:
                log.error("the fabric guard cannot be put in place; it is tried again", reason=str(error))
            self.failure = str(error)


def _verb(is_dropping: bool) -> str:
    return "are dropped" if is_dropping else "are only counted"


def _named(addresses: Sequence[Address]) -> str:
    more = f" and {len(addresses) - _MOST_NAMED} more" if len(addresses) > _MOST_NAMED else ""
    return ", ".join(map(str, addresses[:_MOST_NAMED])) + more


def _of_peer(sender: Address, lease: Lease, verb: str) -> Condition:
    """What is wrong with packets that come from this address and have a source inside of this lease."""
    addresses = " and ".join(str(each) for each in lease.addresses if each.version == sender.version)
    node = lease.node or str(next(iter(lease.cidrs), lease.name))
    flag = f"--fabric-guard-source={ip_network(sender)}"
    return found("guard.sender", node=node, public=addresses or "not known", sender=sender, verb=verb, flag=flag)
