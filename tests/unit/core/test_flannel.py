"""flannel's keys and values, byte for byte: its own documents, and what a flanneld v0.20.2 wrote into etcd."""

import json
from ipaddress import ip_address, ip_network
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flannelette.services.core.errors import InvalidInput
from flannelette.services.core.family import IPV6
from flannelette.services.core.leases.flannel_json import format_value, parse_key, parse_lease
from flannelette.services.core.leases.lease import Lease, OpaqueData, Subnet, lease_key
from tests.examples.strategies import leases

VXLAN = '"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":'

REAL = [
    # COMPATIBILITY.md
    ("10.5.52.0-24", f'{{"PublicIP":"192.168.64.3","PublicIPv6":null,{VXLAN}"c6:d2:32:6f:8f:44"}}}}'),
    ("10.5.38.0-24", '{"PublicIP":"10.99.0.11","PublicIPv6":null,"BackendType":"host-gw"}'),
    ("10.5.52.0-24", '{"PublicIP":"1.2.3.4","PublicIPv6":null}'),
    # captured, vxlan
    ("10.5.27.0-24", f'{{"PublicIP":"10.99.0.11","PublicIPv6":null,{VXLAN}"76:92:07:f7:74:5d"}}}}'),
    ("10.5.53.0-24", f'{{"PublicIP":"10.99.0.12","PublicIPv6":null,{VXLAN}"06:0c:56:6d:fb:b3"}}}}'),
    ("10.5.82.0-24", f'{{"PublicIP":"10.98.0.14","PublicIPv6":null,{VXLAN}"32:97:99:5c:b1:6f"}}}}'),
    ("10.5.97.0-24", f'{{"PublicIP":"10.99.0.13","PublicIPv6":null,{VXLAN}"0e:9d:40:24:9e:77"}}}}'),
    # captured, vxlan with DirectRouting
    ("10.5.28.0-24", f'{{"PublicIP":"10.98.0.14","PublicIPv6":null,{VXLAN}"e2:8b:37:f5:a4:26"}}}}'),
    ("10.5.34.0-24", f'{{"PublicIP":"10.99.0.13","PublicIPv6":null,{VXLAN}"d2:f8:89:d5:8c:ea"}}}}'),
    ("10.5.67.0-24", f'{{"PublicIP":"10.99.0.12","PublicIPv6":null,{VXLAN}"56:89:e0:05:74:82"}}}}'),
    ("10.5.88.0-24", f'{{"PublicIP":"10.99.0.11","PublicIPv6":null,{VXLAN}"86:dd:3e:e3:9c:34"}}}}'),
    # captured, host-gw
    ("10.5.41.0-24", '{"PublicIP":"10.99.0.13","PublicIPv6":null,"BackendType":"host-gw"}'),
    ("10.5.78.0-24", '{"PublicIP":"10.99.0.12","PublicIPv6":null,"BackendType":"host-gw"}'),
    ("10.5.99.0-24", '{"PublicIP":"10.98.0.14","PublicIPv6":null,"BackendType":"host-gw"}'),
    # as flanneld writes its LeaseAttrs in dual stack, with wireguard, and with extension
    (
        "10.5.52.0-24&fd00:10:5:34::-64",
        f'{{"PublicIP":"192.0.2.1","PublicIPv6":"2001:db8::1",{VXLAN}"c6:d2:32:6f:8f:44"}}'
        ',"BackendV6Data":{"VNI":1,"VtepMAC":"c6:d2:32:6f:8f:45"}}',
    ),
    (
        "10.5.52.0-24",
        '{"PublicIP":"192.0.2.1","PublicIPv6":null,"BackendType":"wireguard"'
        ',"BackendData":{"PublicKey":"R1hHzQ+f/5D6C4L8w0w0Lsa1fSBZ/pdU2FmGtmzkZ2k=","Port":51820}}',
    ),
    (
        "10.5.52.0-24",
        '{"PublicIP":"192.0.2.1","PublicIPv6":null,"BackendType":"extension","BackendData":"a \\u003c b \\u0026 c"}',
    ),
    # ours: IPv6 alone
    (
        "fd00:10:5:34::-64",
        '{"PublicIP":"0.0.0.0","PublicIPv6":"2001:db8::1","BackendType":"vxlan"'
        ',"BackendV6Data":{"VNI":1,"VtepMAC":"c6:d2:32:6f:8f:45"}}',
    ),
]


@pytest.mark.parametrize(("key", "value"), REAL)
def test_a_real_value_is_written_as_it_was_read(key: str, value: str) -> None:
    lease = parse_lease(key, value)
    assert format_value(lease) == value
    assert lease_key(subnet.cidr for subnet in lease.subnets) == lease.name == key
    assert parse_lease(key, value.encode()) == lease


@given(leases())
def test_any_lease_is_read_back_as_it_was_written(lease: Lease) -> None:
    value = format_value(lease)
    assert parse_lease(lease.name, value) == lease
    assert list(json.loads(value)) == [
        key
        for key in ("PublicIP", "PublicIPv6", "BackendType", "BackendData", "BackendV6Data")
        if key in json.loads(value)
    ]


@given(leases(), st.randoms(use_true_random=False))
def test_order_blanks_and_case_of_a_value_do_not_matter(lease: Lease, random: Random) -> None:
    members = list(json.loads(format_value(lease)).items())
    random.shuffle(members)
    spelled = {random.choice([key, key.upper(), key.lower()]): value for key, value in members}
    read = parse_lease(lease.name, json.dumps(spelled, indent=1))
    assert [(s.cidr, s.public_address) for s in read.subnets] == [(s.cidr, s.public_address) for s in lease.subnets]
    assert read.backend_type == lease.backend_type


def test_a_lease_carries_what_its_value_does_not_say() -> None:
    lease = parse_lease("10.5.52.0-24", '{"PublicIP":"1.2.3.4","PublicIPv6":null}', node="n1", reserved=True)
    assert lease == Lease(
        "10.5.52.0-24",
        "n1",
        (Subnet(ip_network("10.5.52.0/24"), ip_address("1.2.3.4")),),
        reserved=True,
    )


# Keys


@pytest.mark.parametrize(
    ("key", "cidrs"),
    [
        ("10.5.52.0-24", ["10.5.52.0/24"]),
        ("10.5.52.2-31", ["10.5.52.2/31"]),
        ("0.0.0.0-0", ["0.0.0.0/0"]),
        ("10.5.52.0-24&fd00:10:5:34::-64", ["10.5.52.0/24", "fd00:10:5:34::/64"]),
        ("10.5.52.0-24&fd00::2-127", ["10.5.52.0/24", "fd00::2/127"]),
        ("fd00:10:5:34::-64", ["fd00:10:5:34::/64"]),
        ("::-0", ["::/0"]),
    ],
)
def test_a_key_is_its_subnets(key: str, cidrs: list[str]) -> None:
    assert [str(cidr) for cidr in parse_key(key)] == cidrs


@pytest.mark.parametrize(
    "key",
    [
        "",
        "config",
        "10.5.52.0",
        "10.5.52.0-",
        "-24",
        "10.5.52.0/24",
        "10.5.52-24",
        "10.5.52.0.0-24",
        "10.5.52.256-24",
        "x10.5.52.0-24",
        "old/10.5.52.0-24",
        "10.5.52.0-24 ",
        "10.5.52.0-24\n",
        "10.5.52.0-24.bak",
        "\u0661\u0660.5.52.0-24",
        "10.5.52.1-24",  # host bits
        "10.5.52.0-024",
        "010.5.52.0-24",
        "10.5.52.0-33",
        "10.5.52.7-32",  # one address is no subnet to flanneld either
        "10.5.52.0-24&",
        "10.5.52.0-24&fd00::",
        "10.5.52.0-24&fd00::-129",
        "10.5.52.0-24&fd00::1-128",
        "10.5.52.0-24&fd00::1-64",
        "10.5.52.0-24&FD00::-64",
        "10.5.52.0-24&fd00:0::-64",
        "10.5.52.0-24&fd00:0:0:0:0:0:0:0-64",
        "10.5.52.0-24&::10.5.0.0-112",  # dots in IPv6: flannel's pattern has none
        "::10.5.0.0-112",
        "::ffff:10.5.0.0-112",
        "10.5.52.0-24&10.5.53.0-24",
        "fd00::-64&10.5.52.0-24",
        "fd00::-64&fd01::-64",
        "fd00::%eth0-64",
        "10.5.52.0-24&fd00::-64&fd01::-64",
    ],
)
def test_a_foreign_key_is_refused_by_name(key: str) -> None:
    with pytest.raises(InvalidInput, match="is not a lease: ") as refused:
        parse_key(key)
    assert repr(key) in str(refused.value)
    with pytest.raises(InvalidInput):
        parse_lease(key, '{"PublicIP":"1.2.3.4","PublicIPv6":null}')


def test_a_key_that_a_store_has_escaped_is_not_escaped_again() -> None:
    with pytest.raises(InvalidInput, match=r"key '\\xff' is not a lease"):
        parse_key("\\xff")


@given(st.text("0123456789abcdf.:&-/ ", max_size=30))
def test_any_text_is_the_one_key_of_its_subnets_or_foreign(key: str) -> None:
    try:
        cidrs = parse_key(key)
    except InvalidInput:
        return
    assert lease_key(cidrs) == key


# Addresses


@pytest.mark.parametrize(
    "value",
    [
        "{}",
        '{"PublicIP":null}',
        '{"PublicIP":""}',
        '{"PublicIP":"0.0.0.0"}',
        '{"PublicIPv6":"2001:db8::1"}',
    ],
)
def test_an_ipv4_lease_without_an_address_is_refused(value: str) -> None:
    with pytest.raises(InvalidInput, match=r"^the value of 10\.5\.52\.0-24 has no PublicIP$"):
        parse_lease("10.5.52.0-24", value)


@pytest.mark.parametrize("address", ["here", "1.2.3", "1.2.3.04", "1.2.3.4/32", "2001:db8::1", "fe80::1%eth0"])
def test_what_is_no_ipv4_address_is_refused_naming_the_key(address: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_lease("10.5.52.0-24", json.dumps({"PublicIP": address}))
    assert str(refused.value) == f"PublicIP {address!r} of 10.5.52.0-24 is not an IPv4 address"


@pytest.mark.parametrize("address", ["here", "1.2.3.4", "fe80::1%eth0", "::ffff:1.2.3.4", "2001:db8::/64"])
def test_what_is_no_ipv6_address_is_refused_naming_the_key(address: str) -> None:
    key = "10.5.52.0-24&fd00::-64"
    with pytest.raises(InvalidInput) as refused:
        parse_lease(key, json.dumps({"PublicIP": "1.2.3.4", "PublicIPv6": address}))
    assert str(refused.value) == f"PublicIPv6 {address!r} of {key} is not an IPv6 address"


def test_ipv4_written_as_ipv6_is_ipv4_as_in_go() -> None:
    lease = parse_lease("10.5.52.0-24", '{"PublicIP":"::ffff:1.2.3.4"}')
    assert lease.subnets[0].public_address == ip_address("1.2.3.4")
    assert format_value(lease) == '{"PublicIP":"1.2.3.4","PublicIPv6":null}'


@pytest.mark.parametrize("value", ["", ',"PublicIPv6":null', ',"PublicIPv6":"::"'])
def test_a_dual_stack_lease_without_an_ipv6_address_is_reached_by_ipv4_only(value: str) -> None:
    lease = parse_lease("10.5.52.0-24&fd00::-64", f'{{"PublicIP":"1.2.3.4"{value}}}')
    assert [subnet.public_address for subnet in lease.subnets] == [ip_address("1.2.3.4"), None]


def test_ipv6_in_the_value_of_an_ipv4_key_is_not_looked_at() -> None:
    lease = parse_lease(
        "10.5.52.0-24", '{"PublicIP":"1.2.3.4","PublicIPv6":"nonsense","BackendV6Data":{"VtepMAC":7}}'
    )
    assert lease.subnet(IPV6) is None


def test_ipv6_is_written_in_its_shortest_form() -> None:
    lease = parse_lease("10.5.52.0-24&fd00::-64", '{"PublicIP":"1.2.3.4","PublicIPv6":"2001:DB8:0:0:1:0000:0:1"}')
    assert '"PublicIPv6":"2001:db8::1:0:0:1"' in format_value(lease)


@pytest.mark.parametrize("value", ["", "[]", "null", '"x"', "{", '{"PublicIP":1}', '{"BackendType":7}'])
def test_a_value_that_is_no_lease_is_refused_naming_the_key(value: str) -> None:
    with pytest.raises(InvalidInput, match=r"10\.5\.52\.0-24"):
        parse_lease("10.5.52.0-24", value)


# Backend data


def test_text_is_escaped_as_go_escapes_it() -> None:
    lease = Lease(
        "10.5.52.0-24",
        "",
        (Subnet(ip_network("10.5.52.0/24"), ip_address("1.2.3.4"), OpaqueData('"<>&\u2028\u2029é\u007f"')),),
        "extension",
    )
    assert format_value(lease).endswith('"BackendData":"\\u003c\\u003e\\u0026\\u2028\\u2029é\x7f"}')


def test_a_backend_type_that_is_no_text_we_could_store_is_read_all_the_same() -> None:
    lease = parse_lease("10.5.52.0-24", b'{"PublicIP":"1.2.3.4","BackendType":"\xff\\ud800"}')
    assert lease.backend_type == "\ufffd\ufffd"
    format_value(lease).encode()
