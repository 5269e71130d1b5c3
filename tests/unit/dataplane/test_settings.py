"""The flags of the dataplane: flannel's, and what no parser of a single flag can see."""

from ipaddress import ip_address
from typing import Any

import pytest

from flannelette.services.core.errors import Misconfigured
from tests.services.command_lines import parsed


def parse(*arguments: str, **variables: str) -> Any:
    return parsed("dataplane", arguments, variables)


def test_the_defaults_are_flannels() -> None:
    settings = parse()
    assert (str(settings.subnet_file), settings.subnet_lease_renew_margin) == ("/run/flannel/subnet.env", 60)
    assert (settings.ip_masq, settings.route_protocol, settings.audit_interval) == (False, 77, 60.0)


def test_iface_may_be_repeated_and_its_variable_is_one_value() -> None:
    assert parse("-iface", "eth0", "--iface=eth1").interface_choice().interfaces == ("eth0", "eth1")
    assert parse(FLANNELD_IFACE="eth0 eth1").interface_choice().interfaces == ("eth0 eth1",)


def test_public_addresses_come_ipv4_first() -> None:
    choice = parse("--public-ipv6=fd00::1", "--public-ip=192.0.2.1").interface_choice()
    assert choice.public_addresses == (ip_address("192.0.2.1"), ip_address("fd00::1"))


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--public-ip=x", "--public-ip 'x' is not an IP address"),
        ("--public-ip=fd00::1", "--public-ip 'fd00::1' is not an IPv4 address"),
        ("--public-ipv6=192.0.2.1", "--public-ipv6 '192.0.2.1' is not an IPv6 address"),
        ("--iface-can-reach=example.org", "--iface-can-reach 'example.org' is not an IP address"),
        ("--iface-regex=[", "--iface-regex '[' is not an RE2 regular expression"),
        ("--subnet-lease-renew-margin=0", "--subnet-lease-renew-margin is 0: use 1 to 1439 minutes"),
        ("--subnet-lease-renew-margin=1440", "--subnet-lease-renew-margin is 1440: use 1 to 1439 minutes"),
        ("--route-protocol=4", "--route-protocol is 4: use 5 to 255"),
        ("--route-protocol=256", "--route-protocol is 256: use 5 to 255"),
        ("--audit-interval=0", "--audit-interval is 0: use a number of seconds above 0"),
        ("--audit-interval=nan", "--audit-interval is nan: use a number of seconds above 0"),
    ],
)
def test_a_wrong_value_is_named(argument: str, message: str) -> None:
    with pytest.raises(Misconfigured) as caught:
        parse(argument)
    assert str(caught.value).startswith(message)
