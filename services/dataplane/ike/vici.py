"""A session with charon: the sections that it takes and gives, what it has negotiated by these, and the calls.

The sections are pure. Alone imports `vici`.
"""

import asyncio
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from errno import ENOENT
from pathlib import Path
from typing import Any, Final, TypeVar

from flannelette.services.core.errors import InvalidInput, Unavailable
from flannelette.services.dataplane.netlink.ipsec.values import (
    MARK,
    REQID,
    IkeConnection,
    IkeKey,
    connection_name,
    connection_of,
    key_id,
)

Section = Mapping[str, Any]
"""A section of vici: keys with texts, lists of texts, or sections."""

ANSWERED: Final = "answered"
"""The child of a connection for the tunnel that the peer asks for."""
_SETTLED_SECONDS: Final = 10
_PEER_SETTLED_SECONDS: Final = 30
_UP: Final = frozenset((b"INSTALLED", b"UPDATING", b"REKEYING", b"REKEYED"))


@dataclass(frozen=True, slots=True)
class Tunnel:
    """What a connection of ours has negotiated. Its text is in the words of `swanctl --list-sas`."""

    ike: str
    """The state of its IKE SA; empty: there is none."""
    is_up: bool = False
    """Packets can be sent: an ESP SA that this end asked for is installed."""
    is_answered: bool = False
    """Packets can be received: one that the peer asked for is."""
    received: int = 0
    """Bytes received through the tunnel."""
    sent: int = 0
    attempts: int = 0
    """How many IKE SAs this end is negotiating."""

    def __str__(self) -> str:
        if not self.ike:
            return "no IKE SA"
        child = f"INSTALLED, {self.received} bytes in, {self.sent} bytes out" if self.is_up else "no ESP SA"
        return f"IKE {self.ike}, {child}{' but the one that the peer asked for' * (self.is_answered > self.is_up)}"


def tunnels_in(listed: Iterable[Section]) -> dict[str, Tunnel]:
    """Reads from an answer to `list-sas` the tunnel of each connection, by name: the best of the SAs that it may
    have.
    """
    found: dict[str, Tunnel] = {}
    for section in listed:
        for name, values in section.items():
            children = _installed(values)
            before, answered = (
                found.get(name, Tunnel("")),
                [c for c in children if c.get("name") == ANSWERED.encode()],
            )
            is_up = len(answered) < len(children)
            found[name] = Tunnel(
                before.ike if before.is_up or before.is_answered else values.get("state", b"").decode(),
                before.is_up or is_up,
                before.is_answered or bool(answered),
                before.received + sum(int(child.get("bytes-in", b"0")) for child in children),
                before.sent + sum(int(child.get("bytes-out", b"0")) for child in children),
                before.attempts + (not children and values.get("initiator") == b"yes"),
            )
    return found


def superseded_in(listed: Iterable[Section]) -> set[str]:
    """The ids of IKE SAs of ours, of what `list-sas` tells, in whose place the same end has made a newer one.

    Each end makes one, and another one when its charon was replaced. Both ends have used the newest for a while then,
    which is the one that was established last, as the kernel has it. The end that made them is first to end them.
    """
    made: dict[tuple[IkeConnection, bool], dict[int, int]] = {}
    for item, values in _ours(listed):
        if values.get("state") == b"ESTABLISHED":
            for is_answered in _kinds(values):
                ages = made.setdefault((item, is_answered), {})
                ages[int(values["uniqueid"])] = int(values.get("established", b"0"))
    old, kept = set[int](), set[int]()
    for (_, is_answered), ages in made.items():
        newest = min(ages, key=lambda number, ages=ages: (ages[number], -number))  # type: ignore[misc]
        is_settled = ages[newest] >= (_PEER_SETTLED_SECONDS if is_answered else _SETTLED_SECONDS)
        kept |= {newest} if is_settled else ages.keys()
        old |= ages.keys()
    return {str(number) for number in old - kept}


def outdated_in(listed: Iterable[Section]) -> set[IkeConnection]:
    """Reads from an answer to `list-sas` the connections of which the peer has made another tunnel and this end none
    after it.

    The peer has another charon then, which does not know the tunnel that this end has asked for before. Where this
    end has as many, both charons have been there all the time.
    """
    answered: dict[IkeConnection, set[int]] = {}
    asked: dict[IkeConnection, set[int]] = {}
    for item, values in _ours(listed):
        kinds, number = _kinds(values), int(values["uniqueid"])
        if True in kinds:
            answered.setdefault(item, set()).add(number)
        elif kinds or values.get("initiator") == b"yes":
            asked.setdefault(item, set()).add(number)
    return {
        item
        for item, numbers in answered.items()
        if len(numbers) > len(asked.get(item, {0})) and max(numbers) > max(asked.get(item, {0}))
    }


def _ours(listed: Iterable[Section]) -> Iterator[tuple[IkeConnection, Section]]:
    for section in listed:
        for name, values in section.items():
            if (item := connection_of(name)) is not None:
                yield item, values


def _kinds(values: Section) -> set[bool]:
    """Whether the peer has asked for the tunnels that are installed: either end may have renewed the IKE SA."""
    return {child.get("name") == ANSWERED.encode() for child in _installed(values)}


def _installed(values: Section) -> list[Section]:
    return [child for child in values.get("child-sas", {}).values() if child.get("state") in _UP]


REGISTRATION: Final = b"\0\0\0\x0e\x03\x0cchild-updown"
"""The packet that asks charon to tell of tunnels that come and go."""
T = TypeVar("T")

_ANSWER_SECONDS: Final = 5.0
_IKE_PROPOSAL: Final = "aes256-sha256-modp4096"
_UNUSED_MARK: Final = "0x666c"
"""Mark of states by which no packet is sent: no policy has it."""


def connection_section(item: IkeConnection) -> Section:
    """What `load-conn` takes: flannel's connection, but for its names, which no peer sees, for mobike and uniqueness.

    With mobike charon tells its peers each new address of the host, as the pods' bridge has. Unless a connection is
    never unique, a charon that was killed and is back makes its peers end tunnels that still carry packets.

    Of its two children the first is for what the peer asks for. Packets are sent by the other alone: the end that
    answers has its states before the end that asks, and packets that it sent by them at once would be lost (ADR 34).
    """
    child = {
        "mode": "tunnel",
        "local_ts": [item.own_subnet],
        "remote_ts": [item.peer_subnet],
        "esp_proposals": [item.proposal],
        "reqid": str(REQID),
        "policies": "no",
        "rekey_time": "1h",
    }
    answered = child | {"start_action": "none", "mark_out": _UNUSED_MARK}
    asked = child | {"start_action": "start", "close_action": "trap", "dpd_action": "restart"}
    return {
        connection_name(item): {
            "version": "2",
            "mobike": "no",
            "unique": "never",
            "keyingtries": "0",
            "proposals": [_IKE_PROPOSAL],
            "encap": "yes" if item.encap else "no",
            "local_addrs": [item.local],
            "remote_addrs": [item.remote],
            "local": {"auth": "psk", "id": item.local_id},
            "remote": {"auth": "psk", "id": item.remote},
            "children": {ANSWERED: answered, child_name(item): asked},
        }
    }


def key_section(item: IkeKey) -> Section:
    """What `load-shared` takes; it replaces a key with this id."""
    return {"id": key_id(item), "type": "IKE", "data": bytes(item.psk), "owners": [item.owner]}


def child_name(item: IkeConnection) -> str:
    """Names the tunnel (a child SA) that this end asks for."""
    return f"{item.own_subnet}-{item.peer_subnet}"


def connections_in(listed: Iterable[Section]) -> set[IkeConnection]:
    """Reads our connections from an answer to `list-conns`; without one that another program has loaded again with
    other values.
    """
    found = set()
    for section in listed:
        for name, values in section.items():
            item = connection_of(name)
            if item is None:
                continue
            child = values.get("children", {}).get(child_name(item), {})
            told = (
                values.get("local_addrs"),
                values.get("remote_addrs"),
                child.get("local-ts"),
                child.get("remote-ts"),
            )
            wanted = (item.local, item.remote, item.own_subnet, item.peer_subnet)
            if told == tuple([word.encode()] for word in wanted):
                found.add(item)
    return found


def owners_in(answer: Section) -> set[str]:
    """The addresses of our keys, of what `get-shared` tells."""
    mark = f"{MARK}-".encode()
    return {name.removeprefix(mark).decode() for name in answer.get("keys", ()) if name.startswith(mark)}


class Charon:
    """One session, made when it is needed, and again after a failure; calls take turns, each in a thread.

    Raises Unavailable when charon is not there or does not answer, InvalidInput with charon's words when it refuses.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._session: Any = None
        self._socket: socket.socket | None = None
        self._lock = asyncio.Lock()

    def close(self) -> None:
        """Ends the session; charon keeps what it has."""
        if self._socket is not None:
            self._socket.close()
        self._session = self._socket = None

    async def connections(self) -> set[IkeConnection]:
        """Returns those of our connections that are loaded."""
        return connections_in(await self._call(lambda session: list(session.list_conns())))

    async def owners(self) -> set[str]:
        """The addresses whose keys of ours are loaded."""
        return owners_in(await self._call(lambda session: session.get_shared()))

    async def tunnels(self) -> dict[str, Tunnel]:
        """What is negotiated, by name of the connection."""
        return tunnels_in(await self._call(lambda session: list(session.list_sas())))

    async def replaced(self) -> tuple[set[str], set[IkeConnection]]:
        """See `superseded_in` and `outdated_in`."""
        listed = await self._call(lambda session: list(session.list_sas()))
        return superseded_in(listed), outdated_in(listed)

    async def terminate(self, number: str) -> None:
        """Ends an IKE SA and its tunnel, and tells the peer, whose answer is not waited for."""
        asked = {"ike-id": number, "force": "yes", "timeout": "-1"}
        await self._call(lambda session: list(session.terminate(asked)))

    async def load_key(self, item: IkeKey) -> None:
        """Loads it, also in the place of another one of the address."""
        await self._call(lambda session: session.load_shared(key_section(item)))

    async def unload_key(self, item: IkeKey) -> None:
        """Unloads a pre-shared key from charon."""
        await self._call(lambda session: session.unload_shared({"id": key_id(item)}))

    async def load_connection(self, item: IkeConnection) -> None:
        """Loads it, and begins to negotiate. One that is loaded already keeps its tunnel."""
        await self._call(lambda session: session.load_conn(connection_section(item)))

    async def unload_connection(self, item: IkeConnection) -> None:
        """Forgets it, and ends its tunnel."""
        await self._call(lambda session: session.unload_conn({"name": connection_name(item)}))

    async def initiate(self, item: IkeConnection) -> None:
        """Begins to negotiate; returns before that has ended."""
        asked = {"ike": connection_name(item), "child": child_name(item), "timeout": "-1"}
        await self._call(lambda session: list(session.initiate(asked)))

    async def _call(self, ask: Callable[[Any], T]) -> T:
        async with self._lock:
            return await asyncio.to_thread(self._ask, ask)

    def _ask(self, ask: Callable[[Any], T]) -> T:
        if self._session is None and not self.path.exists():  # most nodes have no charon, and need no vici
            raise Unavailable(away(self.path, FileNotFoundError(ENOENT, os.strerror(ENOENT))))
        from vici.exception import CommandException, DeserializationException, SessionException  # ADR 22

        try:
            return ask(self._session or self._connect())
        except CommandException as error:
            raise InvalidInput(f"charon refuses it: {str(error).removeprefix('Command failed: ')}") from None
        except (OSError, SessionException, DeserializationException) as error:
            self.close()
            raise Unavailable(away(self.path, error)) from None

    def _connect(self) -> Any:
        from vici import Session

        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self._socket.settimeout(_ANSWER_SECONDS)
        self._socket.connect(str(self.path))
        self._session = Session(self._socket)
        return self._session


def away(path: Path, error: Exception) -> str:
    """Why charon is not there, and what to do, as `flannelette doctor` divides it."""
    why = (error.strerror if isinstance(error, OSError) else "") or str(error) or "no answer"
    return (
        f"charon (strongSwan) does not answer on {path} ({why}), so no IPsec tunnel is made or renewed; "
        "cure: start charon beside the dataplane (docs/backends.md#ipsec)"
    )
