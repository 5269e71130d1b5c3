"""Cases without guidance: changes of the corpus, the same for the same seed on every machine."""

import re
from collections.abc import Iterable, Iterator, Sequence
from random import Random
from typing import Final

from tests.fuzz.messages import Shaped, changed

_NUMBERS: Final = (
    0,
    1,
    2,
    4,
    15,
    16,
    127,
    128,
    255,
    256,
    0x7FFF,
    0xFFFF,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**63,
    2**64 - 1,
)
_TOKEN: Final = re.compile(rb"[A-Za-z0-9_.:/-]{2,}")
_WORDS: Final = (
    b'0 -1 1e999 null true false {} [] "" 0.0.0.0/0 ::/0 10.5.53.0/24 255.255.255.255 ::1 fe80::1%eth0 '
    b"::ffff:10.5.1.2 10.5.1.1-24 18446744073709551616 99999999999999999999999 \\ud800 \\u0000 \xff\xfe"
).split()
_LONGEST: Final = 4096


def cases(seeds: Sequence[bytes], dice: Random, shaped: Shaped | None = None) -> Iterator[bytes]:
    """For ever: one of the seeds with a few changes. All seeds are joined to one book of words.

    With `shaped` most cases are still messages.
    """
    words = book(seeds)
    while True:
        seed = dice.choice(seeds)
        if shaped is not None and dice.random() < 0.8 and (case := changed(seed, shaped, dice, words)):
            yield case
            continue
        data = bytearray(seed)
        for _ in range(1 << dice.randrange(4)):
            dice.choice(_CHANGES)(data, dice, seeds, words)
        yield bytes(data[:_LONGEST])


def book(seeds: Iterable[bytes]) -> list[bytes]:
    """The words of these, and those that are special for addresses, numbers and JSON."""
    return sorted({*_WORDS, *(word for seed in seeds for word in _TOKEN.findall(seed))})


def _flip(data: bytearray, dice: Random, seeds: Sequence[bytes], words: Sequence[bytes]) -> None:
    if data:
        data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)


def _byte(data: bytearray, dice: Random, seeds: Sequence[bytes], words: Sequence[bytes]) -> None:
    if data:
        data[dice.randrange(len(data))] = dice.choice((0, 1, 0x7F, 0x80, 0xFF, dice.randrange(256)))


def _number(data: bytearray, dice: Random, seeds: Sequence[bytes], words: Sequence[bytes]) -> None:
    size = dice.choice((1, 2, 4, 8))
    if len(data) >= size:
        at = dice.randrange(len(data) - size + 1)
        number = dice.choice(_NUMBERS) % (1 << 8 * size)
        data[at : at + size] = number.to_bytes(size, dice.choice(("little", "big")))


def _remove(data: bytearray, dice: Random, seeds: Sequence[bytes], words: Sequence[bytes]) -> None:
    at = dice.randrange(len(data) + 1)
    del data[at : at + dice.choice((1, 2, 4, 16, len(data)))]


def _repeat(data: bytearray, dice: Random, seeds: Sequence[bytes], words: Sequence[bytes]) -> None:
    at = dice.randrange(len(data) + 1)
    data[at:at] = data[at : at + dice.choice((1, 2, 4, 16, 64))] * dice.choice((1, 1, 2, 30))


def _word(data: bytearray, dice: Random, seeds: Sequence[bytes], words: Sequence[bytes]) -> None:
    """One word in the place of another, or between two bytes."""
    there = list(_TOKEN.finditer(data))
    start, end = dice.choice(there).span() if there and dice.random() < 0.7 else (dice.randrange(len(data) + 1),) * 2
    data[start:end] = dice.choice(words)


def _splice(data: bytearray, dice: Random, seeds: Sequence[bytes], words: Sequence[bytes]) -> None:
    """A part of another seed."""
    other = dice.choice(seeds)
    start, at = dice.randrange(len(other) + 1), dice.randrange(len(data) + 1)
    data[at : at + dice.randrange(17)] = other[start : start + dice.choice((4, 16, 64, len(other)))]


_CHANGES: Final = (_flip, _byte, _number, _remove, _repeat, _word, _word, _splice)
