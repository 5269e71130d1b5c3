"""One call to one service: its answer, or why there is none."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeVar

import grpc
import grpc.aio

from services.core.errors import Misconfigured
from services.ctl.diagnosis import diagnose
from services.ctl.options import Shared
from services.ctl.targets import Target
from services.runtime.tls.credentials import Credentials
from services.runtime.tls.files import chosen_files
from services.runtime.transport import Transport

M = TypeVar("M")

SHORT_SECONDS: Final = 3.0
"""For calls that answer from memory."""
LONG_SECONDS: Final = 60.0
"""For calls that change the kernel."""

_CHANNEL_OPTIONS: Final = (
    ("grpc.max_receive_message_length", -1),  # a table of 20,000 leases is larger than the default of 4 MiB
    ("grpc.min_reconnect_backoff_ms", 3_000),  # also the time a connection may take
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 4_000),  # keepalive_timeout_ms has no effect in this core
)


class Failure(Exception):
    """A call that brought no answer; the message is one or two sentences that say what to do."""

    def __init__(
        self, sentence: str, *, reached: bool = False, missing: bool = False, may_pass: bool = False
    ) -> None:
        super().__init__(sentence)
        self.reached = reached
        """The service answered, and the answer is an error."""
        self.missing = missing
        """There is no socket: the service does not run here, or has stopped."""
        self.may_pass = may_pass
        """Asking again later can help."""

    @property
    def exit_code(self) -> int:
        """1: the service says that something is not well. 2: it could not be asked."""
        return 1 if self.reached else 2


@asynccontextmanager
async def channel_to(target: Target) -> AsyncIterator[grpc.aio.Channel]:
    """A channel; an error of a call in the block is raised as Failure."""
    async with target.transport.channel(target.address, _CHANNEL_OPTIONS) as channel:
        try:
            yield channel
        except grpc.aio.AioRpcError as error:
            raise await _failure(target, error, channel) from None


def transport(shared: Shared) -> Transport:
    """How to talk TCP, by the options. Raises Failure: the certificate cannot be used."""
    try:
        files = chosen_files(shared.tls_cert_file or "", shared.tls_key_file or "", shared.tls_ca_file or "")
        credentials = Credentials(files) if files else None
    except Misconfigured as error:
        raise Failure(str(error)) from None
    return Transport(credentials, shared.tls_server_name or "", dangerously=True)


async def ask(target: Target, call: Callable[[grpc.aio.Channel], Awaitable[M]], seconds: float = SHORT_SECONDS) -> M:
    """The answer of `call`. Raises Failure, also when there is none within `seconds`."""
    try:
        async with channel_to(target) as channel, asyncio.timeout(seconds):
            return await call(channel)
    except TimeoutError:
        raise Failure(
            f"{target.program} at {target.address} did not answer within {seconds:g} s: "
            "its process is stopped or overloaded; look at its log"
        ) from None


async def _failure(target: Target, error: grpc.aio.AioRpcError, channel: grpc.aio.Channel) -> Failure:
    details = error.details() or error.code().name
    if error.code() is grpc.StatusCode.UNIMPLEMENTED and "ethod not found" in details:
        return Failure(f"whoever listens at {target.address} is not {target.program}: check --{target.service}")
    away = error.code() is grpc.StatusCode.UNAVAILABLE
    # A server that is there can say UNAVAILABLE too; the state of the channel tells it from one that is not.
    if not away or channel.get_state() is grpc.ChannelConnectivity.READY:
        return Failure(details, reached=True, may_pass=away)
    diagnosis = await asyncio.to_thread(diagnose, target, details)
    return Failure(diagnosis.sentence, missing=diagnosis.missing, may_pass=True)
