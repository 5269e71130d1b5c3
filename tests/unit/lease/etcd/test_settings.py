"""flannel's --etcd-* settings: what they may say, and what they mean for the connection."""

from pathlib import Path

import pytest

from flannelette.services.core.errors import Misconfigured
from flannelette.services.lease.stores.etcd.rpc.settings import EtcdSettings, read_tls_files


@pytest.mark.parametrize(
    ("endpoint", "name", "address", "secure"),
    [
        ("http://127.0.0.1:4001", "127.0.0.1:4001", "ipv4:127.0.0.1:4001", False),
        ("127.0.0.1:2379", "127.0.0.1:2379", "ipv4:127.0.0.1:2379", False),
        ("etcd", "etcd:2379", "dns:///etcd:2379", False),
        ("https://etcd.example:2379/", "etcd.example:2379", "dns:///etcd.example:2379", True),
        (" http://[fd00::1]:2379", "[fd00::1]:2379", "ipv6:[fd00::1]:2379", False),
    ],
)
def test_an_endpoint_is_one_target(endpoint: str, name: str, address: str, secure: bool) -> None:
    (target,) = EtcdSettings(endpoints=(endpoint,)).targets
    assert (target.name, target.address, target.secure) == (name, address, secure)


@pytest.mark.parametrize(
    "endpoint", ["ftp://a:1", "http://", "http://a:b", "http://a:2379/v2", "http://a:99999", "a b"]
)
def test_an_endpoint_that_is_no_url_is_named(endpoint: str) -> None:
    with pytest.raises(Misconfigured, match="write for instance http"):
        EtcdSettings(endpoints=(endpoint,))


def test_no_endpoint_at_all_is_refused() -> None:
    with pytest.raises(Misconfigured, match="--etcd-endpoints is empty"):
        EtcdSettings(endpoints=("", " "))


@pytest.mark.parametrize(
    ("given", "cleaned"),
    [
        ("/coreos.com/network/", "/coreos.com/network"),
        ("//coreos.com//network", "/coreos.com/network"),
        ("/a/./b/../c", "/a/c"),
        ("coreos.com/network", "coreos.com/network"),
    ],
)
def test_the_prefix_is_cleaned_as_go_does(given: str, cleaned: str) -> None:
    assert EtcdSettings(prefix=given).prefix == cleaned


@pytest.mark.parametrize("prefix", ["", "/", ".", "..", "../x"])
def test_a_prefix_that_names_no_directory_is_refused(prefix: str) -> None:
    with pytest.raises(Misconfigured, match="must name a directory"):
        EtcdSettings(prefix=prefix)


def test_a_cafile_alone_means_tls_and_never_plain_text() -> None:
    assert all(target.secure for target in EtcdSettings(endpoints=("http://a:1", "b:2"), cafile="ca.pem").targets)


def test_certificate_and_key_come_together() -> None:
    with pytest.raises(Misconfigured, match="--etcd-certfile needs --etcd-keyfile too"):
        EtcdSettings(certfile="a.pem")
    with pytest.raises(Misconfigured, match="--etcd-keyfile needs --etcd-certfile too"):
        EtcdSettings(keyfile="a.pem")


def test_a_password_needs_a_user() -> None:
    with pytest.raises(Misconfigured, match="needs --etcd-username"):
        EtcdSettings(password="x")  # noqa: S106 - it is not one


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match=r"--etcd-cafile .*ca.pem cannot be read: No such file"):
        read_tls_files(EtcdSettings(cafile=str(tmp_path / "ca.pem")))


def test_a_cafile_without_a_certificate_is_named(tmp_path: Path) -> None:
    path = tmp_path / "ca.pem"
    path.write_bytes(b"\xff not a certificate")
    with pytest.raises(Misconfigured, match="has no certificate in PEM form"):
        read_tls_files(EtcdSettings(cafile=str(path)))
