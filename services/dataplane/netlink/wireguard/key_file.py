"""The file of a node's private key, as flannel keeps it, and the public key that belongs to it."""

import binascii
import os
import stat
from base64 import b64decode, b64encode
from contextlib import suppress
from pathlib import Path
from typing import Final

from flannelette.services.core.backend_types import Secret
from flannelette.services.core.errors import Misconfigured
from flannelette.services.dataplane.netlink.wireguard.values import KEY_BYTES

_MODE: Final = 0o400
_OTHERS: Final = 0o077
_PRIME: Final = 2**255 - 19
_A24: Final = 121665
_BASE: Final = 9


def private_key(path: Path) -> Secret:
    """The key in the file: 44 characters of base64, mode 0400. Makes both where there is no file.

    Raises Misconfigured for a file that others may read, that cannot be read or made, or that holds no key.
    """
    try:
        if not path.exists():
            _make(path)
        status = path.stat()
        mode, text = status.st_mode, path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
    except PermissionError:
        raise Misconfigured(
            f"cannot use the WireGuard key file {path}: Permission denied; one that a flanneld "
            f"has made is root's: `chown {os.geteuid()} {path}`"
        ) from None
    except OSError as error:
        raise Misconfigured(f"cannot use the WireGuard key file {path}: {error.strerror}") from None
    if not stat.S_ISREG(mode):
        raise Misconfigured(f"the WireGuard key file {path} is no file: name another one in WIREGUARD_KEY_FILE")
    if status.st_uid not in (0, os.geteuid()):
        raise Misconfigured(
            f"the WireGuard key file {path} belongs to user {status.st_uid}, who may read it: "
            f"`chown root {path}`, or delete it, so that the node gets a new key"
        )
    if mode & _OTHERS:
        raise Misconfigured(
            f"the WireGuard key file {path} may be read by others (mode {mode & 0o777:04o}): `chmod 0400 {path}`, "
            "or delete it, so that the node gets a new key"
        )
    key = decoded(text.strip())
    if key is None:
        raise Misconfigured(f"the WireGuard key file {path} holds no key: delete it, so that the node gets a new one")
    return Secret(_clamped(key))


def decoded(text: str | bytes) -> bytes | None:
    """The 32 bytes of a key in base64; None: it is none."""
    try:
        key = b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        return None
    return key if len(key) == KEY_BYTES and any(key) else None


def _make(path: Path) -> None:
    """A new key: whoever reads the file meanwhile finds none, or the whole key."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    with suppress(FileNotFoundError):
        unfinished.unlink()
    opened = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODE)
    with os.fdopen(opened, "wb") as file:
        file.write(b64encode(_clamped(os.urandom(KEY_BYTES))))
        file.flush()
        os.fsync(file.fileno())  # else a power failure may leave the name and no key
    try:
        os.link(unfinished, path)  # never over a key that another process has made by now
    except FileExistsError:
        pass
    finally:
        unfinished.unlink()


def _clamped(key: bytes) -> bytes:
    """Returns a private key as the kernel keeps it: some of its bits are fixed (RFC 7748)."""
    return bytes([key[0] & 248, *key[1:31], key[31] & 127 | 64])


def public_key(private: bytes) -> bytes:
    """The public key: X25519 of the base point (RFC 7748, section 5).

    Once at the start, of a key that is this node's own; so a library for it would be imported for nothing else.
    """
    k = int.from_bytes(_clamped(private), "little")
    x2, z2, x3, z3, swap = 1, 0, _BASE, 1, 0
    for position in reversed(range(255)):
        bit = k >> position & 1
        if swap ^ bit:
            x2, x3, z2, z3 = x3, x2, z3, z2
        swap = bit
        a, b, c, d = x2 + z2, x2 - z2, x3 + z3, x3 - z3
        da, cb, aa, bb = d * a, c * b, a * a % _PRIME, b * b % _PRIME
        e = aa - bb
        x3, z3 = (da + cb) ** 2 % _PRIME, _BASE * (da - cb) ** 2 % _PRIME
        x2, z2 = aa * bb % _PRIME, e * (aa + _A24 * e) % _PRIME
    if swap:
        x2, z2 = x3, z3
    return (x2 * pow(z2, _PRIME - 2, _PRIME) % _PRIME).to_bytes(KEY_BYTES, "little")
