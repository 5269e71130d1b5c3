"""Networks, subnets and leases, as hypothesis draws them."""

from ipaddress import ip_address, ip_network

from hypothesis import strategies as st

from flannelette.services.core.family import IPV4, IPV6, Address, Family, Network
from flannelette.services.core.leases.lease import (
    BackendData,
    Lease,
    OpaqueData,
    Subnet,
    VxlanData,
    WireguardData,
    lease_key,
)

families = st.sampled_from([IPV4, IPV6])

macs = st.binary(min_size=6, max_size=6).map(lambda octets: octets.hex(":"))

vxlan_data = st.builds(VxlanData, vni=st.integers(0, 2**24 - 1), mac=macs)

wireguard_data = st.builds(
    WireguardData,
    public_key=st.text("ABCabc019+/=", min_size=1, max_size=44),
    port=st.integers(0, 65535),
)

opaque_data = st.sampled_from(['"10.99.0.11"', '{"a":1.10,"b":[1E2,"\\u0041"]}', "[]", "0", '"a\\u003cb"']).map(
    OpaqueData
)

_DATA: dict[str, st.SearchStrategy[BackendData | None]] = {
    "": st.none(),
    "host-gw": st.none(),
    "vxlan": st.none() | vxlan_data,
    "wireguard": st.none() | wireguard_data,
    "extension": st.none() | opaque_data,
}


@st.composite
def subnets_of(draw: st.DrawFn, family: Family) -> Network:
    """Any subnet that flannel's keys can name."""
    length = draw(st.integers(0, family.bits - 1))
    index = draw(st.integers(0, 2**length - 1))
    start = ip_address((index << (family.bits - length)).to_bytes(family.bits // 8))
    return ip_network(f"{start}/{length}")


@st.composite
def addresses_of(draw: st.DrawFn, family: Family) -> Address:
    """Any address but the unspecified one, and none that is IPv4 in disguise."""
    first = 1 if family is IPV4 else 0x2001 << 112
    value = draw(st.integers(first, 2**family.bits - 1))
    return ip_address(value.to_bytes(family.bits // 8))


@st.composite
def leases(draw: st.DrawFn) -> Lease:
    """Any lease that flannel's format can carry."""
    chosen = draw(st.sampled_from([(IPV4,), (IPV4, IPV6), (IPV6,)]))
    backend_type = draw(st.sampled_from(sorted(_DATA)))
    parts = tuple(
        Subnet(draw(subnets_of(family)), draw(addresses_of(family)), draw(_DATA[backend_type])) for family in chosen
    )
    return Lease(lease_key(part.cidr for part in parts), "", parts, backend_type)
