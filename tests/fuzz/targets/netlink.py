"""Netlink as the kernel writes it: dumps, notifications and answers, by every reader of ours.

A case is the name of a reader, a line feed, and a datagram. What stands behind the line feed is read as a whole, and
as one message between two good ones, which must come out as if it were not there.
"""

import struct
from collections.abc import Callable
from typing import Any, Final
from zlib import crc32

from flannelette.services.core.backend_types import Secret
from flannelette.services.core.errors import Unavailable
from flannelette.services.core.family import FAMILIES
from flannelette.services.dataplane.diagnose import inspector
from flannelette.services.dataplane.netlink import uapi
from flannelette.services.dataplane.netlink.dumps import FDB_ENTRIES, NEIGHBOURS, ROUTES, MessageFormat, Reader
from flannelette.services.dataplane.netlink.fou import FouRow, PortReader
from flannelette.services.dataplane.netlink.kinds import text
from flannelette.services.dataplane.netlink.monitor import read
from flannelette.services.dataplane.netlink.objects import (
    FdbEntry,
    KernelObject,
    Neighbour,
    Route,
    WireguardPeer,
    XfrmPolicy,
)
from flannelette.services.dataplane.netlink.raw_socket import FamilyReader
from flannelette.services.dataplane.netlink.wireguard import DeviceReader, set_peer
from flannelette.services.dataplane.netlink.xfrm import (
    PolicyReader,
    StateReader,
    policy_changes,
    policy_message,
)
from tests.examples.dataplane import NAMES
from tests.examples.netlink_dumps import (
    DONE,
    SEQUENCE,
    attribute,
    fdb_message,
    message,
    neighbour_message,
    route_message,
)

GENERIC: Final = 0x20
"""The number that a family of generic netlink has here."""
ROUTE: Final = Route(bytes((10, 5, 53, 0)), bytes((10, 5, 53, 0)), 4, uapi.AF_INET, 24, 3, 77, onlink=True)
NEIGHBOUR: Final = Neighbour(bytes((10, 5, 53, 0)), bytes.fromhex("060c566dfbb3"), uapi.AF_INET, 3)
FDB: Final = FdbEntry(bytes.fromhex("060c566dfbb3"), bytes((10, 99, 0, 12)), 3)
POLICY: Final = XfrmPolicy(
    1,
    bytes((10, 5, 27, 0)),
    24,
    bytes((10, 5, 53, 0)),
    24,
    0,
    0,
    bytes((10, 99, 0, 11)),
    bytes((10, 99, 0, 12)),
    1,
    False,
)
PEER: Final = WireguardPeer(
    bytes(range(32)), ((bytes((10, 5, 53, 0)), 24),), bytes((10, 99, 0, 12)), 51820, Secret(), 0, 3
)
FOU: Final = message(
    GENERIC,
    struct.pack("=BBH", 3, 1, 0)
    + attribute(1, b"\x20\x5d")
    + attribute(2, b"\x02")
    + attribute(3, b"\x04")
    + attribute(4, b"\x01"),
)


def policy_dump(item: XfrmPolicy) -> bytes:
    """As a dump has it."""
    made = uapi.numbered(policy_message("replace", item), SEQUENCE)
    return struct.pack("=IH", len(made), uapi.XFRM_MSG_NEWPOLICY) + made[6:]


def peer_dump(item: WireguardPeer) -> bytes:
    """As a dump has it."""
    return uapi.numbered(set_peer(GENERIC, item, with_endpoint=True, greets=False), SEQUENCE)


def _objects(form: MessageFormat[Any], good: KernelObject, told: bytes) -> Callable[[bytes], None]:
    def check(data: bytes) -> None:
        whole = _taken(Reader(form, SEQUENCE), data)
        if not whole.inconsistent:
            assert whole.found == _one_by_one(form, data), "what looks alike was not"
        _shown(whole.found)
        found = _taken(Reader(form, SEQUENCE), _between(told, form.message_type, data)).found
        assert found[0] == found[-1] == good, "what stands beside it was read differently"
        assert len(found) <= 3
        _shown(found)

    return check


def _one_by_one(form: MessageFormat[Any], data: bytes) -> list[Any]:
    """Without what a reader learns from the messages before."""
    found: list[Any] = []
    for each in uapi.messages(data):
        reader = Reader(form, SEQUENCE)
        is_last = len(each) >= 16 and reader.take(each)
        found += reader.found
        if is_last:
            break
    return found


def _taken(reader: Any, data: bytes) -> Any:
    reader.take(data)
    return reader


def _between(good: bytes, kind: int, data: bytes) -> bytes:
    body = data + bytes(-len(data) % 4)
    return good + message(kind, body) + good + DONE


def _shown(found: list[Any]) -> None:
    for item in found:
        assert hash(item) == hash(item)
        item.key  # noqa: B018 - it is computed


def _policies(data: bytes) -> None:
    _shown(_taken(PolicyReader(SEQUENCE), data).found)
    told = policy_dump(POLICY)
    found = _taken(PolicyReader(SEQUENCE), _between(told, uapi.XFRM_MSG_NEWPOLICY, data)).found
    assert found[0] == found[-1] == POLICY
    for item in found:
        text(item, NAMES)


def _wireguard(data: bytes) -> None:
    for block in (data, _between(peer_dump(PEER), GENERIC, data)):
        reader = _taken(DeviceReader(GENERIC, 3, SEQUENCE), block)
        for state in reader.peers.values():
            str(state)
            hash(state.value(3, state.endpoint, state.port))
    if PEER.public_key not in data:
        assert reader.peers[PEER.public_key].allowed[0] == PEER.allowed_ips[0]


def _fou(data: bytes) -> None:
    for row in _taken(PortReader(GENERIC, SEQUENCE), data).rows:
        str(row)
    found = _taken(PortReader(GENERIC, SEQUENCE), _between(FOU, GENERIC, data)).rows
    assert found[0] == found[-1] == FouRow(8285, 4, b"")


def _families(data: bytes) -> None:
    _taken(FamilyReader("fou", SEQUENCE), data)


def _monitor(data: bytes) -> None:
    list(read(data))
    for kind in (uapi.RTM_NEWROUTE, uapi.RTM_NEWNEIGH, uapi.RTM_NEWLINK):
        changes = list(read(_between(route_message(ROUTE), kind, data)))
        assert changes[0] == changes[-1]
        assert changes[0].dst == ROUTE.dst


def _xfrm(data: bytes) -> None:
    policy_changes(data)
    _taken(StateReader(SEQUENCE), data)
    told = policy_dump(POLICY)
    for kind in (uapi.XFRM_MSG_NEWPOLICY, uapi.XFRM_MSG_DELPOLICY, uapi.XFRM_MSG_POLEXPIRE):
        changes = policy_changes(_between(told, kind, data))
        assert changes[0] == changes[-1]


def _single(data: bytes) -> None:
    """Answers to questions, as doctor and trace ask them."""
    for block in (data, *uapi.messages(data)):
        if len(block) < 16:
            continue
        for ask in (
            inspector.route_in,
            inspector.narrow_route_in,
            inspector.neighbour_in,
            inspector.link_in,
            inspector.policy_in,
        ):
            ask(block)
        list(inspector.address_in(block))
        for family in FAMILIES:
            inspector.rule_in(family, block)
        uapi.error_in(block, 0)


def _errors(data: bytes) -> None:
    for block in uapi.messages(data):
        uapi.error_in(block, 0)


READERS: Final[dict[str, Callable[[bytes], None]]] = {
    "answers": _single,
    "errors": _errors,
    "families": _families,
    "fdb": _objects(FDB_ENTRIES, FDB, fdb_message(FDB)),
    "fou": _fou,
    "monitor": _monitor,
    "neighbours": _objects(NEIGHBOURS, NEIGHBOUR, neighbour_message(NEIGHBOUR, 0x80)),
    "policies": _policies,
    "routes": _objects(ROUTES, ROUTE, route_message(ROUTE)),
    "wireguard": _wireguard,
    "xfrm": _xfrm,
}


def netlink(data: bytes) -> None:
    """A message that cannot be read is left out, or the dump is asked for again."""
    name, _, block = data.partition(b"\n")
    known = READERS.get(name.decode(errors="replace"))
    reader = known or READERS[sorted(READERS)[crc32(name) % len(READERS)]]
    try:
        reader(block)
    except Unavailable as error:
        str(error).encode()
