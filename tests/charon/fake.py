"""A charon that negotiates nothing: it keeps what is loaded by vici, in the framing of strongSwan's own package."""

import asyncio
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vici.protocol import FiniteStream, Message, Packet

_BYTES = {"bytes-in": "84", "bytes-out": "168"}
_STREAMED = {
    "list-conns": b"list-conn",
    "list-sas": b"list-sa",
    "initiate": b"control-log",
    "terminate": b"control-log",
}


class FakeCharon:
    """Answers on a socket while it is entered."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.keys: dict[str, Mapping[str, Any]] = {}
        self.connections: dict[str, Mapping[str, Any]] = {}
        self.up: set[str] = set()
        """Names of connections that have a tunnel."""
        self.answered: set[str] = set()
        """Names of connections of which the peer has a tunnel."""
        self.answered_anew: set[str] = set()
        """Names of those of which it has made another one."""
        self.older: dict[str, str] = {}
        """Ids of IKE SAs that are older than that of `up`, by themselves, with the name of their connection."""
        self.refused = b""
        """The reason for which every connection is refused; empty: none is."""
        self.calls: list[str] = []
        """What changed something."""
        self.looks = 0
        """How often the IKE SAs were listed."""
        self._writers: set[asyncio.StreamWriter] = set()
        self._listeners: set[asyncio.StreamWriter] = set()

    def tell(self) -> None:
        """Says that a tunnel is up or down to those who have asked for that."""
        event = bytes([Packet.EVENT, 12]) + b"child-updown" + Message.serialize({"up": "yes"})
        for writer in self._listeners:
            writer.write(struct.pack("!I", len(event)) + event)

    async def __aenter__(self) -> "FakeCharon":
        self.path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._serve, self.path)
        return self

    async def __aexit__(self, *_: object) -> None:
        """As a process that is killed: the socket stays, and nobody answers."""
        self._server.close()
        for writer in self._writers:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while True:
                (size,) = struct.unpack("!I", await reader.readexactly(4))
                packet = await reader.readexactly(size)
                if packet == bytes([Packet.EVENT_REGISTER, 12]) + b"child-updown":
                    self._listeners.add(writer)
                for answer in self._answers(packet):
                    writer.write(struct.pack("!I", len(answer)) + answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()
        finally:
            self._writers.discard(writer)
            self._listeners.discard(writer)

    def _answers(self, packet: bytes) -> list[bytes]:
        kind, length = packet[0], packet[1]
        name = packet[2 : 2 + length].decode()
        if kind in (Packet.EVENT_REGISTER, Packet.EVENT_UNREGISTER):
            return [bytes([Packet.EVENT_CONFIRM])]
        asked = Message.deserialize(FiniteStream(packet[2 + length :]))
        events = [
            bytes([Packet.EVENT, len(_STREAMED[name])]) + _STREAMED[name] + Message.serialize(told)
            for told in self._told(name)
        ]
        return [*events, bytes([Packet.CMD_RESPONSE]) + Message.serialize(self._done(name, asked))]

    def _told(self, name: str) -> list[Mapping[str, Any]]:
        if name == "list-conns":
            return [{name: _as_listed(values)} for name, values in self.connections.items()]
        state = {"state": "ESTABLISHED", "established": "60"}
        up, answered = (
            {**state, "child-sas": {f"{child}-1": {"name": child, "state": "INSTALLED", **_BYTES}}}
            for child in ("x", "answered")
        )
        if name == "list-sas":
            self.looks += 1
            older = [{each: {"uniqueid": number, **up}} for number, each in self.older.items()]
            theirs = [{each: {"uniqueid": "900", **answered}} for each in sorted(self.answered)]
            theirs += [{each: {"uniqueid": "2000", **answered}} for each in sorted(self.answered_anew)]
            return [*({each: {"uniqueid": "1000", **up}} for each in sorted(self.up)), *theirs, *older]
        return []

    def _done(self, name: str, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        if name == "get-shared":
            return {"keys": sorted(self.keys)}
        if name in ("list-conns", "list-sas"):
            return {}
        self.calls.append(name)
        if name == "load-shared":
            self.keys[asked["id"].decode()] = asked
        elif name == "unload-shared":
            self.keys.pop(asked["id"].decode(), None)
        elif name == "load-conn":
            if self.refused:
                return {"success": "no", "errmsg": self.refused}
            self.connections |= asked
        elif name == "terminate":
            self.older.pop(asked["ike-id"].decode())
        elif name == "unload-conn":
            self.connections.pop(asked["name"].decode(), None)
        return {"success": "yes"}


def _as_listed(values: Mapping[str, Any]) -> Mapping[str, Any]:
    children = {
        name: {"mode": "TUNNEL", "local-ts": child["local_ts"], "remote-ts": child["remote_ts"]}
        for name, child in values["children"].items()
    }
    addresses = {name: values[name] for name in ("local_addrs", "remote_addrs")}
    return {**addresses, "version": "IKEv2", "children": children}
