"""One call to one service: its answer, or the reason why there is none and what to do about it.

Calls name the network that they are about, and no text of an answer ends a line: the ends of lines are hidden
(`services/core/formats/text.py`) before anything is laid out, and shown as escapes by the screen, so that nothing
from outside begins a line of its own; in requests, and as JSON, texts are as the service has them.
"""

import asyncio
import grp
import os
import pwd
import socket
import stat
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping, MutableMapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self, TypeVar, cast

import grpc
import grpc.aio
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2, health_pb2_grpc

from flannelette.services.core.errors import Misconfigured
from flannelette.services.core.formats.text import hide_line_ends, show_line_ends, word_list
from flannelette.services.core.frozen import frozen
from flannelette.services.ctl.connect.targets import Target, networks_by_socket
from flannelette.services.runtime.backoff import Backoff
from flannelette.services.runtime.rpc.transport import Transport
from flannelette.services.runtime.tls import Credentials, chosen_files


def on_one_line(channel: grpc.aio.Channel) -> grpc.aio.Channel:
    """Returns a channel whose answers have each text on one line."""
    return cast(grpc.aio.Channel, _OneLineChannel(channel))


class _OneLineChannel:
    """The part of a channel that generated stubs and `channel_to` use."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    async def __aenter__(self) -> "_OneLineChannel":
        await self._channel.__aenter__()
        return self

    async def __aexit__(self, *failure: Any) -> None:
        await self._channel.__aexit__(*failure)

    def unary_unary(self, method: str, request_serializer: Any, response_deserializer: Any, **more: Any) -> Any:
        """See grpc.aio."""
        return self._channel.unary_unary(method, _written(request_serializer), _read(response_deserializer), **more)

    def unary_stream(self, method: str, request_serializer: Any, response_deserializer: Any, **more: Any) -> Any:
        """See grpc.aio."""
        return self._channel.unary_stream(method, _written(request_serializer), _read(response_deserializer), **more)


def _read(parse: Callable[[bytes], Message]) -> Callable[[bytes], Message]:
    def read(data: bytes) -> Message:
        message = parse(data)
        change_texts(message, hide_line_ends)
        return message

    return read


def _written(serialize: Callable[[Message], bytes]) -> Callable[[Message], bytes]:
    def write(message: Message) -> bytes:
        shown = type(message)()
        shown.CopyFrom(message)
        change_texts(shown, show_line_ends)
        return serialize(shown)

    return write


def change_texts(message: Message, change: Callable[[str], str]) -> None:
    """Changes every text in the message, however deep."""
    for field, value in message.ListFields():
        if isinstance(value, str):
            if (changed := change(value)) != value:
                setattr(message, field.name, changed)
        elif isinstance(value, Message):
            change_texts(value, change)
        elif field.message_type is not None and field.message_type.GetOptions().map_entry:
            _change_map(value, change)
        elif field.message_type is not None:
            for each in value:
                change_texts(each, change)
        elif field.type == field.TYPE_STRING:
            value[:] = [change(each) for each in value]


def _change_map(value: MutableMapping[Any, Any], change: Callable[[str], str]) -> None:
    for key in [*value]:
        of_key = value[key]
        if isinstance(of_key, Message):
            change_texts(of_key, change)
        elif isinstance(key, str) and isinstance(of_key, str):
            del value[key]
            value[change(key)] = change(of_key)


def calls_in(network: str) -> Sequence[grpc.aio.ClientInterceptor]:
    """Returns the interceptors for a channel whose calls are about this network; none for the only one, without a
    name.
    """
    return (_UnaryInNetwork(network), _StreamInNetwork(network)) if network else ()


class _InNetwork:
    """Sets the field `network` of a request that has one, unless the request names a network itself."""

    def __init__(self, network: str) -> None:
        self._network = network

    async def _call(self, continuation: Any, details: Any, request: Any) -> Any:
        if "network" in request.DESCRIPTOR.fields_by_name and isinstance(request.network, str):
            request.network = request.network or self._network
        return await continuation(details, request)


class _UnaryInNetwork(_InNetwork, grpc.aio.UnaryUnaryClientInterceptor):
    """The interceptor of calls with one answer."""

    async def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        """See grpc.aio."""
        return await self._call(continuation, client_call_details, request)


class _StreamInNetwork(_InNetwork, grpc.aio.UnaryStreamClientInterceptor):
    """The interceptor of calls with a stream of answers."""

    async def intercept_unary_stream(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        """See grpc.aio."""
        return await self._call(continuation, client_call_details, request)


K = TypeVar("K")
M = TypeVar("M")
T = TypeVar("T")

LIST_SECONDS: Final = 15.0
"""Seconds for a call whose answer is long."""
SHORT_SECONDS: Final = 3.0
"""Seconds for a call that is answered from memory."""
LONG_SECONDS: Final = 60.0
"""Seconds for a call that changes the kernel."""
MOST_AT_ONCE: Final = 16
"""Nodes that are asked at the same time."""
_LONGEST_PATH: Final = 107
"""sun_path of unix(7) is 108 bytes with its closing zero."""
_CONNECT_SECONDS: Final = 1.0
_LOOK_AT_LOG: Final = "look at its log"
"""What a person does about a process that does not answer."""
_STOPPED: Final = "its process is stopped or overloaded"

_COMMON_OPTIONS: Final = (
    ("grpc.max_receive_message_length", -1),  # a table of 20,000 leases is larger than the default of 4 MiB
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 4_000),  # keepalive_timeout_ms has no effect in this core
)
_DIAL_SECONDS: Final = 20.0
"""More for a service that a command connects: ssh logs in, and a Python starts there."""
_CONNECT_MS: Final = "grpc.min_reconnect_backoff_ms"
"""Also the time that a connection may take."""


class CallFailed(Exception):
    """A failed call; the message is one or two sentences with the cause and the remedy."""

    def __init__(
        self,
        sentence: str,
        *,
        reached: bool = False,
        missing: bool = False,
        may_pass: bool = False,
        why: "AddressProblem | None" = None,
    ) -> None:
        super().__init__(sentence)
        self.why = why or AddressProblem(sentence)
        """The same, the remedy apart."""
        self.reached = reached
        """The service answered, and the answer is an error."""
        self.missing = missing
        """There is no socket: the service does not run here, or has stopped."""
        self.may_pass = may_pass
        """A later call may succeed."""

    @property
    def exit_code(self) -> int:
        """1: the service answered with an error. 2: the service did not answer."""
        return 1 if self.reached else 2


@asynccontextmanager
async def channel_to(target: Target) -> AsyncIterator[grpc.aio.Channel]:
    """A channel; an error of a call in the block is raised as CallFailed."""
    async with _channel(target) as channel:
        try:
            yield channel
        except grpc.aio.AioRpcError as error:
            raise await _failure(target, error, channel) from None


async def across_restarts(
    target: Target,
    begin: Callable[[grpc.aio.Channel], AsyncIterable[M]],
    lost: Callable[[str], None],
    *,
    has_answered: bool = False,
) -> AsyncIterator[M]:
    """Yields what a service streams, also after it was away; never ends by itself.

    `begin` calls it, from where the last stream ended. `lost` gets the sentence why there is no stream, once for each
    reason. Raises CallFailed where a later call will fail as well, and where the service has never answered.
    """
    pauses, said = Backoff(), ""
    while True:
        reason = f"{target.program} ended the stream"
        try:
            async with channel_to(target) as channel:
                async for each in begin(channel):
                    if not has_answered or said:
                        has_answered, said = True, ""
                        pauses.reset()
                    yield each
        except CallFailed as failure:
            if not has_answered or not failure.may_pass:
                raise
            reason = str(failure)
        if reason != said:
            said = reason
            lost(f"connection lost: {reason}; trying again")
        await asyncio.sleep(pauses.next())


def _channel(target: Target) -> grpc.aio.Channel:
    milliseconds = int(_DIAL_SECONDS * 1000) if target.dialer else 3_000
    options = (*_COMMON_OPTIONS, (_CONNECT_MS, milliseconds))
    return on_one_line(target.transport.channel(target.address, options, calls_in(target.network)))


def transport(certificate: str, key: str, authorities: str, server_name: str) -> Transport:
    """TCP with these TLS files, all empty for none. Raises CallFailed: the certificate cannot be used."""
    try:
        files = chosen_files(certificate, key, authorities)
        credentials = Credentials(files) if files else None
    except Misconfigured as error:
        raise CallFailed(str(error)) from None
    return Transport(credentials, server_name, dangerously=True)


@dataclass(slots=True)
class _Shared:
    """A channel, and how many calls use it."""

    channel: grpc.aio.Channel
    calls: int = 0


class Channels:
    """Channels that stay open between calls, one for each address."""

    def __init__(self) -> None:
        self._by_address: dict[tuple[str, str], _Shared] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        while self._by_address:
            await self._by_address.popitem()[1].channel.close()

    async def ask(
        self, target: Target, call: Callable[[grpc.aio.Channel], Awaitable[M]], seconds: float = SHORT_SECONDS
    ) -> M:
        """The answer of `call`. Raises CallFailed, also when there is none within `seconds`."""
        seconds += _DIAL_SECONDS if target.dialer else 0
        key = (target.address, target.network)
        shared = self._by_address.get(key)
        if shared is None:
            shared = self._by_address[key] = _Shared(_channel(target))
        shared.calls += 1
        try:
            async with asyncio.timeout(seconds):
                return await call(shared.channel)
        except grpc.aio.AioRpcError as error:
            failure = await _failure(target, error, shared.channel)
            self._give_up(key, shared)  # a new channel connects at once, an old one after a growing pause
            raise failure from None
        except TimeoutError:
            self._give_up(key, shared)
            what = f"{target.program} at {target.where} did not answer within {seconds:g} s: {_STOPPED}"
            why = AddressProblem(what, _LOOK_AT_LOG, "; ")
            raise CallFailed(why.sentence, may_pass=True, why=why) from None
        finally:
            shared.calls -= 1
            if not shared.calls and self._by_address.get(key) is not shared:
                await shared.channel.close()  # earlier it would cancel the other calls

    def _give_up(self, key: tuple[str, str], shared: _Shared) -> None:
        if self._by_address.get(key) is shared:
            del self._by_address[key]


async def ask(target: Target, call: Callable[[grpc.aio.Channel], Awaitable[M]], seconds: float = SHORT_SECONDS) -> M:
    """Makes one call, as `Channels.ask` does."""
    async with Channels() as channels:
        return await channels.ask(target, call, seconds)


async def of_each(
    things: Mapping[K, T], call: Callable[[K, T], Awaitable[M]], most: int = MOST_AT_ONCE
) -> dict[K, M]:
    """What `call` returns for each key and value, in their order; at most so many run at the same time."""
    turns = asyncio.Semaphore(most)

    async def one(key: K, thing: T) -> M:
        async with turns:
            return await call(key, thing)

    return dict(zip(things, await asyncio.gather(*map(one, things, things.values())), strict=True))


async def or_failure(call: Awaitable[M]) -> M | CallFailed:
    """The answer of a call, or why there is none."""
    try:
        return await call
    except CallFailed as failure:
        return failure


async def ask_lease_service(target: Target, call: Callable[[grpc.aio.Channel], Awaitable[M]]) -> M:
    """Makes one call to a lease service; the error for a missing socket says how to name a central lease service."""
    try:
        return await ask(target, call, LIST_SECONDS)
    except CallFailed as failure:
        raise with_hint(target, failure) from None


def with_hint(target: Target, failure: CallFailed) -> CallFailed:
    """The failure of a call to the lease service, with a hint that this may run on another host."""
    if not failure.missing or target.named:
        return failure
    hint = f"{failure}. If the lease service is central, name it: --lease unix:/PATH/lease.sock"
    return CallFailed(hint, missing=True)


async def _failure(target: Target, error: grpc.aio.AioRpcError, channel: grpc.aio.Channel) -> CallFailed:
    details = hide_line_ends(error.details() or error.code().name)
    if error.code() is grpc.StatusCode.UNIMPLEMENTED and "ethod not found" in details:
        if await _is_served(target, channel):
            old = "is of an older release, which does not have this call: upgrade it"
            return CallFailed(f"{target.program} at {target.where} {old}", reached=True)
        return CallFailed(f"the server at {target.where} is not {target.program}: check --{target.service}")
    away = error.code() is grpc.StatusCode.UNAVAILABLE
    # A connected server can answer UNAVAILABLE too; the state of the channel shows whether there is one.
    if not away or channel.get_state() is grpc.ChannelConnectivity.READY:
        return CallFailed(details, reached=True, may_pass=away)
    diagnosis = await asyncio.to_thread(diagnose, target, details)
    return CallFailed(diagnosis.sentence, missing=diagnosis.missing, may_pass=True, why=diagnosis)


async def _is_served(target: Target, channel: grpc.aio.Channel) -> bool:
    """The server has health of this service, whatever that is."""
    name = f"flannelette.{target.service}.v1.{target.service.capitalize()}Service"
    request = health_pb2.HealthCheckRequest(service=name)
    try:
        await health_pb2_grpc.HealthStub(channel).Check(request, timeout=SHORT_SECONDS)
    except grpc.aio.AioRpcError:
        return False
    return True


@frozen
class AddressProblem:
    """Why a service cannot be reached at an address."""

    problem: str
    advice: str = ""
    """What a person does about it."""
    glue: str = ": "
    """What stands between the two."""
    missing: bool = False
    """There is no socket at all: the service does not run here, or never did."""
    down: bool = False
    """There is a socket, and no process has it."""
    options: tuple[str, ...] = ()
    """The options that may be wrong."""

    @property
    def sentence(self) -> str:
        """The problem and the advice."""
        return f"{self.problem}{self.glue}{self.advice}" if self.advice else self.problem


def diagnose(target: Target, details: str) -> AddressProblem:
    """Connects to the address without gRPC, to find out why a call failed; `details` is the message of gRPC."""
    if target.dialer:
        failure = target.dialer.failure() or f"{target.program} at {target.where} does not answer: {details}"
        return AddressProblem(failure, missing=target.dialer.is_missing)
    if target.path is None:
        return AddressProblem(target.transport.explain_failure(target.address, target.program, details))
    return _diagnose_path(target, target.path, details)


def _diagnose_path(target: Target, path: Path, details: str) -> AddressProblem:
    if len(os.fsencode(path)) > _LONGEST_PATH:
        return AddressProblem(f"the socket path {path} is longer than the {_LONGEST_PATH} bytes that Linux allows")
    try:
        if not stat.S_ISSOCK(path.stat().st_mode):
            return AddressProblem(f"{path} is not a socket: check {_option(target)}", options=(_option(target),))
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_CONNECT_SECONDS)
            connection.connect(str(path))
    except (FileNotFoundError, NotADirectoryError):
        return _missing(target, path)
    except PermissionError:
        return AddressProblem(_denied(path))
    except ConnectionRefusedError:
        return AddressProblem(
            f"no process listens on {path}: {target.program} was killed", "start it again", "; ", down=True
        )
    except OSError as error:
        return AddressProblem(f"cannot connect to {path}: {error.strerror or error}")
    silent = f"{target.program} at {target.where} does not answer"
    if "timed out" in details:
        return AddressProblem(f"{silent}: {_STOPPED}", _LOOK_AT_LOG, "; ")
    return AddressProblem(f"{silent}: {details}")


def _missing(target: Target, path: Path) -> AddressProblem:
    if Path(f"{path}.lock").exists():  # a service leaves its lock file when it stops
        gone = f"{target.program} has stopped, its socket {path} is gone"
        return AddressProblem(gone, "start it again", missing=True)
    if not path.parent.is_dir():
        return AddressProblem(
            f"there is no directory {path.parent}: no service has run here, or it uses another --socket-dir",
            missing=True,
            options=("--socket-dir",),
        )
    program = f"{target.program} --network={target.network}" if target.network else target.program
    cure, options = f"start {program}, or check {_option(target)}", [_option(target)]
    if networks := networks_by_socket(target):
        cure, options = f"give --network {word_list(networks)}, or {cure}", ["--network", *options]
    return AddressProblem(f"there is no socket {path}", cure, missing=True, options=(*options,))


def _option(target: Target) -> str:
    return f"--{target.service}" if target.named else "--socket-dir"


def _denied(path: Path) -> str:
    """Names the first directory of the path, or the socket, that denies access, and who has it."""
    way = [*reversed(path.absolute().parents), path.absolute()]
    closed = next((p for p in way if not os.access(p, os.X_OK if p != way[-1] else os.W_OK)), path)
    kind = "socket" if closed == way[-1] else "directory"
    status = closed.stat()
    return f"no permission for the {kind} {closed}: {who_may(status.st_mode, status.st_uid, status.st_gid)}"


def who_may(mode: int, user_id: int, group_id: int) -> str:
    """Says who has access to a file of this mode and owner, and how to become one of them."""
    if mode & stat.S_IRWXG and group_id != 0:
        group = _group_name(group_id)
        if not group:
            return f"group {group_id} may; use sudo, or run this as a user of group {group_id}"
        return f"group {group} may; use sudo, or join it (sudo usermod -aG {group} $USER, then log in again)"
    if user_id == 0:
        return "only root may; use sudo"
    return f"only user {_user_name(user_id) or user_id} may; use sudo"


def _group_name(group_id: int) -> str:
    try:
        return grp.getgrgid(group_id).gr_name
    except KeyError:
        return ""


def _user_name(user_id: int) -> str:
    try:
        return pwd.getpwuid(user_id).pw_name
    except KeyError:
        return ""
