"""Elements of nftables' sets and verdict maps, as conditions of the model. Pure."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_address, summarize_address_range
from typing import Final

from services.masq.diagnose.verdict import Condition
from services.masq.kernel.nf_tables import attributes, text

MOST_ELEMENTS: Final = 200
"""Of a set that is read; one with more may hold anything."""
_KEY, _DATA, _FLAGS, _KEY_END = 1, 2, 3, 10  # NFTA_SET_ELEM_
_END, _CATCH_ALL = 1, 2  # NFT_SET_ELEM_
_VALUE, _VERDICT = 1, 2  # NFTA_DATA_
_NEW: Final = 0x08
_SIZES: Final = {"port": (2,), "protocol": (1,), "source": (4, 16), "destination": (4, 16), "state": (4,)}


@dataclass(frozen=True, slots=True)
class Element:
    """Of a set, or of a map of verdicts."""

    first: bytes
    """The least of its values; empty: it stands for all that others do not."""
    last: bytes
    verdict: Mapping[int, bytes]
    """NFTA_VERDICT_..., of a map."""


def elements(dump: Iterable[Mapping[int, bytes]]) -> list[Element]:
    """The elements of a set, from their attributes: those of intervals are a beginning and an end each."""
    read = []
    for values in dump:
        flags = int.from_bytes(values.get(_FLAGS, b""), "big")
        key, end = (attributes(values.get(name, b"")).get(_VALUE, b"") for name in (_KEY, _KEY_END))
        verdict = attributes(attributes(values.get(_DATA, b"")).get(_VERDICT, b""))
        read.append((bool(flags & _CATCH_ALL), key, not flags & _END, end, verdict))
    read.sort(key=lambda each: each[:3])
    has_intervals = not all(begins for _, _, begins, _, _ in read)
    found = []
    for number, (_, key, begins, end, verdict) in enumerate(read):
        if begins and key and has_intervals:
            after = read[number + 1][1] if number + 1 < len(read) else b""
            end = _before(after) if after else b"\xff" * len(key)
        if begins:
            found.append(Element(key, end or key, verdict))
    return found


def condition_of(what: str, element: Element) -> Condition:
    """That what a register has is this element."""
    return Condition(one_of=tuple(_conditions(what, element))) if element.first else Condition()


def word_of(what: str, element: Element) -> str:
    """As a person would write it."""
    if not element.first:
        return "*"
    ends = []
    for value in dict.fromkeys((element.first, element.last)):
        if what in ("source", "destination") and len(value) in _SIZES[what]:
            ends.append(str(ip_address(value)))
        elif what in ("port", "protocol"):
            ends.append(str(int.from_bytes(value, "big")))
        else:
            ends.append(text(value) if what in ("incoming", "outgoing") else "...")
    return "-".join(dict.fromkeys(ends))


def _conditions(what: str, element: Element) -> Iterator[Condition]:
    first, last = element.first, element.last
    if len(first) not in _SIZES.get(what, (len(first),)) or len(first) != len(last) or first > last:
        yield Condition(unknown=True)  # of several registers
    elif what == "port":
        yield Condition(ports=(int.from_bytes(first, "big"), int.from_bytes(last, "big")))
    elif what == "protocol":
        yield from (Condition(protocol=number) for number in range(first[0], last[0] + 1))
    elif what in ("source", "destination"):
        for network in summarize_address_range(ip_address(first), ip_address(last)):
            yield Condition(source=network) if what == "source" else Condition(destination=network)
    elif what == "state" and first == last:
        yield Condition(new=bool(int.from_bytes(first, sys.byteorder) & _NEW))
    elif what in ("incoming", "outgoing") and first == last:
        yield Condition(incoming=text(first)) if what == "incoming" else Condition(outgoing=text(first))
    else:
        yield Condition(unknown=True)


def _before(key: bytes) -> bytes:
    return max(int.from_bytes(key, "big") - 1, 0).to_bytes(len(key), "big")
