"""The backend types that some flannel has had, and what all services must know of each. Pure.

How a backend works is in services/dataplane/backends; which types are built is decided there.
"""

from base64 import b64decode
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from flannelette.services.core.backend_options import (
    Option,
    each_of,
    ipsec_options,
    number,
    route_table_ids,
    told_keys,
    unknown_options,
)
from flannelette.services.core.errors import InvalidInput
from flannelette.services.core.family import IPV4, Family
from flannelette.services.core.formats.gojson import GoObject
from flannelette.services.core.limits import LARGEST_MTU, SMALLEST_MTU
from flannelette.services.core.tunnel import (
    FOU_DEVICE,
    IPIP_DEVICE,
    IPSEC_DEVICE,
    UDP,
    UDP_DEVICE,
    WIREGUARD_DEVICE,
    WIREGUARD_DEVICE_V6,
    Tunnel,
)

_WHERE: Final = "the network configuration"
_IPIP: Final = 4
VXLAN_PORT: Final = 8472
"""Linux's own default (drivers/net/vxlan), older than IANA's 4789; flannel's `Port` 0."""
_WIREGUARD_MODES: Final = ("separate", "auto", "ipv4", "ipv6")
_WIREGUARD_OVERHEAD: Final = 80
SECRETS: Final = frozenset({"psk", "accesskeyid", "accesskeysecret"})
"""Options, in lower case, that no answer for people shows."""
_UDP_MODES: Final = ("auto", "kernel", "user")
UDP_PORT: Final = 8285
LARGEST_VNI: Final = 2**24 - 1
_ESP: Final = 50
_IKE_NAT_PORT: Final = 4500


@dataclass(frozen=True, slots=True)
class BackendType:
    """What every service knows of a backend."""

    options: tuple[Option, ...] | None = ()
    """flannel's; None: not known."""
    carries_ipv6: bool = True
    """Without: IPv6 of a network that enables both is left out, and a network of IPv6 alone refused."""
    needs_data: bool = False
    """On Kubernetes a node publishes a family only with data in it."""
    publishes_ipv6: bool = False
    """On Kubernetes a node publishes an IPv6 address."""
    shares_addresses: bool = False
    """Several nodes, behind one NAT say, may publish one address: their keys tell them apart."""
    check: Callable[[GoObject, tuple[Family, ...]], None] = lambda options, families: None
    """Raises InvalidInput for options that no node could use in these families."""
    tunnel: Callable[[GoObject, str], Tunnel | None] = lambda options, suffix: None
    """See NetworkConfig."""


def _check_vxlan(options: GoObject, families: tuple[Family, ...]) -> None:
    """An MTU of the underlay that leaves a VXLAN device too little."""
    mtu = options.number("MTU", most=LARGEST_MTU)
    left = max(mtu - IPV4.vxlan_overhead, 0)
    for family in families if mtu else ():
        least = SMALLEST_MTU[family.version] + IPV4.vxlan_overhead  # flannel takes that off in both families
        if mtu < least:
            raise InvalidInput(
                f"MTU {mtu} of Backend in the network configuration leaves {left} bytes for packets, "
                f"and {family} needs {SMALLEST_MTU[family.version]}: write at least {least}, or leave MTU out"
            )


def _vxlan_tunnel(options: GoObject, suffix: str) -> Tunnel:
    vni = options.number("VNI", 1, most=LARGEST_VNI)
    devices = {4: f"flannel.{vni}", 6: f"flannel-v6.{vni}"}
    carriers = tuple(devices.values())
    port = options.number("Port", most=65535) or VXLAN_PORT
    return Tunnel({} if options.flag("DirectRouting") else devices, UDP, port, carriers=carriers)


def _ipip_tunnel(options: GoObject, suffix: str) -> Tunnel:
    return Tunnel({} if options.flag("DirectRouting") else {4: IPIP_DEVICE}, _IPIP, carriers=(IPIP_DEVICE,))


@dataclass(frozen=True, slots=True)
class WireguardOptions:
    """flannel's options of the same names."""

    psk: bytes = field(repr=False)
    """Empty: none."""
    port: int
    port_v6: int
    mode: str
    mtu: int
    """Of the underlay; 0: as it is."""
    keepalive: int


def wireguard_options(options: GoObject) -> WireguardOptions:
    """Raises InvalidInput, naming the option."""
    mode = options.text("Mode", "separate")
    if mode not in _WIREGUARD_MODES:
        raise InvalidInput(f"Mode {mode!r} of Backend in {_WHERE} does not exist: write {_one_of(_WIREGUARD_MODES)}")
    return WireguardOptions(
        psk=_psk(options.secret("PSK")),
        port=_port(options, "ListenPort", 51820),
        port_v6=_port(options, "ListenPortV6", 51821),
        mode=mode,
        mtu=options.number("MTU", most=LARGEST_MTU),
        keepalive=options.number("PersistentKeepaliveInterval", most=65535),
    )


def _psk(text: str) -> bytes:
    """The key in base64; what is wrong with it is said without it."""
    try:
        key = b64decode(text, validate=True)
    except ValueError:
        key = b"?"
    if len(key) not in (0, 32):
        raise InvalidInput(f"PSK of Backend in {_WHERE} must be 32 bytes in base64, as `wg genpsk` prints them")
    return key if any(key) else b""


def _port(options: GoObject, name: str, default: int) -> int:
    port = options.number(name, default, most=65535)
    if not port:
        raise InvalidInput(f"{name} of Backend in {_WHERE} must be 1 to 65535: other nodes send to it")
    return port


def _one_of(words: tuple[str, ...]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"


def _check_wireguard(options: GoObject, families: tuple[Family, ...]) -> None:
    """An MTU that leaves too little, two devices on one port, or an endpoint of a family that no node has."""
    found = wireguard_options(options)
    if found.mode == "separate" and len(families) > 1 and found.port == found.port_v6:
        raise InvalidInput(
            f"ListenPort and ListenPortV6 of Backend in {_WHERE} are both {found.port}, and with Mode separate each "
            "family has a device: write two ports, or another Mode"
        )
    if found.mode in ("ipv4", "ipv6") and all(f"ipv{family.version}" != found.mode for family in families):
        enabled = ", ".join(map(str, families))
        raise InvalidInput(
            f"Mode {found.mode} of Backend in {_WHERE} sends packets to addresses that nodes do not publish, for the "
            f"network has {enabled} only: write Mode separate"
        )
    for family in families if found.mtu else ():
        least, left = SMALLEST_MTU[family.version], max(found.mtu - _WIREGUARD_OVERHEAD, 0)
        if left < least:
            raise InvalidInput(
                f"MTU {found.mtu} of Backend in {_WHERE} leaves {left} bytes for packets, "
                f"and {family} needs {least}: write at least {least + _WIREGUARD_OVERHEAD}, or leave MTU out"
            )


def _wireguard_tunnel(options: GoObject, suffix: str) -> Tunnel:
    found = wireguard_options(options)
    is_single = found.mode != "separate"
    devices = {4: WIREGUARD_DEVICE.of(suffix), 6: (WIREGUARD_DEVICE if is_single else WIREGUARD_DEVICE_V6).of(suffix)}
    carriers = tuple(dict.fromkeys(devices.values()))
    return Tunnel(devices, UDP, found.port, 0 if is_single else found.port_v6, carriers)


@dataclass(frozen=True, slots=True)
class UdpOptions:
    """flannel's `Port`, and our own `Mode`, which flannel ignores."""

    port: int
    mode: str
    """Who carries the packets: the `kernel`, a process in `user` space, or `auto`: the kernel where it can."""


def udp_options(options: GoObject) -> UdpOptions:
    """Raises InvalidInput, naming the option."""
    mode = options.text("Mode", "auto")
    if mode not in _UDP_MODES:
        raise InvalidInput(f"Mode {mode!r} of Backend in {_WHERE} does not exist: write {_one_of(_UDP_MODES)}")
    return UdpOptions(options.number("Port", most=65535) or UDP_PORT, mode)


def _check_udp(options: GoObject, families: tuple[Family, ...]) -> None:
    udp_options(options)


def _check_ipsec(options: GoObject, families: tuple[Family, ...]) -> None:
    ipsec_options(options)


def _ipsec_tunnel(options: GoObject, suffix: str) -> Tunnel:
    protocol, port = (UDP, _IKE_NAT_PORT) if ipsec_options(options).encap else (_ESP, 0)
    return Tunnel({}, protocol, port, carriers=(IPSEC_DEVICE,))


def _udp_tunnel(options: GoObject, suffix: str) -> Tunnel:
    found = udp_options(options)
    devices = {"kernel": FOU_DEVICE, "user": UDP_DEVICE.of(suffix)}
    known = {4: devices[found.mode]} if found.mode in devices else {}
    return Tunnel(known, UDP, found.port, carriers=tuple(known.values() or devices.values()))


def _check_aws(options: GoObject, families: tuple[Family, ...]) -> None:
    route_table_ids(options)


def check_options(name: str, options: GoObject, families: tuple[Family, ...]) -> list[str]:
    """Warnings about options that the backend does not have, which flannel ignores.

    Raises InvalidInput for values of another type or out of range, naming the option and where its page is.
    """
    backend = BACKEND_TYPES[name]
    page = f"docs/backends.md#{name} has the options of {name}"
    try:
        for option in backend.options or ():
            option.check(options)
        backend.check(options, families)
    except InvalidInput as error:
        raise error if page.split()[0] in str(error) else InvalidInput(f"{error} ({page})") from None
    unknown = [] if backend.options is None else unknown_options(name, backend.options, options, page)
    return [*unknown, *told_keys(options, page)]


_DIRECT: Final = each_of("flag", "DirectRouting")
_KEYS: Final = each_of("secret", "AccessKeyID", "AccessKeySecret")
_COMMANDS: Final = ("PreStartupCommand", "PostStartupCommand", "ShutdownCommand", "SubnetAddCommand")

BACKEND_TYPES: Final[dict[str, BackendType]] = {
    "vxlan": BackendType(
        (
            number("VNI", LARGEST_VNI),
            number("Port"),
            number("MTU", LARGEST_MTU),
            *each_of("flag", "Learning", "GBP"),
            *_DIRECT,
            *each_of("windows", "MacPrefix", "Name"),
        ),
        needs_data=True,
        publishes_ipv6=True,
        check=_check_vxlan,
        tunnel=_vxlan_tunnel,
    ),
    "host-gw": BackendType(each_of("windows", "Name", "DNSServerList"), publishes_ipv6=True),
    "ipip": BackendType(_DIRECT, carries_ipv6=False, tunnel=_ipip_tunnel),
    "alloc": BackendType(carries_ipv6=False),
    "wireguard": BackendType(
        (
            *each_of("secret", "PSK"),
            number("ListenPort"),
            number("ListenPortV6"),
            *each_of("text", "Mode"),
            number("MTU", LARGEST_MTU),
            number("PersistentKeepaliveInterval"),
        ),
        needs_data=True,
        publishes_ipv6=True,
        shares_addresses=True,
        check=_check_wireguard,
        tunnel=_wireguard_tunnel,
    ),
    "extension": BackendType(each_of("text", *_COMMANDS, "SubnetRemoveCommand"), publishes_ipv6=True),
    "udp": BackendType(
        (number("Port"), *each_of("text", "Mode")), carries_ipv6=False, check=_check_udp, tunnel=_udp_tunnel
    ),
    "ipsec": BackendType(
        (*each_of("secret", "PSK"), *each_of("flag", "UDPEncap"), *each_of("text", "ESPProposal")),
        carries_ipv6=False,
        check=_check_ipsec,
        tunnel=_ipsec_tunnel,
    ),
    "aws-vpc": BackendType(each_of("any", "RouteTableID"), carries_ipv6=False, check=_check_aws),
    "gce": BackendType(carries_ipv6=False),
    "ali-vpc": BackendType(_KEYS, carries_ipv6=False),
    "tencent-vpc": BackendType(_KEYS, carries_ipv6=False),
}
"""By flannel's `Type`, in lower case."""


def shares_addresses(backend_type: str) -> bool:
    """Whether several nodes of this backend may publish one address; see BackendType."""
    return backend_type in BACKEND_TYPES and BACKEND_TYPES[backend_type].shares_addresses
