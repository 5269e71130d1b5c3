"""What the nodes of one process share: each message is parsed once, and equal leases are one object.

The lease service sends many nodes the same bytes. Without this, 5,000 tables of 5,000 leases take 20 GB. What a node
does with a step, from the fold on, it does by itself.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import grpc.aio

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.services.core.frozen import frozen
from flannelette.services.core.leases.lease import Lease
from flannelette.services.core.leases.table import Change, Step, Upserted
from flannelette.services.runtime.lease.feed import LeaseConnection
from flannelette.services.runtime.rpc.transport import Options, Transport

_MOST: Final = 512
"""Messages that are remembered: nodes that are behind each other by more parse again."""
_OWN_CONNECTION: Final = (("grpc.use_local_subchannel_pool", 1),)
"""Channel option for a connection of its own, as a process of its own would have it; else all channels of a process
to one address share a connection."""


class Shared:
    """The messages and leases of a process, and how much its nodes have received."""

    def __init__(self) -> None:
        self.calls = Counter[str]()
        """Calls that are no streams, by method."""
        self.messages = 0
        self.bytes = 0
        self.parsed = 0
        self._messages: OrderedDict[bytes, pb.WatchLeasesResponse] = OrderedDict()
        self._steps: dict[int, Step | None] = {}
        """Steps by the identity of a message that is remembered; None: nobody has asked for its step yet."""
        self._leases: dict[Lease, Lease] = {}

    def message(self, data: bytes, parse: Callable[[bytes], pb.WatchLeasesResponse]) -> pb.WatchLeasesResponse:
        """The message in these bytes, the same object for all nodes."""
        self.messages += 1
        self.bytes += len(data)
        known = self._messages.get(data)
        if known is not None:
            self._messages.move_to_end(data)
            return known
        self.parsed += 1
        made = self._messages[data] = parse(data)
        self._steps[id(made)] = None
        if len(self._messages) > _MOST:
            del self._steps[id(self._messages.popitem(last=False)[1])]
        return made

    def step(self, message: pb.WatchLeasesResponse, read: Callable[[pb.WatchLeasesResponse], Step]) -> Step:
        """The step in a message, the same object for all nodes."""
        known = self._steps.get(id(message))
        if known is None:
            step = read(message)
            known = replace(step, changes=tuple(map(self._change, step.changes)))
            if id(message) in self._steps:
                self._steps[id(message)] = known
        return known

    def _change(self, change: Change) -> Change:
        if isinstance(change, Upserted):
            return Upserted(self._leases.setdefault(change.lease, change.lease))
        return change


class SharedConnection(LeaseConnection):
    """A dataplane's connection that parses no message which another node of the process has parsed."""

    def __init__(self, address: str, node: str, shared: Shared) -> None:
        super().__init__(address, node, SharedTransport(shared=shared))
        self._shared = shared

    def read(self, message: pb.WatchLeasesResponse) -> Step:
        """See LeaseConnection."""
        return self._shared.step(message, super().read)


@frozen
class SharedTransport(Transport):
    """Makes channels whose messages of leases go through `shared`."""

    shared: Shared = None  # type: ignore[assignment]  # a field without a default cannot follow Transport's

    def channel(
        self, address: str, options: Options = (), interceptors: Sequence[grpc.aio.ClientInterceptor] = ()
    ) -> grpc.aio.Channel:
        """See Transport."""
        # A class with slots is another one than that of super().
        own = super(SharedTransport, self).channel(address, (*options, *_OWN_CONNECTION), interceptors)  # noqa: UP008
        made: Any = _Channel(own, self.shared)
        return made  # type: ignore[no-any-return]  # as far as a stub and ServerChannel use it


class _Channel:
    """A channel, as far as a lease client uses it."""

    def __init__(self, channel: grpc.aio.Channel, shared: Shared) -> None:
        self._channel: Any = channel
        self._shared = shared

    def unary_unary(self, method: str, **named: Any) -> Any:
        call, name = self._channel.unary_unary(method, **named), method.rpartition("/")[2]

        def counted(*arguments: Any, **how: Any) -> Any:
            self._shared.calls[name] += 1
            return call(*arguments, **how)

        return counted

    def unary_stream(self, method: str, *, response_deserializer: Callable[[bytes], Any], **named: Any) -> Any:
        def parse(data: bytes) -> Any:
            return self._shared.message(data, response_deserializer)

        return self._channel.unary_stream(method, response_deserializer=parse, **named)

    async def close(self) -> None:
        await self._channel.close()
