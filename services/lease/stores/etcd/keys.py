"""The keys under flannel's prefix in etcd and their values: leases, holders, sessions, the configuration. Pure."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from hashlib import sha256
from ipaddress import IPv4Address
from typing import Final, NamedTuple

from flannelette.services.core.errors import InvalidInput
from flannelette.services.core.family import Address
from flannelette.services.core.formats.gojson import GoObject
from flannelette.services.core.formats.ip_text import format_address, parse_address
from flannelette.services.core.leases.flannel_json import format_value, parse_key, parse_lease
from flannelette.services.core.leases.lease import Lease
from flannelette.services.core.light_dataclass import light_dataclass
from flannelette.services.core.limits import LONGEST_NAME, LONGEST_REASON
from flannelette.services.core.network import NetworkConfig, parse_network
from flannelette.services.lease.stores.etcd.rpc.values import Item

_USUAL: Final = re.compile(
    r'\{"node":"([A-Za-z0-9._-]{1,253})","public_ip":"([0-9.]*)","public_ipv6":"([0-9a-f:.]*)"'
    r'(?:,"machine":"([A-Za-z0-9-]{1,64})")?(?:,"value":"([0-9a-f]{16})")?\}',
    re.ASCII,
)
"""What we write, which can mean nothing else: most holders need no JSON parser."""

_SESSION_MACHINE: Final = re.compile(rb'"machine":"([A-Za-z0-9-]{1,64})"')


@light_dataclass
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


@dataclass(frozen=True, slots=True)
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
