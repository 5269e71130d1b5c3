"""The model of flannel's prefix in etcd: events go in; leases, holders and what to repair come out. Pure.

The keys under the prefix and their values are leases, holders, sessions and the configuration. An entry is flannel's
lease key and our holder key beside it. The watch, AcquireLease and the operator's calls all use the model: watchers
are told what it serves, and transactions (`transactor.py`) are made of what it holds.
"""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import field, replace
from enum import Enum, auto
from hashlib import sha256
from ipaddress import IPv4Address
from itertools import groupby, islice
from types import MappingProxyType
from typing import Final, NamedTuple, TypeVar

from flannelette.services.core.addresses import format_address, parse_address
from flannelette.services.core.errors import InvalidInput, NotYet
from flannelette.services.core.family import Address, Family
from flannelette.services.core.formats.gojson import GoObject
from flannelette.services.core.frozen import frozen
from flannelette.services.core.ipam import Claim, Claims, SubnetPool, Usage, is_another
from flannelette.services.core.leases.conflicts import identities_of
from flannelette.services.core.leases.flannel_json import format_value, parse_key, parse_lease
from flannelette.services.core.leases.lease import Lease
from flannelette.services.core.leases.table import Change, Removed, Upserted
from flannelette.services.core.limits import LONGEST_NAME, LONGEST_REASON
from flannelette.services.core.network import NetworkConfig, parse_network
from flannelette.services.lease.stores.etcd.values import DeletedKey, Event, Item, Newest, Position, WatchBatch
from flannelette.services.lease.stores.store import Changed, Snapshot

_USUAL: Final = re.compile(
    r'\{"node":"([A-Za-z0-9._-]{1,253})","public_ip":"([0-9.]*)","public_ipv6":"([0-9a-f:.]*)"'
    r'(?:,"machine":"([A-Za-z0-9-]{1,64})")?(?:,"value":"([0-9a-f]{16})")?\}',
    re.ASCII,
)
"""What we write, which can mean nothing else: most holders need no JSON parser."""

_SESSION_MACHINE: Final = re.compile(rb'"machine":"([A-Za-z0-9-]{1,64})"')


@frozen
class Holder:
    """A node and the public addresses it had published when it said so."""

    node: str
    public_ip: str
    """Public IPv4 address; empty: none."""
    public_ipv6: str
    """Public IPv6 address; empty: none."""
    machine: str = ""
    """The token of the node's machine; empty: unknown, as of releases before 0.3."""
    value: str = ""
    """A digest of the lease key's value that was put beside it; empty: unknown, as of releases before 0.3."""

    @property
    def addresses(self) -> tuple[Address, ...]:
        """The public addresses, IPv4 first; what is no address is left out."""
        found = map(parse_address, (self.public_ip, self.public_ipv6))
        return tuple(address for address in found if address is not None)

    def holds(self, lease: Lease) -> bool:
        """Whether this is still true of the lease: a flanneld that took it over may publish other addresses."""
        if len(lease.subnets) == 1 and isinstance(address := lease.subnets[0].public_address, IPv4Address):
            return self.public_ip == format_address(address) and not self.public_ipv6  # as nearly all
        return (self.public_ip, self.public_ipv6) == _addresses(lease)


def is_foreign(item: Item, holder_item: Item) -> bool:
    """Whether another program has written the holder: a lease service puts a lease and its holder on one etcd lease.

    Such a holder counts for nothing. A reservation hangs on no etcd lease, so that this cannot be told of its holder.
    """
    return item.etcd_lease not in (0, holder_item.etcd_lease) and holder_item.revision > item.revision


def is_overwritten(
    item: Item, holder_item: Item, holder: Holder, lease: Lease | None, *, is_alive: bool = False
) -> bool:
    """Whether another program has written the value of a lease that the holder holds. `lease`: what the value says.

    The key is the one that the holder was written beside, and now it says a first public address that is not the
    holder's, or nothing that can be read. Neither a lease service nor a flanneld does that: a flanneld knows its
    lease by that address, and takes no key that another has. A flanneld that takes the node's place says another MAC
    or key; but while the node has a session (`is_alive`) nobody takes its place, and a lease service that puts
    another value puts the holder with it.
    """
    if not item.created <= holder_item.revision < item.revision:
        return False  # as nearly all
    first = next(iter(holder.addresses), None)
    if first is not None and (lease is None or first not in lease.addresses):
        return True
    return is_alive and holder.value not in ("", digest(item.value))


def digest(value: bytes) -> str:
    """Digest of the value of a lease key, for the holder key beside it."""
    return sha256(value).hexdigest()[:16]


def holder_of(lease: Lease, machine: str = "") -> Holder:
    """The holder to write beside a lease that this machine of the node holds."""
    return Holder(lease.node, *_addresses(lease), machine, digest(format_value(lease).encode()))


def parse_holder(name: str, value: bytes) -> Holder:
    """Reads the one of a lease. Raises InvalidInput, naming the key."""
    parse_key(name)  # raises if it is none
    if usual := _USUAL.fullmatch(value.decode(errors="replace")):
        return Holder(usual[1], usual[2], usual[3], usual[4] or "", usual[5] or "")
    key = f"holders/{name}"
    document = GoObject.parse(value, f"the value of {key}")
    holder = Holder(*(document.text(name) for name in ("node", "public_ip", "public_ipv6", "machine", "value")))
    if not holder.node:
        raise InvalidInput(f"the value of {key} names no node")
    if len(holder.node) > LONGEST_NAME:
        raise InvalidInput(f"the node in the value of {key} has {len(holder.node)} characters: no name is so long")
    if len(holder.machine) > LONGEST_NAME:
        raise InvalidInput(f"the machine in the value of {key} has {len(holder.machine)} characters: no token has")
    if len(holder.value) > LONGEST_NAME:
        raise InvalidInput(f"the digest in the value of {key} has {len(holder.value)} characters: none has")
    return holder


def format_holder(holder: Holder) -> bytes:
    """The value, as compact JSON."""
    document = {"node": holder.node, "public_ip": holder.public_ip, "public_ipv6": holder.public_ipv6}
    if holder.machine:
        document["machine"] = holder.machine
    if holder.value:
        document["value"] = holder.value
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def _addresses(lease: Lease) -> tuple[str, str]:
    """The public addresses, IPv4 first; empty: none."""
    ipv4 = ipv6 = ""
    for subnet in lease.subnets:
        if subnet.public_address is None:
            continue
        if subnet.cidr.version == 4:
            ipv4 = format_address(subnet.public_address)
        else:
            ipv6 = format_address(subnet.public_address)
    return ipv4, ipv6


def format_session(service: str, machine: str) -> bytes:
    """The value of a session: the lease service to which the node is connected, and the node's machine."""
    document = {"service": service} | ({"machine": machine} if machine else {})
    return json.dumps(document, separators=(",", ":")).encode()


def machine_of_session(value: bytes) -> str:
    """The token in the value of a session; empty: unknown."""
    found = _SESSION_MACHINE.search(value)
    return found[1].decode() if found else ""


class KeyKind(Enum):
    """The kind of a key."""

    CONFIG = auto()
    """The configuration of the network."""
    SUBNET = auto()
    """A lease; the name is the rest of the key, not yet checked."""
    HOLDER = auto()
    """The node that holds the lease of the same name."""
    SESSION = auto()
    """A note that a node's dataplane is connected to a lease service; the name is the node's."""
    FOREIGN = auto()
    """A key under what flannel watches (the prefix `subnets`, without a closing slash) that is no lease."""
    RELEASED = auto()
    """The leases that were removed on purpose last."""
    OTHER = auto()
    """Any other key, which has no meaning."""


_DIRECTORIES: Final = {b"subnets": KeyKind.SUBNET, b"holders": KeyKind.HOLDER, b"sessions": KeyKind.SESSION}
"""What the keys in them are."""


@frozen
class Keyspace:
    """flannel's keys `<prefix>/config` and `<prefix>/subnets/...`, and ours beside them.

    flanneld watches everything that starts with `<prefix>/subnets`, so no key of ours may start like that.
    """

    prefix: str
    root: bytes = field(init=False)
    """What all keys start with; one watch on it sees everything in one order."""
    config: bytes = field(init=False)
    """The key of the network configuration."""
    subnets: bytes = field(init=False)
    """What all leases start with."""
    holders: bytes = field(init=False)
    """What all holders start with."""
    sessions: bytes = field(init=False)
    """What all sessions start with."""
    released: bytes = field(init=False)
    """The key of the note on leases that were removed on purpose."""
    _kinds: Mapping[bytes, KeyKind] = field(init=False, repr=False, compare=False)
    """Kinds of the keys in each directory, by its whole path."""

    def __post_init__(self) -> None:
        for name in ("config", "subnets/", "holders/", "sessions/", "released"):
            object.__setattr__(self, name.removesuffix("/"), f"{self.prefix}/{name}".encode())
        object.__setattr__(self, "root", f"{self.prefix}/".encode())
        object.__setattr__(self, "_kinds", {self.root + name: kind for name, kind in _DIRECTORIES.items()})

    def subnet(self, name: str) -> bytes:
        """The key of a lease."""
        return self.subnets + name.encode()

    def holder(self, name: str) -> bytes:
        """The key that says who holds a lease."""
        return self.holders + name.encode()

    def session(self, node: str) -> bytes:
        """The key that says that a node's dataplane is connected."""
        return self.sessions + node.encode()

    def classify(self, key: bytes) -> tuple[KeyKind, str]:
        """What a key is, and its name: the lease's for SUBNET and HOLDER, the node's for SESSION, else the key."""
        whole, _, name = key.rpartition(b"/")
        if name and (kind := self._kinds.get(whole)):
            return kind, readable(name)  # as nearly all are
        before, _, path = key.partition(self.root)
        directory, _, name = path.partition(b"/")
        if name and not before and (kind := _DIRECTORIES.get(directory)):
            return kind, readable(name)
        if key == self.config:
            return KeyKind.CONFIG, readable(key)
        if key == self.released:
            return KeyKind.RELEASED, readable(key)
        return KeyKind.FOREIGN if key.startswith(self.subnets[:-1]) else KeyKind.OTHER, readable(key)


class Decoded(NamedTuple):
    """One version of a key, decoded."""

    item: Item
    kind: KeyKind
    name: str
    lease: Lease | None
    """What a lease key says; the node is not known yet."""
    holder: Holder | None
    """What a holder key says."""
    error: str
    """Why the value of a lease or holder key is invalid, with the key; empty: it is valid."""

    @property
    def label(self) -> str:
        """The name under which the key is refused."""
        return f"holders/{self.name}" if self.kind is KeyKind.HOLDER else self.name


def decode(keyspace: Keyspace, item: Item, known: Decoded | None = None) -> Decoded:
    """The meaning of a key; `known` is what it held before, which need not be parsed again."""
    if known is not None and known.item == item:
        return known
    kind, name = keyspace.classify(item.key)
    try:
        if kind is KeyKind.SUBNET:
            lease = parse_lease(name, item.value, reserved=item.etcd_lease == 0, claim_order=item.created)
            return Decoded(item, kind, name, lease, None, "")
        if kind is KeyKind.HOLDER:
            return Decoded(item, kind, name, None, parse_holder(name, item.value), "")
    except InvalidInput as error:
        return Decoded(item, kind, name, None, None, str(error)[:LONGEST_REASON])
    return Decoded(item, kind, name, None, None, "")


def is_subnet(name: str) -> bool:
    """Whether a lease key of this name takes a subnet, whatever its value is."""
    try:
        return bool(parse_key(name))
    except InvalidInput:
        return False


def read_configuration(key: bytes, item: Item | None) -> tuple[NetworkConfig | None, str]:
    """The network configuration, or None and what to do about it."""
    where = readable(key)
    if item is None:
        example = '{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}'
        return None, f"there is no network configuration in etcd yet: write it, etcdctl put {where} '{example}'"
    try:
        return replace(parse_network(item.value.decode("utf-8")), revision=item.revision), ""
    except UnicodeDecodeError:
        return None, f"etcd key {where}: the network configuration is not UTF-8 text; write it again"
    except InvalidInput as error:
        return None, f"etcd key {where}: {error}"[:LONGEST_REASON]


def format_released(names: Iterable[str]) -> bytes:
    """The value of the `released` key: the leases that its transaction deletes on purpose (ADR 17)."""
    return json.dumps({"leases": sorted(names)}, separators=(",", ":")).encode()


def read_released(value: bytes) -> frozenset[str]:
    """The names in a `released` key; none if the value is invalid."""
    try:
        note = json.loads(value)
    except (ValueError, RecursionError):
        return frozenset()
    names = note.get("leases") if isinstance(note, dict) else None
    return frozenset(name for name in names if isinstance(name, str)) if isinstance(names, list) else frozenset()


def readable(key: bytes) -> str:
    """A key as text that can be printed; no two keys give the same."""
    text = key.decode() if key.isascii() else key.decode("utf-8", "backslashreplace")
    if text.isprintable() and "\\" not in text:
        return text  # as nearly all are
    text = key.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")
    return "".join(map(_printable, text))


def _printable(character: str) -> str:
    return character if character.isprintable() else "".join(f"\\x{byte:02x}" for byte in character.encode())


_OVERWRITTEN: Final = (
    "the value of {name} says {names}, where node {node}, which holds it, has {theirs}: another program has "
    "overwritten it, and the node puts it right once it is connected"
)
_ANOTHER_WAY: Final = (
    "the value of {name} says another MAC, key or backend than node {node}, which holds it and is alive, has put: "
    "another program has overwritten it, and the node puts it right"
)


class Entry(NamedTuple):
    """What takes a subnet, as etcd has it and as the history that was seen explains it."""

    name: str
    subnet: Decoded
    """The lease key, as etcd has it."""
    beside: Decoded | None
    """The holder key, as etcd has it."""
    holder: Decoded | None
    """The version of the holder key that counts: the last valid one."""
    node: str
    """The node that holds the lease; empty: none is known to."""
    lease: Lease | None
    """The lease as its key says; None: the value is invalid or another program's, though it takes the subnet."""
    served: Lease | None
    """The lease for watchers, with its node: the last one with a value that is not refused."""
    refused: str
    """Why the value of the lease key is not served; empty: it is."""
    reserved: bool
    """An operator set the subnet aside: the lease key is attached to no etcd lease."""
    bound: bool
    """Reserved for its node: the holder key is attached to no etcd lease either."""

    @property
    def etcd_lease(self) -> int:
        """The etcd lease of the node that holds it; 0: none is known."""
        return self.holder.item.etcd_lease if self.node and self.holder else 0

    @property
    def machine(self) -> str:
        """The token of the machine of the node that holds it; empty: unknown."""
        return self.holder.holder.machine if self.node and self.holder and self.holder.holder else ""

    @property
    def items(self) -> tuple[Item, Item | None]:
        """The lease key and the holder key, as they are in etcd."""
        return self.subnet.item, self.beside.item if self.beside else None

    @property
    def claim_order(self) -> int:
        """How old the claim is: of a known node when it wrote what the key says, else when the key was made.

        A node of ours puts its key only when it says something else; flanneld does at each renewal, too.
        """
        return self.subnet.item.revision if self.node else self.subnet.item.created

    @property
    def claim(self) -> Claim | None:
        """What the lease means for IPAM; None: the name of the key is no subnet."""
        if self.lease is not None:
            cidrs, addresses, identities = self.lease.cidrs, self.lease.addresses, identities_of(self.lease)
        else:
            try:
                cidrs = parse_key(self.name)
            except InvalidInput:
                return None
            addresses = self.holder.holder.addresses if self.node and self.holder and self.holder.holder else ()
            identities = tuple(address.packed for address in addresses)
        return Claim(self.name, self.node, cidrs, addresses, self.reserved, self.bound, identities, self.claim_order)


def read_entry(subnet: Decoded, beside: Decoded | None, known: Entry | None, *, is_alive: bool) -> Entry:
    """The two keys together.

    `known` is the entry of this name before, if the lease key existed then; `is_alive`: its node has a session.
    """
    name, item, lease, refused, node = subnet.name, subnet.item, subnet.lease, subnet.error, ""
    holder = known.holder if known is not None and beside is not None and beside.holder is None else beside
    said = holder.holder if holder is not None else None
    if holder is not None and said is not None and not is_foreign(item, holder.item):
        if is_overwritten(item, holder.item, said, lease, is_alive=is_alive):
            node, refused, lease = said.node, refused or _overwritten(name, said, lease), None
        elif lease is not None and said.holds(lease):
            node = said.node
    if refused:
        served = known.served if known is not None else None
    else:
        served = lease.held_by(node, item.revision) if lease is not None and node else lease
    reserved = item.etcd_lease == 0
    if reserved and lease is None and beside is not None and beside.item.etcd_lease:
        reserved = beside.item.created != item.created  # a value overwritten without an etcd lease reserves nothing
    bound = reserved and bool(node) and holder is not None and holder.item.etcd_lease == 0
    entry = Entry(name, subnet, beside, holder, node, lease, served, refused, reserved, bound)
    return _kept(entry, known) if known is not None and known.node and is_alive else entry


def _kept(entry: Entry, known: Entry) -> Entry:
    """The entry, given what was `known` of this key before, and that the node that held it then is alive.

    Only that node lets go of an ordinary lease, and its lease service then deletes the key: whoever else has changed
    one of the two keys has overwritten it. Nor is it a reservation by that: who reserves a lease leaves its value as
    it is. A reservation is let go of by its holder key alone, which is deleted or put by the node's lease service.
    """
    item, before = entry.subnet.item, known.subnet.item
    if item.created != before.created or (known.reserved and entry.node in ("", known.node)):
        return entry
    if entry.node == known.node:
        is_same = item.value == before.value and item.revision != before.revision
        return entry if item.etcd_lease or is_same else entry._replace(reserved=False, bound=False)
    return entry._replace(
        node=known.node, holder=known.holder, lease=None, reserved=known.reserved, bound=known.bound
    )


def _overwritten(name: str, holder: Holder, lease: Lease | None) -> str:
    if lease is not None and holder.holds(lease):
        return _ANOTHER_WAY.format(name=name, node=holder.node)
    names = " and ".join(map(str, lease.addresses)) if lease else ""
    theirs = " and ".join(map(str, holder.addresses))
    return _OVERWRITTEN.format(name=name, names=names or "no public address", node=holder.node, theirs=theirs)


Value = TypeVar("Value")

_FOREIGN: Final = "flannel watches everything that starts with {subnets}, and this is not a lease: delete it"


class SessionEnd(NamedTuple):
    """The end of a node's session."""

    at: float
    """When it ended, on the monotonic clock."""
    etcd_lease: int
    """The etcd lease of the session.

    If it still exists, the lease service has ended the session; else the etcd lease is gone.
    """


class Prefix:
    """All keys under the prefix at one position of etcd's history, and what they mean.

    * What does not parse is refused and changes nothing: a lease whose value is overwritten by a bad one stays as
      it was, also through a new listing, until its key is gone or good again. So does one whose value another
      program has overwritten with that of another node (see `is_overwritten`): what it says reaches nobody.
    * A lease and its holder that are written in one revision are one change.
    * A lease whose last deletion was on purpose (the key `released`) is told as such; a listing says nothing of that.

    It may be behind etcd. A transaction is guarded by what was looked at, so that it happens on the truth or not at
    all; deletions that are not known yet only make a decision more careful.
    """

    def __init__(self, keyspace: Keyspace) -> None:
        self.keyspace = keyspace
        self.position = Position(0, 0)
        """Position up to which everything is in; 0: nothing was listed yet."""
        self.config: Item | None = None
        self.sessions: dict[str, Item] = {}
        """Sessions of the nodes whose dataplane is connected to some lease service, by node."""
        self.session_ended: dict[str, SessionEnd] = {}
        """Ends of sessions by node that holds a lease, as far as they were seen."""
        self.orphans: dict[str, Decoded] = {}
        """Holders without a lease, by name: nobody needs them."""
        self.refused: dict[str, str] = {}
        """Why a key is no lease, by its name. Changed by `_refuse` alone."""
        self._former: dict[str, str] = {}
        """Why each key that the last batch concerns was refused before it; empty: it was not. All keys would cost
        more."""
        self._network, self._network_error = read_configuration(keyspace.config, None)
        self._entries: dict[str, Entry] = {}
        """What is known by the name of the lease key, be it a subnet or not."""
        self._others: dict[bytes, Decoded] = {}
        """Every key that is no lease and no holder."""
        self._claims = Claims()
        self._unsettled: dict[str, None] = {}
        """Names of leases that have changed since the claims were asked for."""
        self._leaving: set[str] = set()
        """Nodes that may hold nothing any more, to be looked at when all is settled."""

    @property
    def entries(self) -> Mapping[str, Entry]:
        """Every lease key, by name."""
        return self._entries

    @property
    def revision(self) -> int:
        """Every put of a key up to here is in."""
        return self.position.revision

    @property
    def claims(self) -> Claims:
        """What takes subnets, for IPAM."""
        self.settle(len(self._unsettled))
        return self._claims

    @property
    def pool(self) -> SubnetPool:
        """What is taken of the network. Raises NotYet where there is none, or none that can be read."""
        self.claims.lease_from(self._network)
        if self.claims.pool is None:
            raise NotYet(self._network_error)
        return self.claims.pool

    @property
    def newest(self) -> Newest:
        """What etcd must have had at the position, if its history is the one that was followed."""
        items = [decoded.item for decoded in self._decoded()]
        revision = max((item.revision for item in items), default=0)
        return Newest(len(items), frozenset(item for item in items if item.revision == revision))

    def usage(self, family: Family) -> Usage:
        """How full the network is in one family."""
        self.claims.lease_from(self._network)
        return self.claims.usage(family)

    def etcd_lease_of(self, node: str) -> int:
        """The etcd lease that the holder keys of the node are attached to; 0: none is known."""
        entries = (self._entries[claim.name] for claim in self.claims.of_node(node))
        return next((entry.etcd_lease for entry in entries if entry.etcd_lease), 0)

    def etcd_leases(self) -> dict[str, int]:
        """The etcd lease that each lease's key is attached to, by lease; without reservations, which never expire."""
        self.settle(len(self._unsettled))
        return {name: number for name, entry in self._entries.items() if (number := entry.subnet.item.etcd_lease)}

    def held_by_others(self, node: str, machine: str) -> tuple[Entry, ...]:
        """The leases of the node that another machine of its name holds."""
        entries = (self._entries[claim.name] for claim in self.claims.of_node(node)) if machine else ()
        return tuple(entry for entry in entries if is_another(machine, entry.machine))

    def is_connected(self, node: str, machine: str) -> bool:
        """Whether the node has a session, and it may be that machine's."""
        session = self.sessions.get(node)
        return session is not None and not is_another(machine, machine_of_session(session.value))

    def key(self, key: bytes) -> Decoded | None:
        """What a key holds, if it exists."""
        kind, name = self.keyspace.classify(key)
        subnet, beside = self._pair(name)
        return subnet if kind is KeyKind.SUBNET else beside if kind is KeyKind.HOLDER else self._others.get(key)

    def snapshot(self) -> Snapshot:
        """Returns what watchers are told, complete and as it is now."""
        leases = {name: entry.served for name, entry in self._entries.items() if entry.served is not None}
        return Snapshot(MappingProxyType(leases), self._network, self._network_error, _copy(self.refused))

    def settle(self, most: int) -> bool:
        """Brings the claims of so many leases up to date; says whether more are left."""
        for name in list(islice(self._unsettled, most)):
            del self._unsettled[name]
            entry, before = self._entries.get(name), self._claims.get(name)
            if before is not None and before.node and (entry is None or entry.node != before.node):
                self._leaving.add(before.node)
            if entry is not None and (claim := entry.claim):
                self._claims.put(claim)
            else:
                self._claims.drop(name)
        while self._leaving and not self._unsettled:
            node = self._leaving.pop()
            if not self._claims.of_node(node):
                self.session_ended.pop(node, None)
        return bool(self._unsettled)

    def keys(self) -> dict[bytes, Decoded]:
        """Every key, by its bytes."""
        return {decoded.item.key: decoded for decoded in self._decoded()}

    def relisted(self, listed: Collection[Decoded], position: Position, now: float) -> "Prefix":
        """The model of a complete listing, which remembers of this one what a listing does not say."""
        new = Prefix(self.keyspace)
        new.position = position
        new.session_ended = dict(self.session_ended)
        subnets: list[Decoded] = []
        for decoded in listed:
            if decoded.kind is KeyKind.SUBNET:
                subnets.append(decoded)
            elif decoded.kind is KeyKind.HOLDER:
                new.orphans[decoded.name] = decoded
            else:
                new._put_other(decoded)
        for node in self.sessions.keys() - new.sessions.keys():
            new._end_session(node, self.sessions[node], now)
        for subnet in subnets:
            known = self._entries.get(subnet.name)
            new._put(subnet.name, subnet, new.orphans.get(subnet.name), known)
        new.refused |= {beside.label: beside.error for beside in new.orphans.values() if beside.error}
        new._leaving |= self.session_ended.keys()
        return new

    def fold(self, batch: WatchBatch, now: float) -> Changed | None:
        """Takes what happened; None: nothing that watchers have to know. `now` is the time for `session_ended`."""
        network, network_error, self._former = self._network, self._network_error, {}
        changes: list[Change] = []
        released: set[str] = set()
        written: set[str] = set()
        for _, events in groupby(batch.events, key=lambda event: event.revision):
            touched, noted = self._take(events, now)
            for name, (subnet, beside) in touched.items():
                old_subnet, old_beside = self._pair(name)
                written |= {name} if subnet != old_subnet else set()
                written |= {f"holders/{name}"} if beside != old_beside else set()
                if change := self._put(name, subnet, beside, self._entries.get(name)):
                    changes.append(change)
            released = {name for name in released if name not in touched}
            released |= {name for name in noted if name in touched and name not in self._entries}
        self.position = batch.position
        refused = {label: self.refused[label] for label in self._former if label in self.refused}
        event = Changed(
            tuple(changes),
            self._network if self._network != network else None,
            self._network_error if self._network_error != network_error else "",
            {label: reason for label, reason in refused.items() if self._former[label] != reason or label in written},
            frozenset(label for label, reason in self._former.items() if reason and label not in refused),
            frozenset(released),
        )
        return event if event != Changed() else None

    def _decoded(self) -> Iterator[Decoded]:
        for entry in self._entries.values():
            yield entry.subnet
            if entry.beside is not None:
                yield entry.beside
        yield from self.orphans.values()
        yield from self._others.values()

    def _pair(self, name: str) -> tuple[Decoded | None, Decoded | None]:
        """The lease key and the holder key of this name."""
        entry = self._entries.get(name)
        return (None, self.orphans.get(name)) if entry is None else (entry.subnet, entry.beside)

    def _take(
        self, events: Iterable[Event], now: float
    ) -> tuple[dict[str, tuple[Decoded | None, Decoded | None]], frozenset[str]]:
        """Takes the keys of one revision that are no leases.

        Returns the lease key and the holder key of each lease that the revision concerns, and the names of the leases
        that it removes on purpose.
        """
        pairs: dict[str, tuple[Decoded | None, Decoded | None]] = {}
        noted = frozenset[str]()
        for event in events:
            decoded = None if isinstance(event, DeletedKey) else decode(self.keyspace, event)
            kind, name = self.keyspace.classify(event.key) if decoded is None else (decoded.kind, decoded.name)
            if kind is KeyKind.SUBNET or kind is KeyKind.HOLDER:
                subnet, beside = pairs.get(name) or self._pair(name)
                pairs[name] = (decoded, beside) if kind is KeyKind.SUBNET else (subnet, decoded)
            elif decoded is not None:
                self._put_other(decoded)
                if kind is KeyKind.RELEASED:
                    noted = read_released(decoded.item.value)
            else:
                self._drop_other(event.key, kind, name)
                if kind is KeyKind.SESSION:
                    self._end_session(name, self.sessions.pop(name, None), now)
                    pairs = {claim.name: self._pair(claim.name) for claim in self.claims.of_node(name)} | pairs
        return pairs, noted

    def _put(self, name: str, subnet: Decoded | None, beside: Decoded | None, known: Entry | None) -> Change | None:
        """Sets the two keys of a lease, which was `known` as this before; returns what that is for watchers."""
        served = known.served if known is not None else None
        self._unsettled[name] = None
        if subnet is not None:
            holder = beside.holder if beside is not None else None
            node = known.node if known is not None else holder.node if holder is not None else ""
            is_alive = node in self.sessions
            entry = self._entries[name] = read_entry(subnet, beside, known, is_alive=is_alive)
            self.orphans.pop(name, None)
        else:
            entry = None
            self._entries.pop(name, None)
            _set(self.orphans, name, beside)
        self._refuse(name, entry.refused if entry is not None else "")
        self._refuse(f"holders/{name}", beside.error if beside is not None else "")
        if entry is None:
            return Removed(name) if served is not None else None
        return Upserted(entry.served) if entry.served is not None and entry.served != served else None

    def _put_other(self, decoded: Decoded) -> None:
        """Takes a key that is no lease and no holder."""
        self._others[decoded.item.key] = decoded
        match decoded.kind:
            case KeyKind.CONFIG:
                self.config = decoded.item
                self._network, self._network_error = read_configuration(decoded.item.key, decoded.item)
            case KeyKind.SESSION:
                self.sessions[decoded.name] = decoded.item
            case KeyKind.FOREIGN:
                self._refuse(decoded.name, _FOREIGN.format(subnets=self.keyspace.subnets[:-1].decode()))

    def _drop_other(self, key: bytes, kind: KeyKind, name: str) -> None:
        self._others.pop(key, None)
        match kind:
            case KeyKind.CONFIG:
                self.config = None
                self._network, self._network_error = read_configuration(key, None)
            case KeyKind.FOREIGN:
                self._refuse(name, "")

    def _refuse(self, label: str, reason: str) -> None:
        self._former.setdefault(label, self.refused.get(label, ""))
        _set(self.refused, label, reason)

    def _end_session(self, node: str, session: Item | None, now: float) -> None:
        self.session_ended[node] = SessionEnd(now, session.etcd_lease if session else 0)
        self._leaving.add(node)


def orphans_of(prefix: Prefix) -> Mapping[str, Item]:
    """Holder keys without a lease key, by the name of the lease: to be deleted."""
    return {name: beside.item for name, beside in prefix.orphans.items() if is_subnet(name)}


def _set(table: dict[str, Value], name: str, value: Value | None) -> None:
    """Sets a value in the table; an empty one removes the entry."""
    if value:
        table[name] = value
    else:
        table.pop(name, None)


def _copy(mapping: Mapping[str, Value]) -> Mapping[str, Value]:
    return MappingProxyType(dict(mapping))
