"""One gRPC servicer for several networks: the request's field `network` says which one answers."""

from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any

from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass

from flannelette.services.core.errors import InvalidInput
from flannelette.services.runtime.telemetry.network import DEFAULT, enter_network


def by_network(servicers: Mapping[str, Any], service: ServiceDescriptor) -> Any:
    """A servicer that passes each call on. Answers with a field `network` say whose they are.

    Raises InvalidInput in a call, with the names, for a network that is not served, and for none where there are
    several, of which none is called default.
    """
    make = {True: _streaming, False: _unary}
    return SimpleNamespace(**{each.name: make[each.server_streaming](servicers, each) for each in service.methods})


def chosen(names: Mapping[str, Any], name: str) -> str:
    """Returns the name of the network that a request means. Raises InvalidInput."""
    if name in names:
        return name
    if not name and (len(names) == 1 or DEFAULT in names):
        return next(iter(names)) if len(names) == 1 else DEFAULT
    if "" in names:
        if name == DEFAULT:
            return ""
        raise InvalidInput(f"there is no network {name!r} here: this service has one network, without a name")
    there = f"this service has {', '.join(names)}"
    raise InvalidInput(
        f"there is no network {name!r} here: {there}" if name else f"say which network (--network): {there}"
    )


def _unary(servicers: Mapping[str, Any], method: MethodDescriptor) -> Any:
    fields, names = method.output_type.fields_by_name, [name for name in servicers if name]

    async def call(request: Any, context: Any) -> Any:
        if "networks" in fields and request.networks_only:
            return GetMessageClass(method.output_type)(networks=names)
        name = chosen(servicers, request.network)
        enter_network(name)
        answer = await getattr(servicers[name], method.name)(request, context)
        if "network" in fields:
            answer.network = name
        if "networks" in fields:
            answer.networks.extend(names)
        return answer

    return call


def _streaming(servicers: Mapping[str, Any], method: MethodDescriptor) -> Any:
    tells = "network" in method.output_type.fields_by_name

    async def call(request: Any, context: Any) -> AsyncIterator[Any]:
        name = chosen(servicers, request.network)
        enter_network(name)
        async with aclosing(getattr(servicers[name], method.name)(request, context)) as answers:
            async for answer in answers:
                if tells:
                    answer.network = name
                yield answer

    return call
