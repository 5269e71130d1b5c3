"""`flannelette addresses`: the pods' addresses that the CNI plugin `host-local` has given, and what became of them.

It is about this host alone, and needs root to see what decides (`services/core/pod_addresses.py`): the network
namespaces of all pods, the processes that are CNI plugins, the container runtime. The dataplane has fewer rights, and
sees interfaces and CNI's results only. The runtime's word frees nothing: it is heard where it speaks for life.
"""

import asyncio
import ctypes
import errno
import os
import socket
import struct
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

import click
import grpc
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from flannelette.dataplane.v1 import dataplane_pb2 as pb
from flannelette.dataplane.v1.dataplane_pb2_grpc import DataplaneServiceStub
from flannelette.services.core.conditions import Condition
from flannelette.services.core.frozen import frozen
from flannelette.services.core.pod_addresses import (
    REQUIRED_LOOKS,
    Reservation,
    Signs,
    State,
    Verdict,
    counted,
    inside,
    leaked,
    lost,
    verdicts,
)
from flannelette.services.ctl.command import command, confirm, require_terminal
from flannelette.services.ctl.connect.call import CallFailed, ask
from flannelette.services.ctl.connect.targets import Target, Targets
from flannelette.services.ctl.host import obstacle_to, own_subnets
from flannelette.services.ctl.options import Duration, fail, node_file
from flannelette.services.ctl.screen import Screen, lines, table
from flannelette.services.runtime.os import netlink
from flannelette.services.runtime.os.cni_state import cni_pods, release

_SOCKETS: Final = tuple(
    map(
        Path,
        (
            "/run/containerd/containerd.sock",
            "/run/k3s/containerd/containerd.sock",
            "/run/k0s/containerd.sock",
            "/var/snap/microk8s/common/run/containerd.sock",
            "/run/crio/crio.sock",
            "/run/cri-dockerd.sock",
        ),
    )
)
"""Where container runtimes listen: containerd, those of k3s, k0s and MicroK8s, CRI-O, docker."""


@command(examples=("sudo flannelette addresses", "sudo flannelette addresses --release"))
@click.option("--release", "releases", is_flag=True, help="Free the addresses of containers that are gone.")
@click.option("--yes", is_flag=True, help="Do not ask before --release.")
@click.option(
    "--pause",
    type=Duration(),
    default=60.0,
    metavar="DURATION",
    help="Time between the three looks of --release.  [default: 1m]",
)
@click.option(
    "--runtime",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="SOCKET",
    help="Socket of the container runtime (CRI).  [default: where containerd, CRI-O, ... listen]",
)
def addresses(
    targets: Targets, screen: Screen, releases: bool, yes: bool, pause: float, runtime: tuple[Path, ...]
) -> int:
    """Show addresses reserved for pods here, and free lost ones.

    The CNI plugin host-local keeps an address until the container runtime deletes
    the pod. After a crash some stay reserved for ever. STATE says whether the
    container of an address lives, and SIGN by what: the runtime knows it, a network
    namespace has the address, its interface is there, and so on. What cannot be
    seen is UNKNOWN, and stays: run it as root, on the host, beside the dataplane.

    --release frees what three looks, a minute apart, have found DEAD. Exits with 1
    if there is a dead one, or one was not freed. FLANNELD_CNI_STATE_DIR and
    FLANNELD_SUBNET_FILE say where the dataplane has other files.
    """
    dataplane = targets["dataplane"]
    if dataplane.dialer or dataplane.path is None:
        fail("it looks at the files of this host: run it on the node, beside its dataplane", 2)
    host, node = Host(dataplane, runtime), asyncio.run(_node(dataplane))
    found = host.look()
    if host.obstacle and not found:
        fail(host.obstacle)
    if not releases:
        _show(screen, node, found)
        return int(any(each.state is State.DEAD for each in found.values()))
    if not yes:
        require_terminal(screen)
    return _release(host, node, screen, found, pause, asks=not yes)


def _release(
    host: "Host", node: str, screen: Screen, found: dict[Reservation, Verdict], pause: float, *, asks: bool
) -> int:
    """Looks again and again, and frees what was found dead each time."""
    looks = counted({}, found, time.monotonic(), 0)
    done, failure = list[Reservation](), ""
    if not screen.json:
        _show(screen, node, found)
    if looks:
        if asks:
            confirm(f"Free {_addresses(len(looks))} once three looks have found them dead?")
        for _ in range(REQUIRED_LOOKS - 1):
            time.sleep(pause)
            found = host.look()
            looks = counted(looks, found, time.monotonic(), 0)
        try:
            done = release(host.state, leaked(looks))
        except OSError as error:
            failure = f"{error.filename or host.state}: {error.strerror}"
    if screen.json:
        _show(screen, node, found, done)
    elif done:
        screen.show(lines([f"freed: {', '.join(sorted(each.name for each in done))}"]))
    if failure:
        screen.warn(f"not freed: {failure}")
    left = {each for each, verdict in found.items() if verdict.state is State.DEAD}.difference(done)
    if left and not failure:
        screen.warn(f"{_addresses(len(left))} not freed: not dead at each look, or changed since")
    return int(bool(left or failure))


def _addresses(number: int) -> str:
    return "1 address" if number == 1 else f"{number:,} addresses"


def _show(
    screen: Screen, node: str, found: Mapping[Reservation, Verdict], released: Collection[Reservation] | None = None
) -> None:
    if screen.json:
        document: dict[str, Any] = {"node": node, "addresses": [_document(*each) for each in found.items()]}
        if released is not None:
            document["released"] = sorted(str(each.address) for each in released)
        screen.show_json(document)
        return
    titles = ("NODE", "ADDRESS", "NETWORK", "CONTAINER", "STATE", "SIGN", "REASON")
    rows = [
        (
            (node,),
            (str(each.address),),
            (each.network,),
            (each.container if screen.wide else each.container[:_SHORT],),
            (verdict.state,),
            (verdict.sign,),
            (verdict.reason,),
        )
        for each, verdict in found.items()
    ]
    screen.show(table(titles, rows, screen.width) if rows else lines(["no address of this node is reserved"]))


_SHORT: Final = 12
"""Letters of a container ID that tools show."""


def _document(each: Reservation, verdict: Verdict) -> dict[str, str]:
    return {
        "address": str(each.address),
        "network": each.network,
        "container": each.container,
        "interface": each.interface,
        "state": verdict.state,
        "sign": verdict.sign,
        "reason": verdict.reason,
    }


def lost_addresses(dataplane: Target) -> list[Condition]:
    """What one look of root finds on this host; nothing if the dataplane is not on it."""
    if os.geteuid() != 0 or dataplane.dialer or obstacle_to(dataplane):
        return []
    host = Host(dataplane)
    found = host.look()
    return [*lost(found, host.subnets, found.keys())]


class Host:
    """What the host tells of the containers that have its pods' addresses."""

    def __init__(self, dataplane: Target, sockets: Sequence[Path] = ()) -> None:
        subnet_file = node_file("SUBNET_FILE")
        self.state = node_file("CNI_STATE_DIR")
        self._own = own_subnets(subnet_file)
        self.obstacle = "" if self._own else f"{subnet_file} does not say the subnet of this node"
        """Why no address is known; empty: they are."""
        self._dataplane = dataplane
        self._sockets = sockets or [each for each in _SOCKETS if each.exists()]
        self.subnets = [each.network for each in self._own]

    def look(self) -> dict[Reservation, Verdict]:
        """Says of each address in the own subnets whether its container lives."""
        record = cni_pods(self.state)
        self.obstacle = self.obstacle or record.obstacle
        found = inside(record.reservations, self.subnets)
        return verdicts(found, self._signs(record.pods)) if found else {}

    def _signs(self, pods: Sequence[Any]) -> Signs:
        """The signs, in the order of `Signs`."""
        obstacle = obstacle_to(self._dataplane)
        if obstacle:  # this may be another network namespace than that of the pods' bridge
            return Signs(hidden=f"the dataplane is not seen here: {obstacle}")
        plugins, no_processes = _plugins()
        known, silent = _known(self._sockets)
        signs = Signs(pods=pods, plugins=plugins, known=known, silent_runtime=silent)
        try:
            links = _links()
            with ThreadPoolExecutor(1) as thread:  # which enters namespaces, and ends
                namespaces, hidden = thread.submit(_namespaces).result()
            return _with_namespaces(signs, links, namespaces, self._own, no_processes or hidden)
        except OSError as error:
            return replace(signs, silent_runtime=silent or f"the kernel does not answer ({error.strerror or error})")


async def _node(dataplane: Target) -> str:
    """The name of the node, as its dataplane says it, or that of the host."""
    try:
        answer = await ask(dataplane, lambda c: DataplaneServiceStub(c).GetStatus(pb.GetStatusRequest()))
    except CallFailed:
        return socket.gethostname()
    return str(answer.status.node)


_FLAGS: Final = 7
"""Column of /proc/PID/stat behind the name of the program, from 1: PF_KTHREAD and others (linux/sched.h)."""
_KERNEL_THREAD: Final = 0x0020_0000
_VARIABLE: Final = b"CNI_CONTAINERID="


def _plugins() -> tuple[set[str], str]:
    """The containers for which a CNI plugin runs, and why some may be missing.

    libcni tells a plugin its container by this variable (CNI specification, section 2).
    """
    found, obstacle = set[str](), ""
    for each in _processes():
        try:
            variables = (each / "environ").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):  # it has ended
            continue
        except OSError as error:
            obstacle = obstacle or f"the processes of this host cannot be seen ({error.strerror}): use sudo"
            continue
        found |= {
            name.removeprefix(_VARIABLE).decode(errors="replace") for name in variables if name.startswith(_VARIABLE)
        }
    return found, obstacle


def _processes() -> Iterator[Path]:
    """Directories of the processes that may be a plugin or in a pod: not of threads of the kernel, nor of init."""
    for each in Path("/proc").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):
            if each.name.isdecimal() and each.name != "1":
                *_, flags = (each / "stat").read_bytes().rpartition(b")")[2].split(maxsplit=_FLAGS)[:_FLAGS]
                if not int(flags) & _KERNEL_THREAD:
                    yield each


_LIST: Final = "/runtime.v1.RuntimeService/ListPodSandbox"
_ITEMS, _ID = 1, 1
"""Numbers of the fields ListPodSandboxResponse.items and PodSandbox.id of the Container Runtime Interface."""
_RUNTIME_SECONDS: Final = 10.0
_LARGEST_ANSWER: Final = 64 << 20


def _known(sockets: Sequence[Path]) -> tuple[dict[str, str], str]:
    """The containers that these runtimes know, and why one of them does not say.

    One that does not have the interface, such as docker's containerd, starts no pods.
    """
    found, silent = dict[str, str](), ""
    for each in sockets:
        options = [("grpc.max_receive_message_length", _LARGEST_ANSWER)]
        with grpc.insecure_channel(f"unix:{each}", options=options) as channel:
            ask_it = channel.unary_unary(_LIST, request_serializer=bytes, response_deserializer=bytes)
            try:
                found |= dict.fromkeys(_identities(ask_it(b"", timeout=_RUNTIME_SECONDS)), str(each))
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
                    silent = silent or f"the runtime at {each} does not answer"
            except DecodeError:
                silent = silent or f"the answer of the runtime at {each} cannot be read"
    return found, silent


def _identities(answer: bytes) -> list[str]:
    """The IDs in a ListPodSandboxResponse. Raises DecodeError."""
    found = (identity for item in _texts(answer, _ITEMS) for identity in _texts(item, _ID))
    return [each.decode(errors="replace") for each in found]


def _texts(message: bytes, number: int) -> list[bytes]:
    """The values of a field of texts, bytes or messages. Raises DecodeError."""
    fields = UnknownFieldSet(Empty.FromString(message))
    found = (fields[place] for place in range(len(fields)))
    return [each.data for each in found if each.field_number == number and isinstance(each.data, bytes)]


@frozen
class _Link:
    """An interface of this host."""

    index: int
    name: str
    namespace: int
    """The kernel's number for the network namespace of its other end; -1: it is here, or there is none."""


@frozen
class _Namespace:
    """A network namespace of this host."""

    place: str
    """Path of a file that stands for it."""
    number: int
    """The kernel's number for it, seen from here; -1: nothing here leads there."""
    inode: int
    addresses: frozenset[bytes]


def _with_namespaces(
    signs: Signs, links: Sequence[_Link], namespaces: Sequence[_Namespace], own: Sequence[Any], obstacle: str
) -> Signs:
    """Adds what interfaces and network namespaces tell.

    An interface with an address outside the own subnets is none of a pod, but this host's way out.
    """
    subnets = [each.network for each in own]
    outside = {
        index
        for index, packed in _addresses_by_link()
        if _is_global(packed) and not any(ip_address(packed) in subnet for subnet in subnets)
    }
    by_number = {each.number: each for each in namespaces if each.number >= 0}
    apart = [each for each in links if each.namespace >= 0 and each.index not in outside]
    unseen = [each.name for each in apart if each.namespace not in by_number]
    named = {each.interface for each in signs.pods}
    known = {number for number, each in by_number.items() if any(map(_is_global, each.addresses))}
    inodes = {each.inode for each in namespaces}
    if unseen and not obstacle:
        obstacle = f"the network namespace to which {unseen[0]} leads is not seen from here"
    return replace(
        signs,
        links={each.name for each in links},
        strangers=[each.name for each in apart if each.name not in named and each.namespace not in known],
        held={packed: each.place for each in namespaces for packed in each.addresses},
        namespaces={each.sandbox for each in signs.pods if _inode(each.sandbox) in inodes},
        hidden=obstacle,
        answering=_answering() if obstacle else frozenset(),  # a neighbour is believed for half a minute
    )


def _inode(path: str) -> int:
    """The number of a file; 0: there is none."""
    with suppress(OSError, ValueError):
        return Path(path).stat().st_ino
    return 0


def _is_global(packed: bytes) -> bool:
    address = ip_address(packed)
    return not (address.is_loopback or address.is_link_local)


_CLONE_NEWNET: Final = 0x4000_0000
_OWN: Final = Path("/proc/thread-self/ns/net")
_GETLINK, _GETADDR, _GETNEIGH, _GETNSID = 18, 22, 30, 90
"""RTM_GETLINK and so on (linux/rtnetlink.h)."""
_LINK: Final = struct.Struct("=BxHiII")
_ADDRESS: Final = struct.Struct("=BBBBI")
_NEIGHBOUR: Final = struct.Struct("=BxxxiHBB")
_IFNAME, _LINK_NETNSID = 3, 37
_IFA_ADDRESS, _IFA_LOCAL, _NDA_DST = 1, 2, 1
_NSID, _FD = 1, 3
"""Attributes NETNSA_NSID and NETNSA_FD (linux/net_namespace.h)."""
_REACHABLE: Final = 0x2
"""NUD_REACHABLE: the kernel has the neighbour's word, of the last half minute."""
_ATTEMPTS: Final = 5


def _dump(kind: int, body: bytes) -> list[bytes]:
    """Returns the messages of a dump, all of one moment. Raises OSError."""
    for _ in range(_ATTEMPTS - 1):
        with netlink.open_netlink(socket.NETLINK_ROUTE) as kernel:
            try:
                return [content for _, content in _exchange(kernel, kind, body, netlink.DUMP)]
            except InterruptedError:
                continue
    with netlink.open_netlink(socket.NETLINK_ROUTE) as kernel:
        return [content for _, content in _exchange(kernel, kind, body, netlink.DUMP)]


def _exchange(kernel: socket.socket, kind: int, body: bytes, flags: int = 0) -> list[tuple[int, bytes]]:
    return list(netlink.exchange(kernel, netlink.message(kind, body, netlink.REQUEST | flags)))


def _links() -> list[_Link]:
    found = list[_Link]()
    for message in _dump(_GETLINK, _LINK.pack(0, 0, 0, 0, 0)):
        known = netlink.attributes(message[_LINK.size :])
        number = _signed(known.get(_LINK_NETNSID))
        found.append(_Link(_LINK.unpack_from(message)[2], netlink.text(known.get(_IFNAME, b"")), number))
    return found


def _addresses_by_link() -> Iterator[tuple[int, bytes]]:
    """The addresses of this thread's network namespace, each with the index of its interface."""
    for message in _dump(_GETADDR, _ADDRESS.pack(0, 0, 0, 0, 0)):
        known = netlink.attributes(message[_ADDRESS.size :])
        packed = known.get(_IFA_LOCAL) or known.get(_IFA_ADDRESS)
        if packed:
            yield _ADDRESS.unpack_from(message)[4], packed


def _answering() -> set[bytes]:
    found = set[bytes]()
    for message in _dump(_GETNEIGH, _NEIGHBOUR.pack(0, 0, 0, 0, 0)):
        if _NEIGHBOUR.unpack_from(message)[2] & _REACHABLE:
            found.add(netlink.attributes(message[_NEIGHBOUR.size :]).get(_NDA_DST, b""))
    return found


def _signed(value: bytes | None) -> int:
    return int.from_bytes(value, sys.byteorder, signed=True) if value is not None else -1


def _namespaces() -> tuple[list[_Namespace], str]:
    """Enters each network namespace that is seen, and reads its addresses; and why one could not be entered.

    It leaves the thread in the last one. Raises OSError.
    """
    found, obstacle, seen = list[_Namespace](), "", {_OWN.stat().st_ino}
    library = ctypes.CDLL(None, use_errno=True)
    with netlink.open_netlink(socket.NETLINK_ROUTE) as home:
        for place in _places():
            try:
                if Path(place).stat().st_ino in seen:
                    continue
                descriptor = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
            except (FileNotFoundError, ProcessLookupError):  # it has ended
                continue
            except OSError as error:
                obstacle = obstacle or f"network namespaces cannot be seen ({error.strerror}): use sudo"
                continue
            try:
                seen.add(inode := os.fstat(descriptor).st_ino)
                number = _number(home, descriptor)
                if library.setns(descriptor, _CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
                addresses = frozenset(packed for _, packed in _addresses_by_link())
                found.append(_Namespace(place, number, inode, addresses))
            except OSError as error:
                if error.errno != errno.EINVAL:  # else it was one when it was listed
                    obstacle = obstacle or f"the network namespace {place} cannot be entered ({error.strerror})"
            finally:
                os.close(descriptor)
    return found, obstacle


def _number(home: socket.socket, descriptor: int) -> int:
    body = bytes(4) + netlink.attribute(_FD, struct.pack("=I", descriptor))
    for _, content in _exchange(home, _GETNSID, body):
        return _signed(netlink.attributes(content[4:]).get(_NSID))
    return -1


def _places() -> Iterator[str]:
    """The files that stand for network namespaces: those that are mounted, then those of processes."""
    for line in Path("/proc/thread-self/mountinfo").read_text(errors="surrogateescape").splitlines():
        fields, _, kind = line.partition(" - ")
        *_, root, place = fields.split(" ")[:5]
        if kind.startswith("nsfs ") and root.startswith("net:"):
            yield place.replace("\\040", " ")
    yield from (f"{each}/ns/net" for each in _processes())
