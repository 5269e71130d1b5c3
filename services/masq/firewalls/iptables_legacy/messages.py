"""The messages between the firewall and its worker process: a length in four bytes, then a pickled object.

The worker first sends a Hello, then answers every CheckRequest with the states of its chains; in either case it may
send a Failure instead. Both ends run the same code with the same rights, on a socket pair of their own.
"""

import pickle
import struct
from typing import Final, TypeAlias

from flannelette.services.core.frozen import frozen
from flannelette.services.masq.firewalls.firewall import ChainState
from flannelette.services.masq.rules import Chain

LENGTH: Final = struct.Struct("=I")
"""Length in front of every message."""


@frozen
class Hello:
    """The worker has what it needs."""

    fully_random: bool
    """The target MASQUERADE knows `--random-fully`."""


@frozen
class CheckRequest:
    """Compare these chains, and with `repair` apply the difference."""

    chains: tuple[Chain, ...]
    repair: bool


@frozen
class Failure:
    """The request failed, and nothing was changed."""

    reason: str
    """The cause and the remedy, in one or two sentences."""


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
