"""etcd3's messages on a modern protobuf, and what that leaves alone."""

import os
import subprocess
import sys

from flannelette.services.lease.stores.etcd.client import rpc, stubs


def test_messages_survive_the_wire() -> None:
    request = rpc.RangeRequest(key=b"/coreos.com/network/", range_end=b"/coreos.com/network0", limit=500)
    assert rpc.RangeRequest.FromString(request.SerializeToString()) == request
    assert rpc.WatchResponse.FromString(b"\x5a\x04\x12\x02\x0a\x00").events[0].kv.key == b""


def test_the_parts_that_we_need_are_there() -> None:
    assert rpc.Compare(key=b"a", range_end=b"b", target=rpc.Compare.MOD, result=rpc.Compare.LESS).range_end == b"b"
    for name in ("KVStub", "LeaseStub", "WatchStub", "AuthStub"):
        assert hasattr(stubs, name)


def test_the_environment_and_the_default_pool_are_left_alone() -> None:
    program = """
import os
before = dict(os.environ)
from google.protobuf import descriptor_pool, symbol_database
from google.protobuf.internal import api_implementation
import flannelette.services.lease.stores.etcd.client
assert os.environ == before
assert api_implementation.Type() != "python", api_implementation.Type()
for pool in (descriptor_pool.Default(), symbol_database.Default().pool):
    for file in ("kv.proto", "auth.proto", "rpc.proto"):
        try:
            pool.FindFileByName(file)
        except KeyError:
            continue
        raise AssertionError(file)
"""
    subprocess.run(
        [sys.executable, "-c", program], check=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    )
