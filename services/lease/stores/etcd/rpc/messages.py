"""etcd's messages and stubs, out of the package `etcd3`, on a protobuf that refuses its generated code.

Guarantees: `rpc` has the message classes of etcd's rpc.proto and `stubs` the gRPC stubs that use them, parsed by
protobuf's C core; the default descriptor pool and symbol database and the environment are left alone.

How: protobuf >= 4 refuses to run etcd3's generated modules, but their serialized descriptors are plain constants
in them. These are read without running them, put into a pool of our own, and the classes made from that pool take
the places of the modules before etcd3 asks for them. About 30 ms; as with any generated code, at import.
"""

import importlib.util
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from flannelette.services.core.errors import Misconfigured
from flannelette.services.runtime.os.partial_import import partial_import

__all__ = ["rpc", "stubs"]

_FILES: Final = ("kv", "auth", "rpc")
"""Names of etcd's files of messages, in the order of their imports."""


def _install() -> None:
    spec = importlib.util.find_spec("etcd3")
    if spec is None or not spec.submodule_search_locations:
        raise Misconfigured("the etcd store needs the package etcd3: pip install 'flannelette[lease]'")
    directory = Path(spec.submodule_search_locations[0], "etcdrpc")
    pool = DescriptorPool()
    for file in _FILES:
        name = f"etcd3.etcdrpc.{file}_pb2"
        pool.AddSerializedFile(_descriptor(directory / f"{file}_pb2.py", name, f"{file}.proto"))
        descriptor = pool.FindFileByName(f"{file}.proto")
        module = ModuleType(name, "Message classes from a private pool.")
        vars(module).update(
            DESCRIPTOR=descriptor,
            **{key: GetMessageClass(message) for key, message in descriptor.message_types_by_name.items()},
        )
        sys.modules.setdefault(name, module)


def _descriptor(path: Path, module: str, file: str) -> bytes:
    """The serialized FileDescriptorProto among the constants of a generated module: it starts with its name."""
    code = SourceFileLoader(module, str(path)).get_code(module)
    start = f"\n{chr(len(file))}{file}"
    found = [c for c in (code.co_consts if code else ()) if isinstance(c, str) and c.startswith(start)]
    if len(found) != 1:
        raise Misconfigured("the package etcd3 is not version 0.12.0: pip install etcd3==0.12.0")
    return found[0].encode("latin-1")


_install()

with partial_import("etcd3"):  # whose client we do not use: 15 ms, with what it imports
    from etcd3.etcdrpc import rpc_pb2, rpc_pb2_grpc  # only after the places are taken

rpc: Final[Any] = rpc_pb2
stubs: Final[Any] = rpc_pb2_grpc
