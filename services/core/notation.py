"""Addresses and networks as text, read by Go's rules; quick for the notation that nearly all of them have."""

import re
from ipaddress import IPv4Address, IPv4Network, ip_address, ip_network
from typing import Final

from services.core.family import Address, Network

_NUMBERS: Final = {str(number): number for number in range(256)}
"""Octets in their one canonical spelling: whatever is not in here is for the slow way."""
_LENGTHS: Final = {str(length): length for length in range(33)}
_HOST_BITS: Final = tuple((1 << (32 - length)) - 1 for length in range(33))


def parse_cidr(text: str) -> Network | None:
    """The network in `address/length`, host bits masked off, as Go's ParseCIDR; None if it is none."""
    address, _, length = text.partition("/")
    if "%" in address or not re.fullmatch(r"[0-9]{1,3}", length, re.ASCII):
        return None
    try:
        return ip_network(text, strict=False)
    except ValueError:
        return None


def exact_cidr(text: str) -> Network | None:
    """The network in `address/length` if that is how we would write it; None for host bits and other spellings."""
    address, _, length = text.partition("/")
    return exact_network(address, length)


def exact_network(address: str, length: str) -> Network | None:
    """The same, of its two parts."""
    start = _dotted(address)
    if start is not None and length in _LENGTHS:
        bits = _LENGTHS[length]
        return None if start & _HOST_BITS[bits] else IPv4Network((start, bits))
    text = f"{address}/{length}"
    network = parse_cidr(text)
    return network if network is not None and str(network) == text else None


def is_exact_network(address: str, length: str) -> bool:
    """Whether there is one; it is not made."""
    start = _dotted(address)
    if start is not None and length in _LENGTHS:
        return not start & _HOST_BITS[_LENGTHS[length]]
    return exact_network(address, length) is not None


def parse_address(text: str) -> Address | None:
    """The address in `text`, as Go's ParseIP: without a zone, and `::ffff:1.2.3.4` is IPv4; None if it is none."""
    number = _dotted(text)
    if number is not None:
        return IPv4Address(number)
    try:
        address = ip_address(text)
    except ValueError:
        return None
    if isinstance(address, IPv4Address):
        return address
    return None if address.scope_id else address.ipv4_mapped or address


def _dotted(text: str) -> int | None:
    """The 32 bits of an IPv4 address in its canonical spelling; None: it is something else."""
    try:
        first, second, third, fourth = text.split(".")
        return _NUMBERS[first] << 24 | _NUMBERS[second] << 16 | _NUMBERS[third] << 8 | _NUMBERS[fourth]
    except (ValueError, KeyError):
        return None
