"""etcd on a plain socket, as the benches use it: what goes out, and what is found in what comes back."""

import asyncio
import struct

import pytest

from bench.bare_etcd import BareEtcd
from bench.result import BenchFailed
from flannelette.services.lease.stores.etcd.client import rpc

_DATA, _HEADERS, _WINDOW_UPDATE, _END = 0, 1, 8, 1
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


class Wire(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.sent = bytearray()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent += data

    def frames(self) -> list[tuple[int, int, int, bytes]]:
        """What was sent since the last look: kind, flags, stream, payload."""
        data, found = bytes(self.sent).removeprefix(_PREFACE), []
        self.sent.clear()
        while data:
            end = 9 + int.from_bytes(data[:3])
            found.append((data[3], data[4], int.from_bytes(data[5:9]), data[9:end]))
            data = data[end:]
        return found


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + payload


def message(payload: bytes) -> bytes:
    return b"\0" + struct.pack(">I", len(payload)) + payload


def connected() -> tuple[BareEtcd, Wire]:
    etcd, wire = BareEtcd(), Wire()
    etcd.connection_made(wire)
    assert wire.sent.startswith(_PREFACE)
    wire.frames()
    return etcd, wire


async def test_a_put_is_one_call_and_ends_with_its_answer_however_that_is_cut() -> None:
    etcd, wire = connected()
    put = etcd.put(b"key", b"value")
    (kind, _, stream, block), (_, end, of, body) = wire.frames()
    assert (kind, b"/etcdserverpb.KV/Put" in block, of, end) == (_HEADERS, True, stream, _END)
    assert rpc.PutRequest.FromString(body[5:]) == rpc.PutRequest(key=b"key", value=b"value")
    answer = message(rpc.PutResponse().SerializeToString())
    for byte in frame(_DATA, 0, stream, answer) + frame(_HEADERS, _END, stream, b""):
        etcd.data_received(bytes((byte,)))
    await put


async def test_a_call_that_ends_without_an_answer_was_refused() -> None:
    etcd, wire = connected()
    delete = etcd.delete(b"key")
    etcd.data_received(frame(_HEADERS, _END, wire.frames()[0][2], b""))
    with pytest.raises(BenchFailed, match="DeleteRange"):
        await delete


async def test_no_more_is_under_way_than_etcd_has_room_for() -> None:
    etcd, wire = connected()
    for _ in range(3):
        etcd.put(b"key", bytes(30_000))
    assert [kind for kind, *_ in wire.frames()] == [_HEADERS, _DATA] * 2
    etcd.data_received(frame(_WINDOW_UPDATE, 0, 0, (60_000).to_bytes(4)))
    assert [kind for kind, *_ in wire.frames()] == [_HEADERS, _DATA]


async def test_a_watch_tells_each_event_once_it_is_open() -> None:
    etcd, wire = connected()
    heard: list[bytes] = []
    watch = asyncio.create_task(etcd.watch(b"a", b"b", lambda _, event: heard.append(event.kv.key)))
    await asyncio.sleep(0)
    (_, _, stream, _), (_, flags, _, _) = wire.frames()
    assert flags == 0
    opened, told = rpc.WatchResponse(created=True), rpc.WatchResponse()
    told.events.add().kv.key = b"ab"
    told.events.add().kv.key = b"ac"
    both = message(opened.SerializeToString()) + message(told.SerializeToString())
    etcd.data_received(frame(_DATA, 0, stream, both[:40]) + frame(_DATA, 0, stream, both[40:]))
    await watch
    assert heard == [b"ab", b"ac"]
