"""Networks and addresses as text: what Go's parsers take, and nothing else."""

from ipaddress import ip_address, ip_network

import pytest

from flannelette.services.core.addresses import parse_address, parse_cidr


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10.5.0.7/16", "10.5.0.0/16"),
        ("10.5.0.0/016", "10.5.0.0/16"),
        ("FD00:10:5:0::1/64", "fd00:10:5::/64"),
        ("0.0.0.0/0", "0.0.0.0/0"),
        ("10.5.0.0/32", "10.5.0.0/32"),
        ("010.5.0.0/16", None),
        ("10.5.0/16", None),
        ("fe80::%eth0/64", None),
        ("10.5.0.0", None),
        ("10.5.0.0/", None),
        ("10.5.0.0/33", None),
        ("10.5.0.0/16/16", None),
        ("10.5.0.0/255.255.0.0", None),
        ("", None),
        ("/", None),
    ],
)
def test_a_cidr_is_read_as_go_reads_it(text: str, expected: str | None) -> None:
    assert parse_cidr(text) == (None if expected is None else ip_network(expected))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10.5.0.7", "10.5.0.7"),
        ("FD00::0:1", "fd00::1"),
        ("::ffff:1.2.3.4", "1.2.3.4"),
        ("10.5.0.07", None),
        ("10.5.7", None),
        ("fe80::1%eth0", None),
        ("10.5.0.7/32", None),
        (" 10.5.0.7", None),
        ("", None),
    ],
)
def test_an_address_is_read_as_go_reads_it(text: str, expected: str | None) -> None:
    assert parse_address(text) == (None if expected is None else ip_address(expected))
