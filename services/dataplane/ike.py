"""charon, strongSwan's IKE daemon: a session by its interface vici, what it has loaded for this node, its tunnels.

First the sections that it takes and gives, which are pure, and the calls (alone imports `vici`); then the actuator of
keys and connections, and the task that looks after tunnels. That notices at once that charon ends or is back, and has
tunnels that it gave up negotiated again. charon is a process of its own that somebody else starts. Nothing here knows
of leases.
"""

import asyncio
import os
import socket
import struct
import time
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Iterator, Mapping, Set
from contextlib import suppress
from errno import ENOENT
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from flannelette.services.core.backend_types import Secret
from flannelette.services.core.errors import InvalidInput, Unavailable
from flannelette.services.core.frozen import frozen
from flannelette.services.dataplane.netlink.actuator import Contents
from flannelette.services.dataplane.netlink.object_text import MARK, connection_name, connection_of, key_id
from flannelette.services.dataplane.netlink.objects import (
    IKE_CONNECTION,
    IKE_KEY,
    REQID,
    IkeConnection,
    IkeKey,
    KernelObject,
    Plan,
)
from flannelette.services.runtime.telemetry.logs import get_logger

Section = Mapping[str, Any]
"""A section of vici: keys with texts, lists of texts, or sections."""

ANSWERED: Final = "answered"
"""The child of a connection for the tunnel that the peer asks for."""
_SETTLED_SECONDS: Final = 10
_PEER_SETTLED_SECONDS: Final = 30
_UP: Final = frozenset((b"INSTALLED", b"UPDATING", b"REKEYING", b"REKEYED"))


@frozen
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

_SESSION_SECONDS: Final = 5.0
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
        self._socket.settimeout(_SESSION_SECONDS)
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


log = get_logger()

PATIENCE_SECONDS: Final = 15.0
"""A tunnel that is not up after this long counts as failed."""
_NOTHING: Final = Contents(frozenset(), frozenset())


class CharonActuator:
    """The `PartActuator` of charon. While charon is away nothing is loaded, and what is put fails.

    charon does not tell keys: those that this process has not loaded count as others, so they are loaded again.
    """

    kinds: Final = frozenset((IKE_KEY, IKE_CONNECTION))

    def __init__(self, path: Path) -> None:
        self._charon = Charon(path)
        self._keys: dict[str, Secret] = {}
        """What this process has loaded, by owner."""
        self._down_since: dict[Hashable, float] = {}
        """When a connection was first seen without a tunnel, on the monotonic clock, by slot."""
        self._is_concerned = True
        """Whether charon has something of ours, or may have."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._charon.close()

    async def contents(self, devices: Collection[int], desired: Set[KernelObject] = frozenset()) -> Contents:
        """See PartActuator. Raises nothing: a charon that is away has nothing.

        It is not asked again until something is put there, unless `desired` has something for it.
        """
        if not self._is_concerned:
            return _NOTHING
        try:
            connections, owners = await self._charon.connections(), await self._charon.owners()
            tunnels = await self._charon.tunnels() if connections else {}
        except (InvalidInput, Unavailable):
            self._keys.clear()
            self._down_since.clear()
            self._is_concerned = any(item.kind in self.kinds for item in desired)
            return _NOTHING
        self._is_concerned = bool(connections or owners)
        self._keys = {owner: psk for owner, psk in self._keys.items() if owner in owners}
        keys = {IkeKey(owner, self._keys.get(owner, Secret())) for owner in owners}
        states = {item.key: tunnels.get(connection_name(item), Tunnel("")) for item in connections}
        now = time.monotonic()
        down = {slot: self._down_since.get(slot, now) for slot, tunnel in states.items() if not tunnel.is_up}
        self._down_since = down
        faults = {
            item.key: _fault(item, states[item.key])
            for item in connections
            if item.key in down and now - down[item.key] >= PATIENCE_SECONDS
        }
        return Contents(frozenset(), frozenset({*connections, *keys}), states, faults)

    async def apply(self, plan: Plan[KernelObject]) -> Mapping[KernelObject, str]:
        """See PartActuator. Keys are there before the connections that need them."""
        failures: dict[KernelObject, str] = {}
        put = sorted(item for item in plan.put if isinstance(item, IkeKey | IkeConnection))
        delete = sorted((i for i in plan.delete if isinstance(i, IkeKey | IkeConnection)), reverse=True)
        self._is_concerned |= bool(put)
        for number, item in enumerate(put):
            reason = await _reason(self._load, item)
            if reason is not None:
                failures[item] = "charon is away" if isinstance(reason, Unavailable) else str(reason)
            if isinstance(reason, Unavailable):  # the others would wait as long, each
                return failures | dict.fromkeys(put[number:], failures[item])
        for item in delete:
            reason = await _reason(self._unload, item)
            if isinstance(reason, Unavailable):  # what it had is gone with it
                break
        return failures

    async def finish(self, plan: Plan[KernelObject]) -> None:
        """See PartActuator."""

    async def _load(self, item: IkeKey | IkeConnection) -> None:
        if isinstance(item, IkeKey):
            await self._charon.load_key(item)
            self._keys[item.owner] = item.psk
        else:
            await self._charon.load_connection(item)

    async def _unload(self, item: IkeKey | IkeConnection) -> None:
        if isinstance(item, IkeKey):
            await self._charon.unload_key(item)
            self._keys.pop(item.owner, None)
        else:
            await self._charon.unload_connection(item)


async def _reason(
    do: Callable[[IkeKey | IkeConnection], Awaitable[None]], item: IkeKey | IkeConnection
) -> InvalidInput | Unavailable | None:
    """Why it was not done."""
    try:
        await do(item)
    except (InvalidInput, Unavailable) as error:
        return error
    return None


def _fault(item: IkeConnection, tunnel: Tunnel) -> str:
    where = f"no IPsec tunnel with {item.remote} ({tunnel}): "
    if tunnel.ike == "ESTABLISHED":
        return where + (
            "have both kernels ESP (`modprobe -a esp4`), and has the peer the same ESPProposal? charon's log says why"
        )
    return where + (
        "is its charon up, has it the same PSK, and does a firewall let UDP ports 500 and 4500 and IP protocol 50 "
        "through?"
    )


_RETRY_SECONDS: Final = 1.0
_LOOK_SECONDS: Final = 8.0
_COLLECT_SECONDS: Final = 0.2
"""Seconds to wait after an event, for those that follow it."""
_ANSWER_SECONDS: Final = 2.0
"""Seconds for charon's own attempt, where the peer's has succeeded."""
_MOST_ATTEMPTS: Final = 2
_RENEWAL_SECONDS: Final = 60.0
ATTEMPTS_SECONDS: Final = 16.0
"""Seconds for charon's own attempts, before a tunnel is asked for; then it counts as failed too."""

_IDLE: Final = ("", "ESTABLISHED")
"""States of an IKE SA in which charon does nothing about a tunnel that is not up."""


async def follow_charon(
    path: Path,
    report: Callable[[str], None],
    audit: Callable[[], None],
    connected: Callable[[frozenset[Hashable]], None],
) -> None:
    """Follows charon until cancelled. `report` is told why charon is not there, and nothing when it is; `audit` has
    everything compared.

    `connected` is told the connections by which packets can be sent; what it was told holds while charon is away.

    A connection on which charon tells of tunnels ends when charon does, so that its end is known at once.
    """
    told = ""
    while True:
        try:
            reader, writer = await asyncio.open_unix_connection(path)
        except OSError as error:
            reason = away(path, error)
            if not told:
                log.warning("charon is not there", reason=reason)
                report(reason)
                audit()
            told = reason
            await asyncio.sleep(_RETRY_SECONDS)
            continue
        log.info("charon is there", socket=str(path))
        told = ""
        report("")
        audit()
        charon, news = Charon(path), asyncio.Event()
        writer.write(REGISTRATION)
        try:
            ended = asyncio.ensure_future(_listen(reader, news))
            await _look_after(charon, ended, news, report, audit, connected)
        finally:
            charon.close()
            writer.close()


async def _listen(reader: asyncio.StreamReader, news: asyncio.Event) -> None:
    """Reads charon's events, and sets `news` at each of them and when charon ends."""
    with suppress(OSError, asyncio.IncompleteReadError):
        while True:
            (size,) = struct.unpack("!I", await reader.readexactly(4))
            await reader.readexactly(size)
            news.set()
    news.set()


async def _look_after(
    charon: Charon,
    ended: asyncio.Future[None],
    news: asyncio.Event,
    report: Callable[[str], None],
    audit: Callable[[], None],
    connected: Callable[[frozenset[Hashable]], None],
) -> None:
    """Looks after the tunnels until charon ends."""
    seen: object = None
    down: dict[IkeConnection, float] = {}
    asked: dict[IkeConnection, float] = {}
    outdated, renewed = set[IkeConnection](), dict[IkeConnection, float]()
    pause = _LOOK_SECONDS
    try:
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(news.wait(), pause)
                await asyncio.wait({ended}, timeout=_COLLECT_SECONDS)
            if ended.done():
                return
            news.clear()
            try:
                connections, owners = await charon.connections(), await charon.owners()
                tunnels = await charon.tunnels()
            except (InvalidInput, Unavailable) as error:
                report(str(error))
                continue
            report("")
            now = time.monotonic()
            down = {item: down.get(item, now) for item in connections if not _tunnel(tunnels, item).is_up}
            connected(frozenset(item.key for item in connections - down.keys()))
            answered = {item for item in down if _is_worth_asking(_tunnel(tunnels, item))}
            late = {item for item, since in down.items() if now - since >= ATTEMPTS_SECONDS}
            given_up = {item for item in late if _tunnel(tunnels, item).ike in _IDLE}
            given_up |= {item for item in answered if now - down[item] >= _ANSWER_SECONDS}
            asked = {item: at for item, at in asked.items() if item in down and now - at < _LOOK_SECONDS}
            await _initiate(charon, given_up - asked.keys())
            asked |= dict.fromkeys(given_up - asked.keys(), now)
            outdated &= connections
            await _replace(charon, outdated, renewed)
            pause = min(_ANSWER_SECONDS, _LOOK_SECONDS) if answered - asked.keys() else _LOOK_SECONDS
            last, seen = seen, (connections, owners, late)
            if last is not None and last != seen:
                audit()
    finally:
        ended.cancel()


async def _initiate(charon: Charon, given_up: Collection[IkeConnection]) -> None:
    """charon does not try again after a refusal, as of a peer that had another key then."""
    for item in given_up:
        try:
            await charon.initiate(item)
        except (InvalidInput, Unavailable) as error:
            log.info("charon did not begin to negotiate", peer=item.remote, reason=str(error))


async def _replace(charon: Charon, outdated: set[IkeConnection], renewed: dict[IkeConnection, float]) -> None:
    """Ends IKE SAs that a peer's charon left when it was killed: they would be renewed for ever.

    What this end had made with that charon is made anew at once: a peer that was started again has no states of it.
    Not again within `_RENEWAL_SECONDS`, so that two ends that each saw a second tunnel do not follow each other; but
    then, for `outdated` remembers it: once the peer's former tunnels have ended, the listing no longer shows it.
    """
    with suppress(InvalidInput, Unavailable):  # the next look finds them again
        superseded, found = await charon.replaced()
        outdated |= found
        now = time.monotonic()
        due = {item for item in outdated if now - renewed.get(item, -_RENEWAL_SECONDS) >= _RENEWAL_SECONDS}
        await _initiate(charon, due)
        outdated -= due
        renewed |= dict.fromkeys(due, now)
        for number in superseded:
            await charon.terminate(number)


def _is_worth_asking(tunnel: Tunnel) -> bool:
    """Whether the peer is there, and charon does not wait for the answers to two requests already."""
    return tunnel.is_answered and tunnel.attempts < _MOST_ATTEMPTS


def _tunnel(tunnels: Mapping[str, Tunnel], item: IkeConnection) -> Tunnel:
    return tunnels.get(connection_name(item), Tunnel(""))
