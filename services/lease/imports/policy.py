"""What `--import` and `--export` say: which leases of other clusters come in, and which of ours are shown. Pure.

`Foreign` has the leases of other clusters that are in force beside the own network, and those that are refused.
"""

import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Final

from flannelette.services.core.addresses import exact_cidr
from flannelette.services.core.backend_types import WHERE, IpsecOptions, WireguardOptions, declared_options
from flannelette.services.core.errors import Misconfigured
from flannelette.services.core.family import Network
from flannelette.services.core.formats.gojson import GoObject
from flannelette.services.core.frozen import frozen
from flannelette.services.core.leases.lease import Lease
from flannelette.services.core.leases.table import Change, Removed, Upserted, changes_between
from flannelette.services.core.limits import LONGEST_NAME, MOST_LEASES
from flannelette.services.core.network import NetworkConfig, contains
from flannelette.services.lease.stores.store import Changed, Snapshot

_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", re.ASCII)
_FORM: Final = "NAME=ADDRESS,allow=CIDR[,allow=CIDR...][,ca=FILE,cert=FILE,key=FILE][,server-name=NAME]"
_FILES: Final = ("cert", "key", "ca")
NOTHING: Final = "none"


@frozen
class Import:
    """One use of the flag `--import`."""

    name: str
    """The name of the other cluster."""
    address: str
    """The address of a lease service of the other cluster: `unix:PATH` or HOST:PORT."""
    allow: tuple[Network, ...]
    """The ranges in which its leases may lie."""
    files: tuple[str, ...] = ()
    """Certificate, key and authorities for this connection; empty: those of the process."""
    server_name: str = ""

    def refusal(self, lease: Lease, taken: Sequence[Network]) -> str:
        """Why a lease is not imported; empty: it is. `taken` has the own network's ranges."""
        if lease.cluster:
            return f"it is imported there from cluster {lease.cluster}, and nothing is imported at second hand"
        for cidr in lease.cidrs:
            if not any(contains(allowed, cidr) for allowed in self.allow):
                return f"subnet {cidr} lies outside what --import {self.name} allows: {_list(self.allow)}"
            if own := overlapped(cidr, taken):
                return f"subnet {cidr} overlaps {own}, which is of this cluster's own network"
        is_long = max(len(lease.name), len(lease.node)) + len(self.name) >= LONGEST_NAME
        return "its name is too long" if is_long else ""

    def imported(self, lease: Lease) -> Lease:
        """The lease as it stands in the table of this cluster."""
        node = f"{self.name}/{lease.node}" if lease.node else ""
        name = f"{self.name}/{lease.name}"
        return replace(lease, name=name, node=node, cluster=self.name, expires_at=None, reserved=False)


@frozen
class Export:
    """The value of the flag `--export`."""

    ranges: tuple[Network, ...] | None = None
    """The leases that lie in these are shown; None: all that are ours."""

    def shows(self, lease: Lease) -> bool:
        """Whether other clusters see a lease. What is imported they never do."""
        if lease.cluster or lease.is_idle:
            return False
        return self.ranges is None or all(any(contains(r, cidr) for r in self.ranges) for cidr in lease.cidrs)


ALL_OWN: Final = Export()


def parse_imports(texts: Iterable[str]) -> tuple[Import, ...]:
    """The clusters, of flags or of a variable with several between spaces. Raises Misconfigured."""
    imports: list[Import] = []
    for text in (each for texts_of_one in texts for each in texts_of_one.split()):
        one = _parse(text)
        for other in imports:
            if other.name == one.name:
                raise Misconfigured(f"--import {one.name} is given twice: give each cluster one name")
            for cidr in one.allow:
                if theirs := overlapped(cidr, other.allow):
                    raise Misconfigured(
                        f"--import {one.name} allows {cidr}, which overlaps {theirs} of --import {other.name}: an "
                        "address can be in one cluster only, so let one of them allow less"
                    )
        imports.append(one)
    return tuple(imports)


def parse_export(texts: Iterable[str]) -> Export:
    """The ranges, of flags or of a variable with several between spaces or commas. Raises Misconfigured."""
    words = [each for text in texts for each in text.replace(",", " ").split()]
    if not words:
        return ALL_OWN
    if words == [NOTHING]:
        return Export(())
    return Export(tuple(_network("--export", word) for word in words))


def overlapped(cidr: Network, others: Iterable[Network]) -> Network | None:
    """The first of these that shares an address with the network."""
    return next((each for each in others if contains(each, cidr) or contains(cidr, each)), None)


def own_ranges(network: NetworkConfig) -> tuple[Network, ...]:
    """Where leases of this cluster lie."""
    return (*(n.cidr for n in network.families), *network.beside)


def shown_options(network: NetworkConfig) -> dict[str, int | str]:
    """The backend's options that peers must have alike, as other clusters see them.

    In the place of a PSK stand 16 bits of its digest, over and over: two keys differ there, and nobody can guess one.
    """
    options = network.options
    if not (isinstance(options, WireguardOptions | IpsecOptions) and options.psk):
        return _alike(network)
    bits = sha256(options.psk).digest()[:2]
    text = bits.hex() * 24 if isinstance(options, IpsecOptions) else b64encode(bits * 16).decode()
    return _alike(network) | {"PSK": text}


def mismatch(own: NetworkConfig, theirs: NetworkConfig) -> str:
    """Why the nodes of two clusters cannot be peers, though their leases are good; empty: they can.

    `theirs` is as their lease service shows it.
    """
    if own.backend_type != theirs.backend_type:
        return f"its backend is {theirs.backend_type}, and here it is {own.backend_type}"
    here, there = shown_options(own), _alike(theirs)
    for option in there:
        if here[option] != there[option]:
            return f"its {own.backend_type} has {option} {there[option]}, and here it is {here[option]}"
    if isinstance(theirs.options, WireguardOptions | IpsecOptions) and here.get("PSK", "") != _written_psk(theirs):
        return f"its {own.backend_type} has another PSK, or one of the two has none"
    missing = [n.family for n in own.families if theirs.family(n.family) is None]
    return f"it has no {missing[0]}, which this network has" if missing else ""


def _written_psk(network: NetworkConfig) -> str:
    """Returns the option PSK as the network configuration has it; empty: there is none."""
    backend = GoObject.parse(network.source, WHERE).object("Backend")
    return backend.secret("PSK") if backend else ""


def _alike(network: NetworkConfig) -> dict[str, int | str]:
    """Returns the options that peers must have alike, as the backends take them, by name."""
    options = declared_options(type(network.options))
    return {each.name: getattr(network.options, name) for name, each in options.items() if each.is_alike}


def _parse(text: str) -> Import:
    name, equals, rest = text.partition("=")
    if not equals or not _NAME.fullmatch(name):
        raise Misconfigured(f"--import is {text!r}: write {_FORM}")
    address, *options = rest.split(",")
    allow: list[Network] = []
    given: dict[str, str] = {}
    for option in options:
        key, _, value = option.partition("=")
        if key == "allow":
            allow.append(_network(f"--import {name}: allow", value))
        elif key not in (*_FILES, "server-name"):
            raise Misconfigured(f"--import {name}: {option!r} is no option: write {_FORM}")
        elif not value or key in given:
            fault = "is given twice" if value else "has no value"
            raise Misconfigured(f"--import {name}: {key}= {fault}: write {_FORM}")
        else:
            given[key] = value
    if not address or not allow:
        what = "the address of its lease service" if not address else "allow=CIDR, where its leases may lie"
        raise Misconfigured(f"--import {name} lacks {what}: write {_FORM}")
    files = tuple(given[key] for key in _FILES if key in given)
    if len(files) not in (0, len(_FILES)):
        raise Misconfigured(f"--import {name} has some of cert=, key= and ca=: give all three or none")
    return Import(name, address, tuple(allow), files, given.get("server-name", ""))


def _network(what: str, text: str) -> Network:
    network = exact_cidr(text)
    if network is None or network.prefixlen == 0:
        why = "every address" if network else "no network, or has bits after its prefix length"
        example = "10.6.0.0/16 or fd00:10:6::/48"
        raise Misconfigured(f"{what} is {text!r}, which is {why}: use a network such as {example}")
    return network


def _list(networks: Iterable[Network]) -> str:
    return ", ".join(map(str, networks))


_FULL: Final = (
    "the import is full: imported leases may be at most half of --max-leases ({most}), and no more than own leases "
    "leave free; raise --max-leases if so many are meant"
)


@dataclass
class ClusterLeases:
    """The leases of one cluster: what it shows, and what of it is in force."""

    policy: Import
    shown: dict[str, Lease] = field(default_factory=dict)
    """Leases by their names there."""
    in_force: dict[str, Lease] = field(default_factory=dict)
    """Leases by their names here."""
    refused: dict[str, str] = field(default_factory=dict)
    """Why a lease or a range is not imported, by its name here."""
    crowded_out: set[str] = field(default_factory=set)
    """The names in `shown` that are refused for want of room alone."""
    has_answered: bool = False
    """Whether the cluster has answered this process. Before that, `shown` is what a file remembers, or empty."""


class Foreign:
    """The leases of all clusters beside an own network, in the broker's table (services/lease/watch.py).

    Guarantees: no lease is in force outside of what its `--import` allows, nor one that overlaps the own network;
    each is judged for itself, and again when the own network changes. Before that is known, none is in force. At most
    half of the table is imported, and no more than own leases leave free, whoever writes those: a fuller table would
    be refused by every node. Where there is no room for all, the last ones by name are refused, but none that is in
    force; they come into force as soon as there is room.
    """

    def __init__(
        self,
        clusters: Sequence[ClusterLeases] = (),
        on_refusals: Callable[[Mapping[str, str]], None] = lambda refused: None,
        most: int = MOST_LEASES,
    ) -> None:
        """`most`: leases that the table may have."""
        self.clusters = clusters
        self._on_refusals = on_refusals
        """Called with the names that are newly refused, or for another reason, and the reasons."""
        self._most = most
        self.own_leases = 0
        """How many leases the own store has."""
        self.network: NetworkConfig | None = None
        """Configuration of the own network; None: not known yet."""
        self.leases: dict[str, Lease] = {}
        """All leases that are in force."""
        self._awaited_above: frozenset[str] = frozenset()

    @property
    def awaited(self) -> frozenset[str]:
        """The clusters whose leases are not known yet: here, or to the lease service above a relay."""
        here = (c.policy.name for c in self.clusters if self.network is None or not c.has_answered)
        return self._awaited_above.union(here)

    @property
    def ranges(self) -> tuple[Network, ...]:
        """Where imported leases may lie, whether or not there are any."""
        taken = own_ranges(self.network) if self.network else ()
        return tuple(r for each in self.clusters for r in each.policy.allow if not overlapped(r, taken))

    @property
    def claimed(self) -> tuple[Network, ...]:
        """What other clusters may claim of the own network: no node gets it."""
        taken = own_ranges(self.network) if self.network else ()
        return tuple(r for each in self.clusters for r in each.policy.allow if overlapped(r, taken))

    def merged(self, event: Snapshot | Changed, table: Mapping[str, Lease]) -> Snapshot | Changed:
        """An event of the own store, with what is imported; `table` is the broker's before it."""
        if event.awaited is not None:
            self._awaited_above = event.awaited
        if not self.clusters:
            return event
        if isinstance(event, Snapshot):
            self.own_leases = len(event.leases)
        else:
            names = {change.lease.name for change in event.changes if isinstance(change, Upserted)}
            self.own_leases += len(names - table.keys() - self.leases.keys())
        withdrawn, judged = self._withdrawn(), tuple[Change, ...]()
        if event.network is not None:
            self.network = event.network
            judged = tuple(change for each in self.clusters for change in self.judge(each))
            event = replace(event, network=replace(event.network, imported=self.ranges))
        if isinstance(event, Snapshot):
            return replace(event, leases={**event.leases, **self.leases}, awaited=self.awaited)
        return replace(event, changes=(*withdrawn, *event.changes, *judged), awaited=self.awaited)

    def admitted(self) -> tuple[Change, ...]:
        """What comes into force because there is room for it now."""
        crowded_out = (each for each in self.clusters if each.crowded_out and self._room > 0)
        return tuple(change for each in crowded_out for change in self.judge(each, set(each.crowded_out)))

    def _withdrawn(self) -> tuple[Change, ...]:
        """What goes out of force because own leases need the room."""
        names = sorted(self.leases)[max(self._room + len(self.leases), 0) :] if self._room < 0 else []
        for cluster in self.clusters if names else ():
            refused = dict(cluster.refused)
            for here in cluster.in_force.keys() & set(names):
                del cluster.in_force[here], self.leases[here]
                self._refuse_for_room(cluster, here)
            self._tell_refusals(cluster, refused)
        return tuple(map(Removed, names))

    @property
    def _room(self) -> int:
        return min(self._most // 2, self._most - self.own_leases) - len(self.leases)

    def judge(self, cluster: ClusterLeases, names: Iterable[str] | None = None) -> tuple[Change, ...]:
        """What it changes that these leases of a cluster (None: all) have changed, or the own network has."""
        if self.network is None:
            return ()
        taken, policy, refused = own_ranges(self.network), cluster.policy, dict(cluster.refused)
        if names is None:
            names = {*cluster.shown, *(name.partition("/")[2] for name in cluster.in_force)}
            cluster.refused = {
                str(cidr): f"--import {policy.name} allows {cidr}, which overlaps {own} of this cluster's own network"
                for cidr in policy.allow
                if (own := overlapped(cidr, taken))
            }
        after: dict[str, Lease] = {}
        judged = {f"{policy.name}/{name}": cluster.shown.get(name) for name in names}
        before = {here: cluster.in_force.pop(here) for here in judged.keys() & cluster.in_force.keys()}
        for here in before:
            del self.leases[here]
        room = self._room
        for here, lease in sorted(judged.items(), key=lambda each: (each[0] not in before, each[0])):
            cluster.refused.pop(here, None)
            cluster.crowded_out.discard(here.partition("/")[2])
            if lease is None:
                continue
            if reason := policy.refusal(lease, taken):
                cluster.refused[here] = reason
            elif len(after) >= room:
                self._refuse_for_room(cluster, here)
            else:
                after[here] = policy.imported(lease)
        cluster.in_force |= after
        self.leases |= after
        self._tell_refusals(cluster, refused)
        return changes_between(before, after)

    def _refuse_for_room(self, cluster: ClusterLeases, here: str) -> None:
        cluster.refused[here] = _FULL.format(most=self._most)
        cluster.crowded_out.add(here.partition("/")[2])

    def _tell_refusals(self, cluster: ClusterLeases, before: Mapping[str, str]) -> None:
        if new := {here: reason for here, reason in cluster.refused.items() if before.get(here) != reason}:
            self._on_refusals(new)


class OwnLeases(Mapping[str, Lease]):
    """The leases of a table without those that are imported. A view: it copies nothing."""

    def __init__(self, table: Mapping[str, Lease], imported: Mapping[str, Lease]) -> None:
        self._table = table
        self._imported = imported

    def __getitem__(self, name: str) -> Lease:
        if name in self._imported:
            raise KeyError(name)
        return self._table[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._table if name not in self._imported)

    def __len__(self) -> int:
        return max(len(self._table) - len(self._imported), 0)
