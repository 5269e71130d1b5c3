"""gRPC reflection, v1 and v1alpha, so that grpcurl needs no .proto files and `describe` knows every symbol.

grpcurl uses v1 first; grpcio has only v1alpha, and no descriptor of v1. The messages of both are the same.
"""

from collections.abc import Iterable
from typing import Any, Final

import grpc
import grpc.aio
from google.protobuf import descriptor_pb2, descriptor_pool
from grpc_reflection.v1alpha import reflection, reflection_pb2
from grpc_reflection.v1alpha.reflection import aio as grpc_reflection

_V1ALPHA: Final = "grpc.reflection.v1alpha"
_V1: Final = "grpc.reflection.v1"
_V1_SERVICE: Final = f"{_V1}.ServerReflection"


class _Pool:
    """The default pool, which here also finds methods, fields and enum values, by the file of their parent."""

    def __init__(self) -> None:
        self._pool: Any = descriptor_pool.Default()
        _add_v1(self._pool)

    def FindFileContainingSymbol(self, name: str) -> Any:  # noqa: N802 - grpcio's name
        """Raises KeyError for an unknown symbol."""
        try:
            return self._pool.FindFileContainingSymbol(name)
        except KeyError:
            return self._pool.FindFileContainingSymbol(name.rpartition(".")[0])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)


def enable_reflection(services: Iterable[str], server: grpc.aio.Server) -> None:
    """Adds reflection of these services, by full name, and of reflection itself to the server."""
    names = (*services, reflection.SERVICE_NAME, _V1_SERVICE)
    servicer: Any = grpc_reflection.ReflectionServicer(names, _Pool())
    handler = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers(
        tuple(
            grpc.method_handlers_generic_handler(name, {"ServerReflectionInfo": handler})
            for name in (reflection.SERVICE_NAME, _V1_SERVICE)
        )
    )


def _add_v1(pool: Any) -> None:
    """Adds the descriptor of v1, a renamed copy of v1alpha's, to the pool. A second call changes nothing."""
    file = descriptor_pb2.FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(file)
    file.name = file.name.replace("v1alpha", "v1")
    file.package = _V1
    for message in file.message_type:
        for field in message.field:
            if field.type_name:  # assigning to an unset field would set it
                field.type_name = field.type_name.replace(_V1ALPHA, _V1)
    for service in file.service:
        for method in service.method:
            method.input_type = method.input_type.replace(_V1ALPHA, _V1)
            method.output_type = method.output_type.replace(_V1ALPHA, _V1)
    pool.AddSerializedFile(file.SerializeToString())
