"""The messages between the firewall and its worker process: a length in four bytes, then a pickled object.

The worker greets first, with a Hello; then every CheckRequest is answered with the states of its chains. Instead of
either there may be a Failure. Both ends run the same code with the same rights on a socket pair that nobody else has.
"""

import pickle
import struct
from dataclasses import dataclass
from typing import Final, TypeAlias

from services.masq.firewalls.firewall import ChainState
from services.masq.rules.model import Chain

LENGTH: Final = struct.Struct("=I")
"""In front of every message."""


@dataclass(frozen=True, slots=True)
class Hello:
    """The worker can work."""

    fully_random: bool
    """MASQUERADE knows `--random-fully`."""


@dataclass(frozen=True, slots=True)
class CheckRequest:
    """Compare these chains, and with `repair` apply the difference."""

    chains: tuple[Chain, ...]
    repair: bool


@dataclass(frozen=True, slots=True)
class Failure:
    """It did not work; nothing was done."""

    reason: str
    """What is wrong and what to do about it, one sentence or two."""


Message: TypeAlias = Hello | CheckRequest | Failure | tuple[ChainState, ...]


def encode(message: Message) -> bytes:
    """The message with its length in front."""
    data = pickle.dumps(message)
    return LENGTH.pack(len(data)) + data


def decode(data: bytes) -> Message:
    """The message. Raises ValueError: the other end is not of our version."""
    try:
        message: Message = pickle.loads(data)  # noqa: S301 - from our own child process, which has our rights
    except Exception as error:  # pickle fails in many ways
        raise ValueError(f"not a message: {data[:80]!r} ({error})") from None
    return message
