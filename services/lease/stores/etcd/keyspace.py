"""The keys under the prefix: which of them mean something, and what."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final


class Kind(Enum):
    """What a key is."""

    CONFIG = auto()
    """The network configuration."""
    SUBNET = auto()
    """A lease, or what stands in its place; the name is the rest of the key, not yet checked."""
    HOLDER = auto()
    """Who holds the lease of the same name."""
    SESSION = auto()
    """That a node's dataplane is connected to a lease service; the name is the node's."""
    FOREIGN = auto()
    """Under what flannel watches (the prefix `subnets`, without a closing slash), but no lease."""
    RELEASED = auto()
    """Which leases were removed on purpose last."""
    OTHER = auto()
    """None of our business."""


_DIRECTORIES: Final = {b"subnets": Kind.SUBNET, b"holders": Kind.HOLDER, b"sessions": Kind.SESSION}
"""What the keys in them are."""


@dataclass(frozen=True, slots=True)
class Keyspace:
    """flannel's keys `<prefix>/config` and `<prefix>/subnets/...`, and ours beside them.

    flanneld watches everything that starts with `<prefix>/subnets`, so no key of ours may start like that.
    """

    prefix: str
    root: bytes = field(init=False)
    """What all keys start with; one watch on it sees everything in one order."""
    config: bytes = field(init=False)
    """The key of the network configuration."""
    subnets: bytes = field(init=False)
    """What all leases start with."""
    holders: bytes = field(init=False)
    """What all holders start with."""
    sessions: bytes = field(init=False)
    """What all sessions start with."""
    released: bytes = field(init=False)
    """The key of the note on leases that were removed on purpose."""
    _kinds: Mapping[bytes, Kind] = field(init=False, repr=False, compare=False)
    """By directory, whole."""

    def __post_init__(self) -> None:
        for name in ("config", "subnets/", "holders/", "sessions/", "released"):
            object.__setattr__(self, name.removesuffix("/"), f"{self.prefix}/{name}".encode())
        object.__setattr__(self, "root", f"{self.prefix}/".encode())
        object.__setattr__(self, "_kinds", {self.root + name: kind for name, kind in _DIRECTORIES.items()})

    def subnet(self, name: str) -> bytes:
        """The key of a lease."""
        return self.subnets + name.encode()

    def holder(self, name: str) -> bytes:
        """The key that says who holds a lease."""
        return self.holders + name.encode()

    def session(self, node: str) -> bytes:
        """The key that says that a node's dataplane is connected."""
        return self.sessions + node.encode()

    def classify(self, key: bytes) -> tuple[Kind, str]:
        """What a key is, and its name: the lease's for SUBNET and HOLDER, the node's for SESSION, else the key."""
        whole, _, name = key.rpartition(b"/")
        if name and (kind := self._kinds.get(whole)):
            return kind, readable(name)  # as nearly all are
        before, _, path = key.partition(self.root)
        directory, _, name = path.partition(b"/")
        if name and not before and (kind := _DIRECTORIES.get(directory)):
            return kind, readable(name)
        if key == self.config:
            return Kind.CONFIG, readable(key)
        if key == self.released:
            return Kind.RELEASED, readable(key)
        return Kind.FOREIGN if key.startswith(self.subnets[:-1]) else Kind.OTHER, readable(key)

    def keys_called(self, name: str) -> tuple[bytes, ...]:
        """The keys that a listing may refuse, or list as a lease, under this name: rarely more than one exists."""
        key = as_key(name)
        named = [self.subnets + key, key]
        if name.startswith("holders/"):
            named.insert(1, self.holders + key.removeprefix(b"holders/"))
        return tuple(k for k in named if k.startswith(self.root))


def readable(key: bytes) -> str:
    """A key as text that can be printed; no two keys give the same."""
    text = key.decode() if key.isascii() else key.decode("utf-8", "backslashreplace")
    if text.isprintable() and "\\" not in text:
        return text  # as nearly all are
    text = key.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")
    return "".join(map(_printable, text))


def as_key(text: str) -> bytes:
    """The key that is readable like this."""
    return re.sub(rb"\\(?:x([0-9a-f]{2})|\\)", _unescaped, text.encode())


def _printable(character: str) -> str:
    return character if character.isprintable() else "".join(f"\\x{byte:02x}" for byte in character.encode())


def _unescaped(match: re.Match[bytes]) -> bytes:
    return bytes.fromhex(match[1].decode()) if match[1] else b"\\"
