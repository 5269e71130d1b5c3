"""The backend types that some flannel has had: their options, and what all services must know of each. Pure.

An option has one declaration, by which its value in the network configuration is read. Whatever is said of options
elsewhere (docs/configuration.md, docs/backends.md, the chart's schema) is made from the declarations. `Tunnel` says
how a network looks from outside: its overlay devices by name, and what carries packets between nodes. How a backend
works is in services/dataplane/backends; which types are built is decided there.
"""

import json
import re
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from typing import Any, ClassVar, Final, Self
from zlib import crc32

from flannelette.services.core.errors import InvalidInput
from flannelette.services.core.family import IPV4, Family
from flannelette.services.core.formats.gojson import GoObject
from flannelette.services.core.formats.text import word_list
from flannelette.services.core.limits import LARGEST_MTU, SMALLEST_MTU


class Secret(bytes):
    """A private or pre-shared key, which no text shows."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "(hidden)"

    __str__ = __repr__


UDP: Final = 17
IPIP_DEVICE: Final = "flannel.ipip"
IPSEC_DEVICE: Final = "flannel.ipsec"
FOU_DEVICE: Final = "flannel.fou"
"""A tunnel of the kernel, which must not take the name that a running flanneld's device has."""
IPSEC_MARK: Final = (11, 0x666C)
"""Reqid and priority of our IPsec policies with a tunnel.

The reqid, which is not on the wire, is flannel's and that of charon's states: either's states carry the packets of
the other's policies.
"""
_LONGEST: Final = 8
"""Characters of a network's name in that of a device, of which Linux takes 15 (IFNAMSIZ)."""


@dataclass(frozen=True, slots=True)
class DeviceName:
    """The names of a device that each network of a host has."""

    flannel: str
    """The device's name in the network without a name, as flannel has it."""
    kind: str
    """The part that the device's names in other networks have in common: `wg` of `fl-wg-blue`."""

    def of(self, suffix: str) -> str:
        """Returns the device's name in the network with this suffix: `fl-wg-blue` for `-blue`.

        A name that is too long for that is a checksum there, behind a character that no name of a network has:
        `fl-wg.a7dc2d7c`.
        """
        if not suffix:
            return self.flannel
        if len(suffix) > len("-") + _LONGEST:
            suffix = f".{crc32(suffix.encode()):08x}"
        return f"fl-{self.kind}{suffix}"

    def is_one(self, name: str) -> bool:
        """Whether some network's device is called so."""
        return name == self.flannel or name.startswith((f"fl-{self.kind}-", f"fl-{self.kind}."))


WIREGUARD_DEVICE: Final = DeviceName("flannel-wg", "wg")
WIREGUARD_DEVICE_V6: Final = DeviceName("flannel-wg-v6", "wg6")
UDP_DEVICE: Final = DeviceName("flannel0", "udp")
"""A TUN device, whose packets a process carries."""


@dataclass(frozen=True, slots=True)
class Tunnel:
    """How a backend's packets look from outside: on the node's devices, and between the nodes."""

    devices: dict[int, str]
    """The overlay device by IP version; empty: which device a packet takes depends on the routes, or the kernel."""
    protocol: int
    """The IP protocol that carries packets between the nodes."""
    port: int = 0
    """Destination port of that protocol; 0: it has none."""
    port_v6: int = 0
    """Destination port between IPv6 addresses; 0: the same."""
    carriers: tuple[str, ...] = ()
    """Each device that may carry packets, whatever the routes and the kernel decide."""

    @property
    def text(self) -> str:
        """Names what a firewall must let pass, such as `UDP port 8472`."""
        return f"UDP port {self.port}" if self.protocol == UDP else f"IP protocol {self.protocol}"

    def port_of(self, version: int) -> int:
        """The destination port between addresses of this IP version."""
        return (self.port_v6 if version == 6 else 0) or self.port


WHERE: Final = "the network configuration"
CLOUDS: Final = ("aws-vpc", "gce", "ali-vpc", "tencent-vpc")
"""Backends whose routes are in a cloud's tables, and which nothing on a node has to carry."""


@dataclass(frozen=True, slots=True)
class Option:
    """The declaration of an option."""

    name: str
    """Name in the network configuration, where case does not matter."""
    default: object
    """The type of the value, too: a number, a flag, a text, or a tuple of texts."""
    text: str
    """What it means, in Markdown."""
    since: str = ""
    """The release that has it first; empty: that of the backend."""
    least: int = 0
    most: int = 65535
    """Least and largest value of a number."""
    choices: tuple[str, ...] = ()
    """Values that a text may have; empty: any."""
    is_secret: bool = False
    """No error, log or answer shows it."""
    is_alike: bool = False
    """Nodes whose values differ cannot be peers."""
    otherwise: str = ""
    """What is in the place of the default, in words."""
    chart_value: str = ""
    """The key of `flannel` in the values of flannel's chart, which ours has too; empty: there is none."""
    convert: Callable[[Any], Any] | None = None
    """What makes the value out of the one that is written. Raises ValueError with the rest of a sentence."""

    def read(self, given: GoObject) -> Any:
        """The value that is written, else the default. Raises InvalidInput for one of another type or too large."""
        if self.is_secret:
            return given.secret(self.name)
        if isinstance(self.default, bool):
            return given.flag(self.name, self.default)
        if isinstance(self.default, int):
            return given.number(self.name, self.default, most=self.most)
        if isinstance(self.default, tuple):
            return json.loads(given.compact(self.name) or "null")
        return given.text(self.name, str(self.default))

    def meant(self, value: Any) -> Any:
        """What a written value means. Raises InvalidInput where it means nothing."""
        if self.choices and value not in self.choices:
            choices = word_list(self.choices, "or")
            raise InvalidInput(f"{self.name} {value!r} of Backend in {WHERE} does not exist: write {choices}")
        try:
            if isinstance(self.default, int) and value < self.least:
                raise ValueError(f"must be {self.least} to {self.most}, not {value}")
            return value if self.convert is None else self.convert(value)
        except ValueError as error:
            raise InvalidInput(f"{self.name} of Backend in {WHERE} {error}") from None


def option(name: str, default: Any, text: str, **more: Any) -> Any:
    """A field of a BackendOptions that is this Option."""
    declared = Option(name, default, text, **more)
    return field(default=default, repr=not declared.is_secret, metadata={"option": declared})


@dataclass(frozen=True, slots=True)
class BackendOptions:
    """What every service knows of a backend: a subclass has its options as fields, which are made by `option`."""

    since: ClassVar[str] = "0.2.0"
    """The release that has the backend first."""
    of_windows: ClassVar[tuple[Option, ...]] = ()
    """Options of flannel that have an effect on Windows alone."""
    carries_ipv6: ClassVar[bool] = True
    """Whether IPv6 is carried. If not, IPv6 of a network that enables both is left out, and a network of IPv6 alone
    refused."""
    needs_data: ClassVar[bool] = False
    """Whether a node on Kubernetes publishes a family only with data in it."""
    publishes_ipv6: ClassVar[bool] = False
    """Whether a node on Kubernetes publishes an IPv6 address."""
    shares_addresses: ClassVar[bool] = False
    """Several nodes, behind one NAT say, may publish one address: their keys tell them apart."""

    @classmethod
    def parse(cls, given: GoObject) -> Self:
        """The options as flannel reads them. Raises InvalidInput, naming the option."""
        declared = declared_options(cls)
        written = {name: each.read(given) for name, each in declared.items()}
        return cls(**{name: each.meant(written[name]) for name, each in declared.items()})

    @classmethod
    def of(cls, options: "BackendOptions") -> Self:
        """The same options in a subclass: in the backend that the dataplane has for them."""
        return cls(**{name: getattr(options, name) for name in declared_options(cls)})

    def check(self, families: tuple[Family, ...]) -> None:
        """Raises InvalidInput for options that no node could use together, or in these families."""

    def tunnel(self, suffix: str) -> Tunnel | None:
        """See NetworkConfig."""
        return None


def declared_options(backend: type[BackendOptions]) -> Mapping[str, Option]:
    """The options of a backend, by the name of their field."""
    declared: Sequence[Field[Any]] = [each for each in fields(backend) if each.metadata]
    return {each.name: each.metadata["option"] for each in declared}


def unknown_options(name: str, backend: type[BackendOptions], given: GoObject, page: str) -> list[str]:
    """A warning for each option that the backend does not have; `page` says where its options are told."""
    known = [each.name for each in declared_options(backend).values()]
    names = {each.casefold() for each in ("type", *known, *(each.name for each in backend.of_windows))}
    return [
        f"{key} of Backend in {WHERE} is no option of {name} and has no effect: its options are "
        f"{', '.join(known) or 'none'} ({page})"
        for key in given.names()
        if key.casefold() not in names
    ]


def told_keys(given: GoObject, page: str) -> list[str]:
    """A warning about a cloud account's key in the network configuration, which each node of the overlay reads."""
    if not given.has("AccessKeySecret"):
        return []
    return [
        f"{WHERE} has the secret key of a cloud account, and every node reads it: give the instance "
        f"of flannelette-cloud a role, or its environment the key, and delete AccessKeySecret ({page})"
    ]


_IPIP: Final = 4
_ESP: Final = 50
_IKE_NAT_PORT: Final = 4500
VXLAN_PORT: Final = 8472
"""Linux's own default (drivers/net/vxlan), older than IANA's 4789; flannel's `Port` 0."""
VXLAN_DF: Final = ("unset", "set", "inherit")
"""What a packet's Don't Fragment may be, in the order of the kernel's numbers (enum ifla_vxlan_df)."""
UDP_PORT: Final = 8285
WIREGUARD_OVERHEAD: Final = 80
"""Bytes: IPv6 40, UDP 8, WireGuard's header 16 and tag 16. flannel takes it off in both families."""
_SHORTEST_PSK: Final = 96
_PROPOSAL: Final = re.compile(r"[A-Za-z0-9_]+(-[A-Za-z0-9_]+){0,15}", re.ASCII)
_LONGEST_PROPOSAL: Final = 100
_NO_MORE: Final = "taken for the underlay's, if that is not less"
_DIRECT: Final = "a connected peer is reached by a plain route, as with host-gw; the others by the tunnel"


@dataclass(frozen=True, slots=True)
class VxlanOptions(BackendOptions):
    """Options of backend vxlan: flannel's, and our own `TTL` and `DF`."""

    since: ClassVar[str] = "0.1.0"
    of_windows: ClassVar[tuple[Option, ...]] = (
        Option("MacPrefix", "", "", chart_value="macPrefix"),
        Option("Name", "", ""),
    )
    needs_data: ClassVar[bool] = True
    publishes_ipv6: ClassVar[bool] = True

    vni: int = option(
        "VNI",
        1,
        "number of the overlay; the device is `flannel.VNI`, for IPv6 `flannel-v6.VNI`",
        most=2**24 - 1,
        is_alike=True,
        chart_value="vni",
    )
    port: int = option(
        "Port",
        VXLAN_PORT,
        "UDP port of all nodes; 0: 8472, Linux' own default",
        is_alike=True,
        chart_value="backendPort",
        convert=lambda port: port or VXLAN_PORT,
    )
    parent_mtu: int = option("MTU", 0, _NO_MORE, most=LARGEST_MTU, otherwise="the underlay's", chart_value="mtu")
    """0: the underlay's, as it is."""
    learning: bool = option(
        "Learning", False, "the device learns addresses from what it receives; nothing here needs that"
    )
    gbp: bool = option("GBP", False, "the device carries group policy marks between nodes", chart_value="GBP")
    direct_routing: bool = option("DirectRouting", False, _DIRECT, chart_value="directRouting")
    ttl: int = option(
        "TTL",
        0,
        "TTL (IPv6: hop limit) of the outer packet; 0: the kernel's default. Ours: flannel ignores it",
        since="0.3.0",
        most=255,
    )
    df: str = option(
        "DF",
        "unset",
        "Don't Fragment of the outer IPv4 packet: `unset`, `set`, or `inherit`: that of the inner one. IPv6 has no "
        "such bit, and no router fragments it. Ours: flannel ignores it",
        since="0.3.0",
        choices=VXLAN_DF,
    )

    def check(self, families: tuple[Family, ...]) -> None:
        """An MTU of the underlay that leaves a VXLAN device too little: flannel takes IPv4's off in both families."""
        _check_mtu(self.parent_mtu, IPV4.vxlan_overhead, families)

    def tunnel(self, suffix: str) -> Tunnel:
        """The VXLAN devices, unless which peers need them depends on the routes."""
        devices = {4: f"flannel.{self.vni}", 6: f"flannel-v6.{self.vni}"}
        return Tunnel({} if self.direct_routing else devices, UDP, self.port, carriers=tuple(devices.values()))


def _check_mtu(mtu: int, overhead: int, families: tuple[Family, ...]) -> None:
    """Raises InvalidInput for an MTU of the underlay that leaves a family less than it needs; 0 is none."""
    for family in families if mtu else ():
        least = SMALLEST_MTU[family.version]
        if mtu < least + overhead:
            raise InvalidInput(
                f"MTU {mtu} of Backend in {WHERE} leaves {max(mtu - overhead, 0)} bytes for packets, "
                f"and {family} needs {least}: write at least {least + overhead}, or leave MTU out"
            )


@dataclass(frozen=True, slots=True)
class HostGwOptions(BackendOptions):
    """Backend host-gw, which has no options."""

    since: ClassVar[str] = "0.1.0"
    of_windows: ClassVar[tuple[Option, ...]] = (Option("Name", "", ""), Option("DNSServerList", "", ""))
    publishes_ipv6: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class IpipOptions(BackendOptions):
    """Options of backend ipip, which are flannel's."""

    carries_ipv6: ClassVar[bool] = False

    direct_routing: bool = option("DirectRouting", False, _DIRECT, chart_value="directRouting")

    def tunnel(self, suffix: str) -> Tunnel:
        """The IPIP device, unless which peers need it depends on the routes."""
        return Tunnel({} if self.direct_routing else {4: IPIP_DEVICE}, _IPIP, carriers=(IPIP_DEVICE,))


@dataclass(frozen=True, slots=True)
class AllocOptions(BackendOptions):
    """Backends alloc and gce, which have no options."""

    carries_ipv6: ClassVar[bool] = False


def _wireguard_key(text: str) -> Secret:
    """The key in base64; what is wrong with it is said without it."""
    try:
        key = b64decode(text, validate=True)
    except ValueError:
        key = b"?"
    if len(key) not in (0, 32):
        raise ValueError("must be 32 bytes in base64, as `wg genpsk` prints them")
    return Secret(key if any(key) else b"")


@dataclass(frozen=True, slots=True)
class WireguardOptions(BackendOptions):
    """Options of backend wireguard, which are flannel's."""

    needs_data: ClassVar[bool] = True
    publishes_ipv6: ClassVar[bool] = True
    shares_addresses: ClassVar[bool] = True

    psk: Secret = option(
        "PSK",
        Secret(),
        "a key of 32 bytes in base64 that all nodes share, beside their own keys (`wg genpsk`)",
        is_secret=True,
        chart_value="psk",
        convert=_wireguard_key,
    )
    """The pre-shared key; empty: there is none."""
    port: int = option("ListenPort", 51820, "UDP port", least=1, chart_value="backendPort")
    port_v6: int = option(
        "ListenPortV6", 51821, "that of the IPv6 device, with `Mode` `separate`", least=1, chart_value="backendPortv6"
    )
    mode: str = option(
        "Mode",
        "separate",
        "`separate`: a device for each family. One device for both: `ipv4`, `ipv6` and `auto` say over which "
        "underlay",
        choices=("separate", "auto", "ipv4", "ipv6"),
        is_alike=True,
        chart_value="tunnelMode",
    )
    parent_mtu: int = option("MTU", 0, _NO_MORE, most=LARGEST_MTU, otherwise="the underlay's", chart_value="mtu")
    """0: the underlay's, as it is."""
    keepalive: int = option(
        "PersistentKeepaliveInterval",
        0,
        "seconds between packets that keep a NAT's entry alive; 0: none, 25 is usual",
        chart_value="keepaliveInterval",
    )

    @property
    def joins_families(self) -> bool:
        """Whether one device carries both families, by packets of one, so that a node needs an address of both."""
        return self.mode != "separate"

    def check(self, families: tuple[Family, ...]) -> None:
        """An MTU that leaves too little, two devices on one port, or an endpoint of a family that no node has."""
        if not self.joins_families and len(families) > 1 and self.port == self.port_v6:
            raise InvalidInput(
                f"ListenPort and ListenPortV6 of Backend in {WHERE} are both {self.port}, and with Mode separate "
                "each family has a device: write two ports, or another Mode"
            )
        if self.mode in ("ipv4", "ipv6") and all(f"ipv{family.version}" != self.mode for family in families):
            enabled = ", ".join(map(str, families))
            raise InvalidInput(
                f"Mode {self.mode} of Backend in {WHERE} sends packets to addresses that nodes do not publish, for "
                f"the network has {enabled} only: write Mode separate"
            )
        _check_mtu(self.parent_mtu, WIREGUARD_OVERHEAD, families)

    def tunnel(self, suffix: str) -> Tunnel:
        """The devices of the network."""
        six = WIREGUARD_DEVICE if self.joins_families else WIREGUARD_DEVICE_V6
        devices = {4: WIREGUARD_DEVICE.of(suffix), 6: six.of(suffix)}
        carriers = tuple(dict.fromkeys(devices.values()))
        return Tunnel(devices, UDP, self.port, 0 if self.joins_families else self.port_v6, carriers)


@dataclass(frozen=True, slots=True)
class ExtensionOptions(BackendOptions):
    """Options of backend extension, which are flannel's: command lines (`core.shell_words`); empty: none."""

    publishes_ipv6: ClassVar[bool] = True

    pre_startup: str = option(
        "PreStartupCommand",
        "",
        "run before the node has a subnet; its output is the backend data of the node's lease",
    )
    post_startup: str = option(
        "PostStartupCommand",
        "",
        "run with the node's subnet, before any peer is added, and again when the subnet changes",
    )
    shutdown: str = option(
        "ShutdownCommand",
        "",
        "run when the network gets another backend, and at a teardown. No flannel ever ran it",
    )
    subnet_add: str = option(
        "SubnetAddCommand",
        "",
        "run for each peer, with its backend data as input; again when the peer changes, and after a restart",
    )
    subnet_remove: str = option("SubnetRemoveCommand", "", "the same for a peer that has left")


@dataclass(frozen=True, slots=True)
class UdpOptions(BackendOptions):
    """Options of backend udp: flannel's `Port`, and our own `Mode`."""

    carries_ipv6: ClassVar[bool] = False

    port: int = option(
        "Port",
        UDP_PORT,
        "UDP port of all nodes, as leases do not publish it; 0: 8285",
        is_alike=True,
        chart_value="backendPort",
        convert=lambda port: port or UDP_PORT,
    )
    mode: str = option(
        "Mode",
        "auto",
        "who carries the packets: the `kernel`; a process in `user` space; `auto`: the kernel where it can. "
        "Ours: flannel ignores it",
        choices=("auto", "kernel", "user"),
    )

    def tunnel(self, suffix: str) -> Tunnel:
        """The device, if Mode says who carries the packets."""
        devices = {"kernel": FOU_DEVICE, "user": UDP_DEVICE.of(suffix)}
        known = {4: devices[self.mode]} if self.mode in devices else {}
        return Tunnel(known, UDP, self.port, carriers=tuple(known.values() or devices.values()))


def _ipsec_key(text: str) -> Secret:
    """The text, as charon gets it."""
    if len(text) < _SHORTEST_PSK:
        found = f"has {len(text)}" if text else "is missing"
        raise ValueError(
            f"{found}: ipsec needs at least {_SHORTEST_PSK} characters, as `openssl rand -hex 48` prints"
        )
    return Secret(text.encode())


def _proposal(text: str) -> str:
    """What strongSwan takes: no proposal without encryption."""
    is_plain = "null" in text.lower().split("-")
    if not _PROPOSAL.fullmatch(text) or len(text) > _LONGEST_PROPOSAL or is_plain:
        raise ValueError(
            "must be algorithms of strongSwan with - between them, of which one encrypts, such as "
            "aes128gcm16-sha256-prfsha256-ecp256"
        )
    return text


@dataclass(frozen=True, slots=True)
class IpsecOptions(BackendOptions):
    """Options of backend ipsec, which are flannel's."""

    carries_ipv6: ClassVar[bool] = False

    psk: Secret = option(
        "PSK",
        Secret(),
        "the key that all nodes share, at least 96 characters: `openssl rand -hex 48`",
        otherwise="none: it must be given",
        is_secret=True,
        chart_value="psk",
        convert=_ipsec_key,
    )
    encap: bool = option("UDPEncap", False, "ESP in UDP, also where no NAT is between two nodes")
    proposal: str = option(
        "ESPProposal",
        "aes128gcm16-sha256-prfsha256-ecp256",
        "the algorithms of ESP, in strongSwan's words",
        is_alike=True,
        convert=_proposal,
    )

    def tunnel(self, suffix: str) -> Tunnel:
        """ESP, by itself or in UDP."""
        protocol, port = (UDP, _IKE_NAT_PORT) if self.encap else (_ESP, 0)
        return Tunnel({}, protocol, port, carriers=(IPSEC_DEVICE,))


def _table_ids(value: object) -> tuple[str, ...]:
    found = [value] if isinstance(value, str) else value or []
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise ValueError("must be a string or a list of strings")
    return tuple(dict.fromkeys(each for each in found if each))


@dataclass(frozen=True, slots=True)
class AwsOptions(AllocOptions):
    """The option of backend aws-vpc, which is flannel's."""

    table_ids: tuple[str, ...] = option(
        "RouteTableID",
        (),
        "a table, or a list of tables; each gets all routes",
        otherwise="the tables of the nodes' subnets",
        convert=_table_ids,
    )


@dataclass(frozen=True, slots=True)
class KeyOptions(AllocOptions):
    """Options of backends ali-vpc and tencent-vpc: the key of an account, as in flannel."""

    key_id: str = option(
        "AccessKeyID", "", "the name of a key: AccessKey ID of Alibaba, SecretId of Tencent", is_secret=True
    )
    key_secret: str = option(
        "AccessKeySecret",
        "",
        "the key. Every node reads both in the network configuration, so a warning names what to use instead",
        is_secret=True,
    )


BACKEND_TYPES: Final[dict[str, type[BackendOptions]]] = {
    "vxlan": VxlanOptions,
    "host-gw": HostGwOptions,
    "ipip": IpipOptions,
    "alloc": AllocOptions,
    "wireguard": WireguardOptions,
    "extension": ExtensionOptions,
    "udp": UdpOptions,
    "ipsec": IpsecOptions,
    "aws-vpc": AwsOptions,
    "gce": AllocOptions,
    "ali-vpc": KeyOptions,
    "tencent-vpc": KeyOptions,
}
"""Options of each backend, by flannel's `Type` in lower case."""
SECRETS: Final = frozenset(
    each.name.lower()
    for backend in BACKEND_TYPES.values()
    for each in declared_options(backend).values()
    if each.is_secret
)
"""Options, in lower case, that no answer for people shows."""


def parse_options(name: str, given: GoObject, families: tuple[Family, ...]) -> tuple[BackendOptions, list[str]]:
    """The options of a backend, and warnings about those that it does not have, which flannel ignores.

    Raises InvalidInput for values of another type or out of range, naming the option and where its page is.
    """
    backend = BACKEND_TYPES[name]
    page = f"docs/backends.md#{name} has the options of {name}"
    try:
        options = backend.parse(given)
        options.check(families)
    except InvalidInput as error:
        raise InvalidInput(f"{error} ({page})") from None
    return options, [*unknown_options(name, backend, given, page), *told_keys(given, page)]


def shares_addresses(backend_type: str) -> bool:
    """Whether several nodes of this backend may publish one address; see BackendOptions."""
    return backend_type in BACKEND_TYPES and BACKEND_TYPES[backend_type].shares_addresses
