"""The one form of a file that a service reads back: a line with kind, version and checksum, then the content."""

from collections.abc import Iterable
from hashlib import sha256
from typing import Final

_VERSION: Final = b"1"


class UnreadableState(Exception):
    """The file is damaged, or not the one that is meant; the message says why."""


def seal(kind: str, content: Iterable[bytes]) -> list[bytes]:
    """The bytes of a file, in parts: the line of its kind, then the content."""
    rest = list(content)
    digest = sha256()
    for part in rest:
        digest.update(part)
    return [b" ".join((kind.encode(), _VERSION, digest.hexdigest().encode())) + b"\n", *rest]


def unseal(kind: str, data: bytes, *, older: bytes = b"") -> bytes:
    """The content of a file of this kind. Raises UnreadableState.

    `older` are the first bytes that the file has had in releases before 0.3, without a checksum: such a file counts
    as it is.
    """
    if older and data.startswith(older):
        return data
    first, _, rest = data.partition(b"\n")
    found, version, checksum = first.split(b" ") if first.count(b" ") == 2 else (b"", b"", b"")
    if found != kind.encode():
        raise UnreadableState("the file is damaged, or another kind of file")
    if version != _VERSION:
        raise UnreadableState("another version of this service has written the file")
    if sha256(rest).hexdigest().encode() != checksum:
        raise UnreadableState("the file is damaged")
    return rest
