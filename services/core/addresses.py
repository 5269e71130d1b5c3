"""Addresses and networks as text, read by Go's rules; and blocks that are never a peer's or a pod's. Pure.

Reading is quick for the notation that nearly all of them have. The blocks, for public addresses and for subnets, are
those of RFC 6890 that are never forwarded. Private and documentation addresses are no rows: clusters and labs use
them.
"""

import re
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, ip_address, ip_network
from socket import AF_INET, inet_pton
from typing import Final, NamedTuple

from flannelette.services.core.family import Address, Network

_OCTETS: Final = tuple(map(str, range(256)))
_ORDINARY: Final = {
    str(length): (
        (1 << (32 - length)) - 1,
        tuple((name, value) for name, value in vars(IPv4Network((0, length))).items() if name != "network_address"),
    )
    for length in range(31)
}
"""The host bits of an IPv4 network, and what it has beside its address, by its length. A /31 has more, as has a
/32."""


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
    if ordinary := ordinary_network(address, length):
        return ordinary
    text = f"{address}/{length}"
    network = parse_cidr(text)
    return network if network is not None and str(network) == text else None


def ordinary_network(address: str, length: str) -> IPv4Network | None:
    """The same, if it is one of IPv4 that has room for hosts, as nearly all are; a third of the time."""
    start, form = _dotted(address), _ORDINARY.get(length)
    if start is None or form is None or start & form[0]:
        return None
    network = IPv4Network.__new__(IPv4Network)  # as a copy of one of its length would be, with another address
    network.network_address = IPv4Address(start)
    for name, value in form[1]:
        setattr(network, name, value)
    return network


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


def format_address(address: Address) -> str:
    """`str(address)`, in a quarter of the time for IPv4."""
    if isinstance(address, IPv4Address):
        bits = int(address)
        return f"{_OCTETS[bits >> 24]}.{_OCTETS[bits >> 16 & 255]}.{_OCTETS[bits >> 8 & 255]}.{_OCTETS[bits & 255]}"
    return str(address)


def format_network(network: Network) -> str:
    """Returns the same as `str(network)`, more quickly."""
    return f"{format_address(network.network_address)}/{network.prefixlen}"


def _dotted(text: str) -> int | None:
    """The 32 bits of an IPv4 address in its canonical spelling; None: it is something else."""
    try:
        return int.from_bytes(inet_pton(AF_INET, text))
    except (OSError, ValueError):
        return None


class Block(NamedTuple):
    """A row of the table, as numbers: ten thousand leases are compared with it."""

    first: int
    last: int
    network: Network
    words: str
    """What an address in it is: `a loopback address`."""
    is_link_local: bool = False
    """A public address here is a neighbour's, where our own is one, too; some clouds and labs have no others."""
    may_be_pods: bool = False
    """Whether pods may have addresses in it: Linux routes it, but other systems and many gateways do not."""


def _block(text: str, words: str, *, is_link_local: bool = False, may_be_pods: bool = False) -> Block:
    network = ip_network(text)
    first, last = int(network.network_address), int(network.broadcast_address)
    return Block(first, last, network, words, is_link_local, may_be_pods)


BLOCKS: Final = (
    _block("0.0.0.0/8", "unspecified"),
    _block("127.0.0.0/8", "a loopback address"),
    _block("169.254.169.0/24", "an address of cloud metadata services"),
    _block("169.254.0.0/16", "a link-local address", is_link_local=True),
    _block("224.0.0.0/4", "a multicast address"),
    _block("255.255.255.255/32", "the broadcast address"),
    _block("240.0.0.0/4", "reserved (class E, RFC 1112)", may_be_pods=True),
    _block("::/128", "unspecified"),
    _block("::1/128", "a loopback address"),
    _block("::ffff:0:0/96", "an IPv4-mapped IPv6 address"),
    _block("fe80::/10", "a link-local address, valid on its own link only"),
    _block("ff00::/8", "a multicast address"),
)
"""The first that holds an address says what it is."""


def address_blocks(version: int, own: Address | None = None) -> tuple[Block, ...]:
    """Blocks in which no peer's public address lies; `own` is our address in the underlay."""
    of_family = (block for block in BLOCKS if block.network.version == version)
    return tuple(b for b in of_family if not (b.is_link_local and own is not None and own in b.network))


def subnet_blocks(version: int) -> tuple[Block, ...]:
    """Blocks that no subnet overlaps."""
    return tuple(block for block in BLOCKS if block.network.version == version and not block.may_be_pods)


def never_public(address: Address) -> str:
    """Why no node can have this public address; empty: some node can. Link-local ones are allowed."""
    number = int(address)
    blocks = (b for b in BLOCKS if b.network.version == address.version and not b.is_link_local)
    return next((b.words for b in blocks if b.first <= number <= b.last), "")


def never_routed(network: Network) -> Block | None:
    """A block that this network overlaps, so that it cannot be carried; None: none."""
    first, last = int(network.network_address), int(network.broadcast_address)
    return next((b for b in subnet_blocks(network.version) if b.first <= last and first <= b.last), None)


def network_refusal(network: Network, connected: Iterable[Network] = ()) -> str:
    """Why no overlay may have this network, whoever asks for it; empty: it may.

    `connected` are the networks of the node's own interfaces in the underlay. An overlay may hold them (10.0.0.0/8),
    because no node leases a subnet there, but not lie in one of them.
    """
    if block := never_routed(network):
        return (
            f"the network {network} covers {block.network}, where each address is {block.words}: narrow the network"
        )
    for each in connected:
        if each.version == network.version and network.subnet_of(each):  # type: ignore[arg-type]  # of one version
            where = f"the underlay, {each}, where the nodes have their own addresses"
            return f"the network {network} lies in {where}: choose another network"
    return ""


def network_warning(network: Network) -> str:
    """A warning about a network that an overlay may have; empty: none."""
    found = next((b for b in BLOCKS if b.may_be_pods and network.overlaps(b.network)), None)
    if found is None or network.version != found.network.version:
        return ""
    return (
        f"the network {network} is {found.words}: Linux routes it, but many other systems and gateways drop its "
        "packets; a private network, such as 10.5.0.0/16, has no such limits"
    )


def not_hosts(networks: tuple[Network, ...]) -> frozenset[int]:
    """The addresses of connected networks that are no host's: the network's own, and IPv4's broadcast address."""
    found: set[int] = set()
    for network in networks:
        if network.max_prefixlen - network.prefixlen > 1:  # RFC 3021 and RFC 6164: of two addresses both are hosts
            found.add(int(network.network_address))
            if network.version == 4:
                found.add(int(network.broadcast_address))
    return frozenset(found)
