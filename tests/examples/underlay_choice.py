"""A host's interfaces and the flags of a dataplane go in; which interface carries the overlay, and why, comes out."""

from collections.abc import Sequence
from dataclasses import replace
from ipaddress import ip_address, ip_network
from typing import Any

from flannelette.services.core.family import IPV4, Address, Family
from flannelette.services.core.leases.table import PublicIpOverride
from flannelette.services.dataplane.links.interfaces import Interface, InterfaceAddress
from flannelette.services.dataplane.underlay import Tenure, Underlay, choose_underlay, is_still, with_chosen
from tests.services.command_lines import parsed


def has(text: str, *, permanent: bool = True, unfit: bool = False, network: str = "", **more: Any) -> Any:
    """An address of an interface; `more` is what speaks for it and against it."""
    address = ip_address(text)
    reached = ip_network(network) if network else None
    return InterfaceAddress(address, address.is_link_local, reached, permanent, unfit, **more)


def link(index: int, name: str, *addresses: Any, mtu: int = 1500) -> Any:
    """An interface with these addresses."""
    return Interface(index, name, mtu, addresses)


def with_address(interface: Any, text: str) -> Any:
    """The interface with one address more."""
    return replace(interface, addresses=(*interface.addresses, has(text)))


LO = link(1, "lo", has("127.0.0.1"), has("::1"), mtu=65536)
ETH0 = link(2, "eth0", has("10.99.0.11"), has("fe80::1"), has("fd00::11", permanent=False))
ETH1 = link(3, "eth1", has("169.254.3.3"), has("192.168.1.7", permanent=False), has("192.168.1.5"), mtu=9000)
ALL = (LO, ETH0, ETH1, link(4, "bare0"))


def choose(
    *,
    iface: Sequence[str] = (),
    regex: Sequence[str] = (),
    can_reach: str = "",
    public: Sequence[str] = (),
    families: Sequence[Family] = (IPV4,),
    reach: tuple[str, Address] | None = None,
    default: int | None = None,
    annotated: Sequence[str] = (),
    interfaces: Sequence[Any] = ALL,
    kept: Sequence[str] = (),
) -> Underlay:
    """What a dataplane with these flags chooses. Raises Misconfigured, Unavailable.

    `reach`: the kernel's answer to `can_reach`; `default`: the index of the interface of the default route;
    `annotated`: public addresses that an operator has chosen in the store; `kept`: what the node is known by.
    """
    flags = [f"--iface={each}" for each in iface] + [f"--iface-regex={each}" for each in regex]
    flags += [f"--iface-can-reach={can_reach}"] if can_reach else []
    flags += [f"--public-ipv6={each}" if ":" in each else f"--public-ip={each}" for each in public]
    choice = parsed("dataplane", flags).interface_choice()
    choice = with_chosen(choice, tuple(_override(6 if ":" in each else 4, each) for each in annotated), families)
    kept_addresses = [*map(ip_address, kept)]
    return choose_underlay(interfaces, choice, families, reach=reach, default_index=default, kept=kept_addresses)


def take_from_store(version: int, text: str, families: Sequence[Family]) -> None:
    """What an operator has chosen in the store counts. Raises Unavailable."""
    with_chosen(parsed("dataplane").interface_choice(), (_override(version, text),), families)


def stays(underlay: Underlay, interfaces: Sequence[Any], known: Sequence[Address] = ()) -> bool:
    """Whether the choice stays where the interfaces are these now; `known`: what the node has been known by."""
    return is_still(underlay, interfaces, known) if known else is_still(underlay, interfaces)


def known_by(now: float, *happened: tuple[str, float | None]) -> tuple[Address, ...]:
    """The addresses by which a node is known, first the one that counts.

    What happened: it has an address from some second on, or (None) its lease says that address.
    """
    tenure = Tenure()
    for text, since in happened:
        if since is None:
            tenure.take_published([ip_address(text)])
        else:
            tenure.enter([ip_address(text)], since)
    return tuple(tenure.order(now))


def chosen(underlay: Underlay) -> tuple[str, list[str]]:
    """The interface, and its addresses that count."""
    return underlay.name, [str(address) for address in underlay.addresses]


def _override(version: int, text: str) -> PublicIpOverride:
    return PublicIpOverride(version, text, "a note")
