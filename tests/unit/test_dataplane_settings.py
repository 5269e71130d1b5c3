"""The flags of flannelette-dataplane, and the flannel flags among them."""

from ipaddress import ip_address
from pathlib import Path

import pytest

from services.core.errors import Misconfigured
from services.dataplane.settings import DataplaneSettings
from services.dataplane.underlay import InterfaceChoice
from services.runtime.settings import parse_settings, usage


def parse(*arguments: str, **environment: str) -> DataplaneSettings:
    return parse_settings(DataplaneSettings, "flannelette-dataplane", arguments, environment)


def test_the_defaults_are_flannels() -> None:
    settings = parse()
    assert settings.subnet_file == Path("/run/flannel/subnet.env")
    assert settings.subnet_lease_renew_margin == 60
    assert not settings.ip_masq
    assert settings.route_protocol == 77
    assert settings.audit_interval == 60.0
    assert settings.interface_choice() == InterfaceChoice()


def test_every_flag_of_flannel_that_belongs_here_exists() -> None:
    text = usage(DataplaneSettings, "flannelette-dataplane")
    flags = "iface iface-regex iface-can-reach public-ip public-ipv6 subnet-file subnet-lease-renew-margin ip-masq"
    for flag in flags.split():
        assert f"--{flag}\n" in text


def test_interfaces_and_patterns_keep_their_order() -> None:
    settings = parse("--iface=eth1", "-iface", "10.99.0.11", "--iface-regex=^en", "--iface-regex=10\\.")
    assert settings.interface_choice() == InterfaceChoice(("eth1", "10.99.0.11"), ("^en", "10\\."))


def test_a_variable_is_one_interface_also_with_a_blank_in_it() -> None:
    assert parse(FLANNELD_IFACE="eth0 eth1").iface == ("eth0 eth1",)
    assert parse("--iface=eth2", FLANNELD_IFACE="eth0").iface == ("eth2",)


def test_both_public_addresses_are_given_ipv4_first() -> None:
    choice = parse("--public-ipv6=fd00::5", "--public-ip=203.0.113.5").interface_choice()
    assert choice.public_addresses == (ip_address("203.0.113.5"), ip_address("fd00::5"))


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--subnet-lease-renew-margin=0", "--subnet-lease-renew-margin is 0: use 1 to 1439 minutes"),
        ("--subnet-lease-renew-margin=1440", "--subnet-lease-renew-margin is 1440: use 1 to 1439 minutes"),
        ("--subnet-lease-renew-margin=1h", "--subnet-lease-renew-margin is '1h': use a whole number"),
        ("--route-protocol=4", "--route-protocol is 4: use 5 to 255 (lower ones are the kernel's)"),
        ("--route-protocol=256", "--route-protocol is 256: use 5 to 255 (lower ones are the kernel's)"),
        ("--audit-interval=0", "--audit-interval is 0: use a number of seconds above 0"),
        ("--audit-interval=-1.5", "--audit-interval is -1.5: use a number of seconds above 0"),
        ("--audit-interval=nan", "--audit-interval is nan: use a number of seconds above 0"),
        ("--iface-regex=eth[", "--iface-regex 'eth[' is no regular expression: "),
        ("--iface-can-reach=example.com", "--iface-can-reach 'example.com' is no IP address"),
        ("--public-ip=10.99.0", "--public-ip '10.99.0' is no IP address"),
        ("--public-ip=fd00::5", "--public-ip 'fd00::5' is no IPv4 address"),
        ("--public-ipv6=10.99.0.11", "--public-ipv6 '10.99.0.11' is no IPv6 address"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_before_anything_starts(argument: str, message: str) -> None:
    with pytest.raises(Misconfigured) as caught:
        parse(argument)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("margin", [1, 1439])
def test_the_ends_of_the_margin_are_allowed(margin: int) -> None:
    assert parse(f"--subnet-lease-renew-margin={margin}").subnet_lease_renew_margin == margin
