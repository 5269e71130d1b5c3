"""Addresses: which are on loopback, which are none, and where a service listens."""

from pathlib import Path

import pytest

from flannelette.services.core.errors import Misconfigured
from flannelette.services.runtime.probe import address_of
from flannelette.services.runtime.process.settings import ProcessSettings, listen_addresses
from flannelette.services.runtime.rpc.transport import PLAIN, Transport, host_and_port


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("127.0.0.1:7070", "127.0.0.1"),
        ("localhost:1", "localhost"),
        ("[::1]:65535", "::1"),
        ("[fe80::1%eth0]:7070", "fe80::1%eth0"),
        ("lease.example.org:7070", "lease.example.org"),
        ("0.0.0.0:7070", "0.0.0.0"),  # noqa: S104 - only looked at
    ],
)
def test_an_address_is_a_host_and_a_port(address: str, host: str) -> None:
    assert host_and_port(address) == (host, int(address.rpartition(":")[2]))


@pytest.mark.parametrize(
    "address",
    [
        "",
        ":7070",
        "7070",
        "127.0.0.1",
        "127.0.0.1:",
        "127.0.0.1:65536",
        "::1:7070",
        "dns:///a:7070",
        "[::1]",
        "a b:1",
    ],
)
def test_what_is_no_address_is_told(address: str) -> None:
    with pytest.raises(
        Misconfigured, match="is not an address: use unix:PATH or HOST:PORT, with brackets around IPv6"
    ):
        PLAIN.server_credentials(address)


@pytest.mark.parametrize(
    ("address", "fine"),
    [
        ("127.0.0.1:7070", True),
        ("127.9.9.9:7070", True),
        ("localhost:7070", True),
        ("[::1]:7070", True),
        ("unix:/run/x.sock", True),
        ("0.0.0.0:7070", False),
        ("[::]:7070", False),
        ("[::ffff:127.0.0.1]:7070", False),
        ("localhost.example.org:7070", False),
    ],
)
def test_without_tls_a_service_stays_on_loopback_unless_it_is_told(address: str, fine: bool) -> None:
    if fine:
        assert PLAIN.server_credentials(address) is None
    else:
        with pytest.raises(Misconfigured, match="is not on loopback: give --tls-cert-file"):
            PLAIN.server_credentials(address)
    assert Transport(dangerously=True).server_credentials(address) is None


def test_a_service_listens_on_its_socket_or_where_it_is_told() -> None:
    assert listen_addresses(ProcessSettings(socket_dir=Path("/a")), "lease") == ["unix:/a/lease.sock"]
    assert listen_addresses(ProcessSettings(listen="unix:/b,[::1]:7"), "lease") == ["unix:/b", "[::1]:7"]


@pytest.mark.parametrize(
    ("environment", "address"),
    [
        ({}, "unix:/run/flannelette/lease.sock"),
        ({"FLANNELD_SOCKET_DIR": "/a"}, "unix:/a/lease.sock"),
        ({"FLANNELD_LISTEN": "127.0.0.1:7070"}, "127.0.0.1:7070"),
        ({"FLANNELD_LISTEN": "0.0.0.0:7070,unix:/b"}, "unix:/b"),
    ],
)
def test_the_probe_asks_where_the_service_listens_on_a_socket_if_it_has_one(
    environment: dict[str, str], address: str
) -> None:
    assert address_of("lease", environment) == address
    assert address_of("unix:/c", environment) == "unix:/c"
