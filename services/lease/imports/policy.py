"""What `--import` and `--export` say: which leases of other clusters come in, and which of ours are shown. Pure."""

import re
from base64 import b64encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Final

from flannelette.services.core.backend_options import WHERE, declared_options
from flannelette.services.core.backend_types import IpsecOptions, WireguardOptions
from flannelette.services.core.errors import Misconfigured
from flannelette.services.core.family import Network
from flannelette.services.core.formats.gojson import GoObject
from flannelette.services.core.formats.ip_text import exact_cidr
from flannelette.services.core.leases.lease import Lease
from flannelette.services.core.limits import LONGEST_NAME
from flannelette.services.core.network import NetworkConfig, contains

_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", re.ASCII)
_FORM: Final = "NAME=ADDRESS,allow=CIDR[,allow=CIDR...][,ca=FILE,cert=FILE,key=FILE][,server-name=NAME]"
_FILES: Final = ("cert", "key", "ca")
NOTHING: Final = "none"


@dataclass(frozen=True, slots=True)
class Import:
    """One use of the flag `--import`."""

    name: str
    """The name of the other cluster."""
    address: str
    """The address of a lease service of the other cluster: `unix:PATH` or HOST:PORT."""
    allow: tuple[Network, ...]
    """The ranges in which its leases may lie."""
    files: tuple[str, ...] = ()
    """Certificate, key and authorities for this connection; empty: those of the process."""
    server_name: str = ""

    def refusal(self, lease: Lease, taken: Sequence[Network]) -> str:
        """Why a lease is not imported; empty: it is. `taken` has the own network's ranges."""
        if lease.cluster:
            return f"it is imported there from cluster {lease.cluster}, and nothing is imported at second hand"
        for cidr in lease.cidrs:
            if not any(contains(allowed, cidr) for allowed in self.allow):
                return f"subnet {cidr} lies outside what --import {self.name} allows: {_list(self.allow)}"
            if own := overlapped(cidr, taken):
                return f"subnet {cidr} overlaps {own}, which is of this cluster's own network"
        is_long = max(len(lease.name), len(lease.node)) + len(self.name) >= LONGEST_NAME
        return "its name is too long" if is_long else ""

    def imported(self, lease: Lease) -> Lease:
        """The lease as it stands in the table of this cluster."""
        node = f"{self.name}/{lease.node}" if lease.node else ""
        name = f"{self.name}/{lease.name}"
        return replace(lease, name=name, node=node, cluster=self.name, expires_at=None, reserved=False)


@dataclass(frozen=True, slots=True)
class Export:
    """The value of the flag `--export`."""

    ranges: tuple[Network, ...] | None = None
    """The leases that lie in these are shown; None: all that are ours."""

    def shows(self, lease: Lease) -> bool:
        """Whether other clusters see a lease. What is imported they never do."""
        if lease.cluster or lease.is_idle:
            return False
        return self.ranges is None or all(any(contains(r, cidr) for r in self.ranges) for cidr in lease.cidrs)


ALL_OWN: Final = Export()


def parse_imports(texts: Iterable[str]) -> tuple[Import, ...]:
    """The clusters, of flags or of a variable with several between spaces. Raises Misconfigured."""
    imports: list[Import] = []
    for text in (each for texts_of_one in texts for each in texts_of_one.split()):
        one = _parse(text)
        for other in imports:
            if other.name == one.name:
                raise Misconfigured(f"--import {one.name} is given twice: give each cluster one name")
            for cidr in one.allow:
                if theirs := overlapped(cidr, other.allow):
                    raise Misconfigured(
                        f"--import {one.name} allows {cidr}, which overlaps {theirs} of --import {other.name}: an "
                        "address can be in one cluster only, so let one of them allow less"
                    )
        imports.append(one)
    return tuple(imports)


def parse_export(texts: Iterable[str]) -> Export:
    """The ranges, of flags or of a variable with several between spaces or commas. Raises Misconfigured."""
    words = [each for text in texts for each in text.replace(",", " ").split()]
    if not words:
        return ALL_OWN
    if words == [NOTHING]:
        return Export(())
    return Export(tuple(_network("--export", word) for word in words))


def overlapped(cidr: Network, others: Iterable[Network]) -> Network | None:
    """The first of these that shares an address with the network."""
    return next((each for each in others if contains(each, cidr) or contains(cidr, each)), None)


def own_ranges(network: NetworkConfig) -> tuple[Network, ...]:
    """Where leases of this cluster lie."""
    return (*(n.cidr for n in network.families), *network.beside)


def shown_options(network: NetworkConfig) -> dict[str, int | str]:
    """The backend's options that peers must have alike, as other clusters see them.

    In the place of a PSK stand 16 bits of its digest, over and over: two keys differ there, and nobody can guess one.
    """
    options = network.options
    if not (isinstance(options, WireguardOptions | IpsecOptions) and options.psk):
        return _alike(network)
    bits = sha256(options.psk).digest()[:2]
    text = bits.hex() * 24 if isinstance(options, IpsecOptions) else b64encode(bits * 16).decode()
    return _alike(network) | {"PSK": text}


def mismatch(own: NetworkConfig, theirs: NetworkConfig) -> str:
    """Why the nodes of two clusters cannot be peers, though their leases are good; empty: they can.

    `theirs` is as their lease service shows it.
    """
    if own.backend_type != theirs.backend_type:
        return f"its backend is {theirs.backend_type}, and here it is {own.backend_type}"
    here, there = shown_options(own), _alike(theirs)
    for option in there:
        if here[option] != there[option]:
            return f"its {own.backend_type} has {option} {there[option]}, and here it is {here[option]}"
    if isinstance(theirs.options, WireguardOptions | IpsecOptions) and here.get("PSK", "") != _written_psk(theirs):
        return f"its {own.backend_type} has another PSK, or one of the two has none"
    missing = [n.family for n in own.families if theirs.family(n.family) is None]
    return f"it has no {missing[0]}, which this network has" if missing else ""


def _written_psk(network: NetworkConfig) -> str:
    """Returns the option PSK as the network configuration has it; empty: there is none."""
    backend = GoObject.parse(network.source, WHERE).object("Backend")
    return backend.secret("PSK") if backend else ""


def _alike(network: NetworkConfig) -> dict[str, int | str]:
    """Returns the options that peers must have alike, as the backends take them, by name."""
    options = declared_options(type(network.options))
    return {each.name: getattr(network.options, name) for name, each in options.items() if each.is_alike}


def _parse(text: str) -> Import:
    name, equals, rest = text.partition("=")
    if not equals or not _NAME.fullmatch(name):
        raise Misconfigured(f"--import is {text!r}: write {_FORM}")
    address, *options = rest.split(",")
    allow: list[Network] = []
    given: dict[str, str] = {}
    for option in options:
        key, _, value = option.partition("=")
        if key == "allow":
            allow.append(_network(f"--import {name}: allow", value))
        elif key not in (*_FILES, "server-name"):
            raise Misconfigured(f"--import {name}: {option!r} is no option: write {_FORM}")
        elif not value or key in given:
            fault = "is given twice" if value else "has no value"
            raise Misconfigured(f"--import {name}: {key}= {fault}: write {_FORM}")
        else:
            given[key] = value
    if not address or not allow:
        what = "the address of its lease service" if not address else "allow=CIDR, where its leases may lie"
        raise Misconfigured(f"--import {name} lacks {what}: write {_FORM}")
    files = tuple(given[key] for key in _FILES if key in given)
    if len(files) not in (0, len(_FILES)):
        raise Misconfigured(f"--import {name} has some of cert=, key= and ca=: give all three or none")
    return Import(name, address, tuple(allow), files, given.get("server-name", ""))


def _network(what: str, text: str) -> Network:
    network = exact_cidr(text)
    if network is None or network.prefixlen == 0:
        why = "every address" if network else "no network, or has bits after its prefix length"
        example = "10.6.0.0/16 or fd00:10:6::/48"
        raise Misconfigured(f"{what} is {text!r}, which is {why}: use a network such as {example}")
    return network


def _list(networks: Iterable[Network]) -> str:
    return ", ".join(map(str, networks))
