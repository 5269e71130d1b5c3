"""Lease values exactly as flannel and we write them, read without a JSON parser, in a seventh of the time.

Only what can mean nothing else is answered here. Whatever deviates by one character is None, and for the strict
reader in `services.core.flannel`; a property test holds that both agree on everything that is answered.
"""

import re
from sys import intern
from typing import Final

from services.core.family import Network
from services.core.lease import BackendData, Subnet, VxlanData, WireguardData
from services.core.notation import parse_address

_VALUE: Final = re.compile(
    r'\{"PublicIP":"([0-9.]{7,15})","PublicIPv6":(?:null|"([0-9a-f:]{2,39})")(?:,"BackendType":"([a-z-]{1,20})")?'
    r'(?:,"BackendData":(\{[^{}\\]*\}))?(?:,"BackendV6Data":(\{[^{}\\]*\}))?\}',
    re.ASCII,
)
_MOST: Final = re.compile(
    r'\{"PublicIP":"([0-9.]{7,15})","PublicIPv6":null,"BackendType":"vxlan",'
    r'"BackendData":\{"VNI":(0|[1-9][0-9]{0,6}),"VtepMAC":"([0-9a-f]{2}(?::[0-9a-f]{2}){5})"\}\}',
    re.ASCII,
)
"""Of these most clusters have nothing else: IPv4, VXLAN, a VNI that fits whatever its digits are."""
_VXLAN: Final = re.compile(r'\{"VNI":(0|[1-9][0-9]{0,7}),"VtepMAC":"([0-9a-f]{2}(?::[0-9a-f]{2}){5})"\}', re.ASCII)
_WIREGUARD: Final = re.compile(r'\{"PublicKey":"([A-Za-z0-9+/=]*)","Port":(0|[1-9][0-9]{0,4})\}', re.ASCII)


def read_usual(cidrs: tuple[Network, ...], value: str) -> tuple[str, tuple[Subnet, ...]] | None:
    """Backend type and parts of the lease of these subnets; None: read it strictly."""
    if most := _MOST.fullmatch(value):
        return _read_most(cidrs, *most.groups())
    found = _VALUE.fullmatch(value)
    if found is None:
        return None
    ipv4, ipv6, backend_type, data_v4, data_v6 = found.groups("")
    if (data_v4 and cidrs[0].version == 6) or (data_v6 and cidrs[-1].version == 4):
        return None  # data of a family that it has not, which may be no JSON
    parts = []
    for cidr in cidrs:
        is_ipv4 = cidr.version == 4
        address = parse_address(ipv4 if is_ipv4 else ipv6)
        if address is None or address.version != cidr.version or not int(address):
            return None
        raw = data_v4 if is_ipv4 else data_v6
        if not raw:
            parts.append(Subnet(cidr, address))
            continue
        data = _data(raw, backend_type)
        if data is None:
            return None
        parts.append(Subnet(cidr, address, data))
    return intern(backend_type), tuple(parts)


def _read_most(cidrs: tuple[Network, ...], ipv4: str, vni: str, mac: str) -> tuple[str, tuple[Subnet, ...]] | None:
    address = parse_address(ipv4)
    if address is None or not int(address) or len(cidrs) > 1 or cidrs[0].version == 6:
        return None
    return "vxlan", (Subnet(cidrs[0], address, VxlanData(int(vni), mac)),)


def _data(raw: str, backend_type: str) -> BackendData | None:
    if backend_type == "vxlan" and (vxlan := _VXLAN.fullmatch(raw)) and (vni := int(vxlan[1])) < 2**24:
        return VxlanData(vni, vxlan[2])
    if backend_type == "wireguard" and (peer := _WIREGUARD.fullmatch(raw)) and (port := int(peer[2])) < 2**16:
        return WireguardData(peer[1], port)
    return None
