"""flannel's lease keys and values, byte for byte (Go's encoding/json of its LeaseAttrs)."""

import json
import re
from functools import lru_cache
from sys import intern
from typing import Final, NoReturn

from flannelette.services.core.addresses import exact_network, ordinary_network, parse_address
from flannelette.services.core.errors import InvalidInput
from flannelette.services.core.family import FAMILIES, Address, Family, Network, family_of
from flannelette.services.core.formats.gojson import GoObject
from flannelette.services.core.leases.lease import BackendData, Lease, OpaqueData, Subnet, VxlanData, WireguardData
from flannelette.services.core.limits import LONGEST_DATA, LONGEST_NAME

_IPV4: Final = r"([0-9.]{7,15})-([12]?[0-9]|3[01])"
_IPV6: Final = r"([0-9a-f:]{2,39})-(1[01][0-9]|12[0-7]|[1-9]?[0-9])"
_KEY: Final = re.compile(rf"{_IPV4}(?:&{_IPV6})?|{_IPV6}", re.ASCII)
_MAC: Final = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}", re.ASCII)
_OTHER_MACS: Final = re.compile(r"[0-9a-f]{2}(-[0-9a-f]{2}){5}|[0-9a-f]{4}(\.[0-9a-f]{4}){2}", re.ASCII)
"""Notations that Go's net.ParseMAC takes as well, so that flanneld does."""
_ADDRESS_KEYS: Final = {4: "PublicIP", 6: "PublicIPv6"}
_ABSENT_ADDRESSES: Final = {4: "0.0.0.0", 6: None}  # noqa: S104 - how Go prints an IPv4 address that is not set
_DATA_KEYS: Final = {4: "BackendData", 6: "BackendV6Data"}
_GO_ESCAPES: Final = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}
"""What Go escapes beyond JSON's own rules; none of them can stand outside a string."""
_VALUE: Final = re.compile(
    r'\{"PublicIP":"([0-9.]{7,15})","PublicIPv6":(?:null|"([0-9a-f:]{2,39})")(?:,"BackendType":"([a-z-]{1,20})")?'
    r'(?:,"BackendData":(\{[^{}\\]*\}))?(?:,"BackendV6Data":(\{[^{}\\]*\}))?\}',
    re.ASCII,
)
"""A value as flannel and we write it: it needs no JSON parser, which would take seven times as long."""
_VXLAN: Final = re.compile(r'\{"VNI":(0|[1-9][0-9]{0,7}),"VtepMAC":"([0-9a-f]{2}(?::[0-9a-f]{2}){5})"\}', re.ASCII)
_WIREGUARD: Final = re.compile(r'\{"PublicKey":"([A-Za-z0-9+/=]{0,88})","Port":(0|[1-9][0-9]{0,4})\}', re.ASCII)


@lru_cache(maxsize=1 << 15)  # in a listing, all holders come before the leases of the same names
def parse_key(key: str) -> tuple[Network, ...]:
    """The subnets of `10.5.52.0-24` or `10.5.52.0-24&fd00:10:5:34::-64`, IPv4 first.

    Ours also: IPv6 alone, `fd00:10:5:34::-64`, which flanneld takes for foreign. Raises InvalidInput for
    everything else, also for host bits, other spellings of the same subnet, and /32 or /128.
    """
    address, _, length = key.partition("-")
    if ordinary := ordinary_network(address, length):
        return (ordinary,)
    found = []
    for address, length in _parts(key):
        network = exact_network(address, length)
        if network is None:
            _refuse(key)
        found.append(network)
    return tuple(found)


def _parts(key: str) -> list[tuple[str, str]]:
    """Address and length of each family in a key."""
    match = _KEY.fullmatch(key)
    if match is None:
        raise InvalidInput(f"key {_quoted(key)} is not a lease: expected something like 10.5.52.0-24")
    address, length, address_v6, length_v6, address_alone, length_alone = match.groups()
    if address is None:
        return [(address_alone, length_alone)]
    return [(address, length)] if address_v6 is None else [(address, length), (address_v6, length_v6)]


def _refuse(key: str) -> NoReturn:
    raise InvalidInput(f"key {_quoted(key)} is not a lease: it names no subnet in its usual notation")


def parse_lease(
    key: str, value: str | bytes, *, node: str = "", reserved: bool = False, claim_order: int = 0
) -> Lease:
    """The lease in a key (without its prefix) and value. Raises InvalidInput, naming the key.

    Only a reservation, which may wait for its node, needs no address.
    """
    cidrs = parse_key(key)
    if isinstance(value, bytes):
        value = value.decode(errors="replace")  # as Go does
    if exact := parse_exact(cidrs, value):
        backend_type, subnets = exact
        return Lease(key, node, subnets, backend_type, None, reserved, claim_order)
    document = GoObject.parse(value, f"the value of {key}")
    backend_type = _short(document.text("BackendType"), f"BackendType of {key}")
    subnets = tuple(
        Subnet(cidr, _address(document, family_of(cidr), key), _data(document, backend_type, family_of(cidr), key))
        for cidr in cidrs
    )
    if subnets[0].cidr.version == 4 and subnets[0].public_address is None and not reserved:
        raise InvalidInput(f"the value of {key} has no PublicIP")
    return Lease(key, node, subnets, backend_type, None, reserved, claim_order)


def parse_exact(cidrs: tuple[Network, ...], value: str) -> tuple[str, tuple[Subnet, ...]] | None:
    """Backend type and subnets of a value whose every character is as flannel writes it; None for any other.

    Wherever it answers, the JSON reader answers the same: a property test compares them.
    """
    found = _VALUE.fullmatch(value)
    if found is None:
        return None
    ipv4, ipv6, backend_type, data_v4, data_v6 = found.groups("")
    if (data_v4 and cidrs[0].version == 6) or (data_v6 and cidrs[-1].version == 4):
        return None  # data of a family that the lease has not: it may be no JSON
    subnets = []
    for cidr in cidrs:
        is_ipv4 = cidr.version == 4
        address = parse_address(ipv4 if is_ipv4 else ipv6)
        if address is None or address.version != cidr.version or not int(address):
            return None
        text = data_v4 if is_ipv4 else data_v6
        data = _exact_data(text, backend_type) if text else None
        if text and data is None:
            return None
        subnets.append(Subnet(cidr, address, data))
    return intern(backend_type), tuple(subnets)


def _exact_data(text: str, backend_type: str) -> BackendData | None:
    if backend_type == "vxlan" and (vxlan := _VXLAN.fullmatch(text)) and (vni := int(vxlan[1])) < 2**24:
        return VxlanData(vni, vxlan[2])
    if backend_type == "wireguard" and (peer := _WIREGUARD.fullmatch(text)) and (port := int(peer[2])) < 2**16:
        return WireguardData(peer[1], port)
    return None


def format_value(lease: Lease) -> str:
    """The value of a lease: compact JSON, in flannel's order of fields."""
    fields: list[tuple[str, object]] = []
    for family in FAMILIES:
        subnet = lease.subnet(family)
        address = subnet.public_address if subnet else None
        fields.append((_ADDRESS_KEYS[family.version], str(address) if address else _ABSENT_ADDRESSES[family.version]))
    if lease.backend_type:
        fields.append(("BackendType", lease.backend_type))
    parts = [f'"{key}":{_dump(value)}' for key, value in fields]
    parts += [
        f'"{_DATA_KEYS[subnet.cidr.version]}":{format_data(subnet.data)}'
        for subnet in lease.subnets
        if subnet.data is not None
    ]
    return f"{{{','.join(parts)}}}".translate(_GO_ESCAPES)


def format_data(data: BackendData) -> str:
    """Backend data as flannel writes it; the form matters, flanneld compares text (COMPATIBILITY: MAC)."""
    match data:
        case VxlanData(vni, mac):
            return f'{{"VNI":{vni},"VtepMAC":{_dump(mac)}}}'
        case WireguardData(public_key, port):
            return f'{{"PublicKey":{_dump(public_key)},"Port":{port}}}'
        case OpaqueData(text):
            return text


def parse_data(text: str, backend_type: str, where: str) -> BackendData | None:
    """Backend data of a backend type; `null` is none. Raises InvalidInput."""
    if text.strip() == "null":
        return None
    if backend_type == "vxlan":
        document = GoObject.parse(text, where)
        mac = document.text("VtepMAC").lower()
        if _OTHER_MACS.fullmatch(mac):
            mac = bytes.fromhex(mac.replace("-", "").replace(".", "")).hex(":")
        if not _MAC.fullmatch(mac):
            raise InvalidInput(f"VtepMAC {mac!r} in {where} is not a MAC address")
        return VxlanData(document.number("VNI", most=2**24 - 1), mac)
    if backend_type == "wireguard":
        document = GoObject.parse(text, where)
        public_key = _short(document.text("PublicKey"), f"PublicKey in {where}")
        return WireguardData(public_key, document.number("Port", most=65535))
    return OpaqueData(_short(text, where, LONGEST_DATA))


def _short(text: str, where: str, most: int = LONGEST_NAME) -> str:
    """The text, which no node would take if it were longer."""
    if len(text) > most:
        raise InvalidInput(f"{where} has {len(text)} characters: at most {most} are taken")
    return text


def _address(document: GoObject, family: Family, key: str) -> Address | None:
    text = document.text(_ADDRESS_KEYS[family.version])
    if not text:
        return None
    address = parse_address(text)
    if address is None or address.version != family.version:
        raise InvalidInput(f"{_ADDRESS_KEYS[family.version]} {text!r} of {key} is not an {family} address")
    return None if address.is_unspecified else address


def _data(document: GoObject, backend_type: str, family: Family, key: str) -> BackendData | None:
    name = _DATA_KEYS[family.version]
    text = document.compact(name)
    return None if text is None else parse_data(text, backend_type, f"{name} of {key}")


def _dump(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _quoted(key: str) -> str:
    """Puts a key in quotes; one that a store has escaped already is not escaped again."""
    return f"'{key}'" if key.isprintable() else repr(key)
