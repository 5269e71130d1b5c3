"""Names in a network namespace that only a process with the right to change the namespace can hold (ADR 57).

A name is that of an abstract unix socket: the kernel scopes it to the network namespace, lists it for everybody
there, and frees it with the process, however that ends (unix(7)). Any user can bind any such name, so a name alone
says nothing. A holder proves its right with a second socket, of rtnetlink: its port id is the inode of the first, and
it is in two multicast groups that the kernel gives only to CAP_NET_ADMIN over the namespace (Linux 4.13). A name
whose socket has no such companion keeps nobody from anything: who comes later binds it with `#` and a random number
at its end. By such a name one process of a service runs in a network namespace: two would undo each other's changes.

By such names each network of the namespace also says to the others what it uses: address ranges, devices, route
marks. A claim is the name `@flannelette/SERVICE/NETWORK/KIND/VALUE`.
"""

import asyncio
import errno
import os
import re
import secrets
import socket
import struct
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Container, Iterable, Iterator
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager, suppress
from dataclasses import replace
from ipaddress import ip_network
from pathlib import Path
from typing import Final, NamedTuple, Self

from flannelette.services.core.conditions import Condition, found
from flannelette.services.core.errors import InvalidInput, Misconfigured, Unavailable
from flannelette.services.core.frozen import frozen
from flannelette.services.runtime.os import netlink
from flannelette.services.runtime.os.processes import owners

_MARK: Final = re.compile(r"#[0-9a-f]{16}")
_GROUPS: Final = 1 << 29 | 1 << 30
"""RTNLGRP_IPV4_MROUTE_R and RTNLGRP_IPV6_MROUTE_R: for multicast routing daemons, and silent where none runs."""
_FORBIDDEN: Final = frozenset((errno.EPROTONOSUPPORT, errno.EAFNOSUPPORT, errno.EACCES, errno.EPERM))
_ATTEMPTS: Final = 1000
"""Any process may have the port id of an inode that is still to come; it would need those of all."""
_THREAD: Final = Path("/proc/thread-self")
_NET_ADMIN: Final = 1 << 12
_MOST_FINDINGS: Final = 4
_LOOK_SECONDS: Final = 5.0

_SOCK_DIAG: Final = 4
_BY_FAMILY: Final = 20
_SHOW_NAME_AND_USER: Final = 0x41
_NAME, _USER = 0, 7
"""UNIX_DIAG_NAME and, since Linux 5.3, UNIX_DIAG_UID."""


@frozen
class Holder:
    """A socket with such a name."""

    name: str
    """The name without the random number at its end."""
    inode: int
    user: int | None = None
    """None: the kernel does not say."""
    is_rightful: bool = False
    """Whether its process has the right to change the network namespace."""


class HeldName:
    """A name that this process holds until `close`, beside whatever process without the right has it too.

    Raises OSError: EADDRINUSE if this process itself lacks the right and the name is taken, and the kernel's reason
    if it gives no such socket. That another process holds the name rightfully is for the caller to find out.
    """

    def __init__(self, name: str, kind: socket.SocketKind) -> None:
        with ExitStack() as opened:
            found, proof = _provable(kind)
            opened.callback(found.close)
            if proof is not None:
                opened.callback(proof.close)
            try:
                found.bind(f"\0{name}")
            except OSError as error:
                if error.errno != errno.EADDRINUSE or proof is None or not proof.getsockname()[1]:
                    raise
                found.bind(f"\0{name}#{secrets.token_hex(8)}")
            self.inode = _inode(found)
            self._sockets = opened.pop_all()

    def close(self) -> None:
        """Gives the name back."""
        self._sockets.close()


def _provable(kind: socket.SocketKind) -> tuple[socket.socket, socket.socket | None]:
    """A unix socket, and its companion; without the right, one that is bound to nothing. Raises OSError.

    None: there is no rtnetlink, or none for this process, which is said by what needs it.
    """
    for _ in range(_ATTEMPTS):
        with ExitStack() as opened:
            found = opened.enter_context(socket.socket(socket.AF_UNIX, kind))
            try:
                proof = opened.enter_context(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE))
            except OSError as error:
                if error.errno not in _FORBIDDEN:
                    raise
                opened.pop_all()
                return found, None
            try:
                proof.bind((_inode(found), _GROUPS))
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    continue
                if error.errno != errno.EPERM:
                    raise
            opened.pop_all()
            return found, proof
    raise OSError(errno.ENOSPC, "another process has all port ids of netlink that were tried")


def _inode(found: socket.socket) -> int:
    return os.fstat(found.fileno()).st_ino & 0xFFFFFFFF


def rightful(name: str, but: int = 0) -> list[Holder]:
    """Holders of exactly this name that count, without the socket `but`."""
    return [each for each in holders(name) if each.name == name and each.is_rightful and each.inode != but]


def holders(beginning: str) -> list[Holder]:
    """All sockets whose names begin like that, in this network namespace.

    Raises Unavailable: the kernel cannot be asked now, as without a free file descriptor.
    """
    try:
        proven = _proven()
        found = [replace(each, is_rightful=each.inode in proven) for each in _sockets(beginning)]
    except OSError as error:
        raise Unavailable(f"cannot ask the kernel for the names of unix sockets: {error.strerror}") from None
    unproven = frozenset(each.inode for each in found if not each.is_rightful)
    older = _of_older_releases(unproven) if unproven else frozenset()
    return [replace(each, is_rightful=True) if each.inode in older else each for each in found]


def stranger_finder(*beginnings: str) -> Callable[[], Iterable[Condition]]:
    """Makes the check of `stranger_findings` that looks every five seconds at most: it asks for all of the host's
    unix sockets, which may be thousands.
    """
    looked_at, last = -_LOOK_SECONDS, tuple[Condition, ...]()

    def find() -> Iterable[Condition]:
        nonlocal looked_at, last
        now = time.monotonic()
        if now - looked_at >= _LOOK_SECONDS:
            last = tuple(stranger_findings(*beginnings))
            looked_at = now
        return last

    return find


def stranger_findings(*beginnings: str) -> Iterator[Condition]:
    """Findings about names of this service that processes without the right hold."""
    strangers = [each for text in beginnings for each in holders(text) if not each.is_rightful]
    seen = owners(each.inode for each in strangers[:_MOST_FINDINGS])
    for each in strangers[:_MOST_FINDINGS]:
        who = [f"user {each.user}"] if each.user is not None else []
        who += [f"process {seen[each.inode].pid} ({seen[each.inode].name})"] if each.inode in seen else []
        yield found(
            "service.name-taken",
            name=each.name,
            evidence=f"held by {', '.join(who) or 'a process that is not seen'}; unix socket {each.inode}; "
            f"{len(strangers)} of them",
        )


def _proven() -> frozenset[int]:
    """The port ids of the companions in this network namespace."""
    rows = (_THREAD / "net" / "netlink").read_text().splitlines()[1:]
    columns = (row.split() for row in rows)
    return frozenset(
        int(port)
        for _, protocol, port, groups, *_ in columns
        if protocol == "0" and int(groups, 16) & _GROUPS == _GROUPS
    )


_of_older: dict[int, bool] = {}
"""Whether the process of each inode was seen to be one of ours of an older release."""


def _of_older_releases(inodes: frozenset[int]) -> frozenset[int]:
    """Returns the sockets of services of 0.1 and 0.2, which prove nothing: they count if their process may change
    networks.

    A program that is set-uid root, which anybody can start with sockets of their own open, is no Python.
    """
    unknown = inodes - _of_older.keys()
    seen = owners(unknown) if unknown else {}
    known = {inode: answer for inode, answer in _of_older.items() if inode in inodes}
    known |= {inode: inode in seen and _may_change_networks(seen[inode].pid) for inode in unknown}
    _of_older.clear()
    _of_older.update(known)
    return frozenset(inode for inode, answer in known.items() if answer)


def _may_change_networks(pid: int) -> bool:
    """Whether this process is an interpreter of Python with CAP_NET_ADMIN in our user namespace."""
    with suppress(OSError, ValueError, StopIteration):
        process = Path("/proc", str(pid))
        status = (process / "status").read_text(errors="replace").splitlines()
        rights = int(next(line for line in status if line.startswith("CapEff:")).split()[1], 16)
        is_same = (process / "ns" / "user").readlink() == (_THREAD / "ns" / "user").readlink()
        return bool(rights & _NET_ADMIN) and is_same and (process / "exe").readlink().name.startswith("python")
    return False


def _sockets(beginning: str) -> list[Holder]:
    """All with such names, by the kernel's socket diagnosis; where it has none, by /proc/net/unix."""
    try:
        found = [(_text(name), inode, user) for name, inode, user in _dumped() if name[:1] == b"\0"]
    except OSError:
        found = [(name, inode, None) for name, inode in _listed()]
    return [Holder(_unmarked(name), inode, user) for name, inode, user in found if name.startswith(beginning)]


def _unmarked(name: str) -> str:
    return name[:-17] if _MARK.fullmatch(name[-17:]) else name


def _text(name: bytes) -> str:
    return name[1:].decode(errors="backslashreplace")


def _listed() -> Iterator[tuple[str, int]]:
    """Yields the abstract unix sockets by name and inode. A name with a line break may forge a line: an inode that
    comes twice is left out.
    """
    lines = (_THREAD / "net" / "unix").read_text(errors="backslashreplace").split("\n")
    rows = [line.split(maxsplit=7) for line in lines]
    named = [(row[7][1:], int(row[6])) for row in rows if len(row) == 8 and row[7][0] == "@" and row[6].isdecimal()]
    times = Counter(inode for _, inode in named)
    return (each for each in named if times[each[1]] == 1)


def _dumped() -> Iterator[tuple[bytes, int, int | None]]:
    """Name, inode and user of each unix socket (sock_diag(7)). Raises OSError: the kernel does not do that."""
    body = struct.pack("=BBHIIIII", socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, _SHOW_NAME_AND_USER, *(0xFFFFFFFF,) * 2)
    return (_described(content) for _, content in netlink.ask(_SOCK_DIAG, _BY_FAMILY, body, netlink.DUMP))


def _described(message: bytes) -> tuple[bytes, int, int | None]:
    """The content of a struct unix_diag_msg and of the attributes after it."""
    (inode,) = struct.unpack_from("=I", message, 4)
    values = netlink.attributes(message[16:])
    user = struct.unpack("=I", values[_USER])[0] if _USER in values else None
    return values.get(_NAME, b""), inode, user


_POLL_SECONDS: Final = 0.1


@contextmanager
def single_instance(service: str, advice: str) -> Iterator[None]:
    """Holds the lock while the block runs.

    Raises Misconfigured, with this advice, if another process holds the lock, and if the lock cannot be made.
    """
    with closing(_held(service) or _refused(service, advice)):
        yield


@asynccontextmanager
async def single_instance_within(service: str, advice: str, patience: float) -> AsyncIterator[None]:
    """The same, but waits up to `patience` seconds for a previous process that is about to end."""
    until = time.monotonic() + patience
    while (holder := _held(service)) is None and time.monotonic() < until:  # noqa: ASYNC110 - no event reports it
        await asyncio.sleep(_POLL_SECONDS)
    with closing(holder or _refused(service, advice)):
        yield


def lock_name(service: str) -> str:
    """What the lock of a service is called, `flannelette-masq-blue`; those of a service's networks begin alike."""
    return f"flannelette-{service}"


def _held(service: str) -> HeldName | None:
    """None: another process holds the lock. Each holds its name before it looks for others, so that no two stay."""
    name = lock_name(service)
    try:
        holder = HeldName(name, socket.SOCK_STREAM)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return None
        raise Misconfigured(
            f"cannot bind the abstract unix socket @{name}, which excludes a second {service}: "
            f"{error.strerror}; check security profiles (AppArmor, SELinux, seccomp) and limits"
        ) from None
    if rightful(name, but=holder.inode):
        holder.close()
        return None
    return holder


def _refused(service: str, advice: str) -> HeldName:
    raise Misconfigured(f"another {service} runs in this network namespace: {advice}")


_NO_NAME: Final = "default"
MARK: Final = "route protocol"
RANGE: Final = "range"
DEVICE: Final = "device"
UDP_PORT: Final = "UDP port"


class NameClaim(NamedTuple):
    """One thing that only one network of a service can have."""

    kind: str
    """`range`, or one whose values are compared by their first word, such as `UDP port`."""
    value: str
    """What stands after the first word is for people, but that of a `UDP port`: devices of VXLAN share one."""

    def excludes(self, other: "NameClaim") -> bool:
        """Whether two networks cannot have both."""
        if self.kind != other.kind:
            return False
        if self.kind == RANGE:
            one, two = ip_network(self.value), ip_network(other.value)
            return one.version == two.version and one.overlaps(two)
        same = self.value.partition(" ")[0] == other.value.partition(" ")[0]
        return same and not (self.kind == UDP_PORT and self == other and self.value.endswith(" vxlan"))


class Claims:
    """The claims of one network of a service."""

    def __init__(self, service: str, network: str) -> None:
        self._prefix = claims_of(service)
        self._network = network or _NO_NAME
        self._held: dict[NameClaim, HeldName] = {}

    def check(self, claims: Iterable[NameClaim]) -> None:
        """Raises InvalidInput as `take` does, and takes nothing."""
        self._refuse(claims, list(self.others()))

    def take(self, claims: Iterable[NameClaim]) -> None:
        """Takes these claims and gives back all others but devices, which stay until `keep_devices`.

        Raises InvalidInput, naming both networks; then all claims stay as they are.
        """
        wanted = dict.fromkeys(claims)
        self._refuse(wanted, list(self.others()))
        with ExitStack() as opened:
            new = {
                claim: opened.enter_context(closing(self._bound(claim)))
                for claim in wanted
                if claim not in self._held
            }
            # Of two that take it at this moment one sees the other here: the first by name goes on.
            self._refuse(wanted, [(name, claim) for name, claim in self.others() if name < self._network])
            opened.pop_all()
        for claim in [claim for claim in self._held if claim not in wanted and claim.kind != DEVICE]:
            self._held.pop(claim).close()
        self._held |= new

    def keep_devices(self, names: Container[str]) -> None:
        """Gives back the claims of devices that have none of these names."""
        for claim in [c for c in self._held if c.kind == DEVICE and c.value.partition(" ")[0] not in names]:
            self._held.pop(claim).close()

    def others(self) -> Iterator[tuple[str, NameClaim]]:
        """The claims of other networks, by name."""
        for each in holders(self._prefix):
            name, _, rest = each.name.removeprefix(self._prefix).partition("/")
            kind, _, value = rest.partition("/")
            if each.is_rightful and name != self._network and _is_readable(kind, value):
                yield name, NameClaim(kind, value)

    def is_free(self, claim: NameClaim) -> bool:
        """Whether this claim excludes no claim of another network."""
        return not any(claim.excludes(other) for _, other in self.others())

    def of_others(self, kind: str) -> frozenset[str]:
        """The first words of what other networks claim of this kind: names of devices, say."""
        return frozenset(claim.value.partition(" ")[0] for _, claim in self.others() if claim.kind == kind)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Gives back all claims that are held."""
        while self._held:
            self._held.popitem()[1].close()

    def _refuse(self, wanted: Iterable[NameClaim], others: list[tuple[str, NameClaim]]) -> None:
        for claim in wanted:
            for name, other in others:
                if claim.excludes(other):
                    raise InvalidInput(
                        f"{claim.kind} {claim.value} of network {self._network} and {other.kind} {other.value} of "
                        f"network {name}, which is on this host too, cannot be there at once: change one of them"
                    )

    def _bound(self, claim: NameClaim) -> HeldName:
        name = f"{self._prefix}{self._network}/{claim.kind}/{claim.value}"
        try:
            return HeldName(name, socket.SOCK_DGRAM)
        except OSError as error:
            raise InvalidInput(f"{claim.kind} {claim.value} cannot be claimed: {error.strerror or error}") from None


def claims_of(service: str) -> str:
    """Beginning of the names of all claims of a service."""
    return f"flannelette/{service}/"


def _is_readable(kind: str, value: str) -> bool:
    try:
        return kind != RANGE or bool(ip_network(value))
    except ValueError:
        return False
