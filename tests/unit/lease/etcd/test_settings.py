"""flannel's --etcd-* flags: what they may say, and what they mean for the connection."""

from pathlib import Path

import pytest

from flannelette.services.core.errors import Misconfigured
from tests.services.command_lines import etcd_of, tls_files_of


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
    (target,) = etcd_of(f"--etcd-endpoints={endpoint}").targets
    assert (target.name, target.address, target.secure) == (name, address, secure)


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
    assert etcd_of(f"--etcd-prefix={given}").prefix == cleaned


def test_a_cafile_alone_means_tls_and_never_plain_text() -> None:
    settings = etcd_of("--etcd-endpoints=http://a:1,b:2", "--etcd-cafile=ca.pem")
    assert [target.secure for target in settings.targets] == [True, True]


URL = "write for instance http"
DIRECTORY = "must name a directory"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        *(([f"--etcd-endpoints={each}"], URL) for each in ("ftp://a:1", "http://", "http://a:b", "a b")),
        *(([f"--etcd-endpoints={each}"], URL) for each in ("http://a:2379/v2", "http://a:99999")),
        (["--etcd-endpoints=, "], "--etcd-endpoints is empty"),
        *(([f"--etcd-prefix={prefix}"], DIRECTORY) for prefix in ("", "/", ".", "..", "../x")),
        (["--etcd-certfile=a.pem"], "--etcd-certfile needs --etcd-keyfile too"),
        (["--etcd-keyfile=a.pem"], "--etcd-keyfile needs --etcd-certfile too"),
        (["--etcd-password=x"], "needs --etcd-username"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_what_to_write(flags: list[str], said: str) -> None:
    with pytest.raises(Misconfigured, match=said):
        etcd_of(*flags)


def test_a_file_that_cannot_be_read_or_has_no_certificate_is_named(tmp_path: Path) -> None:
    path = tmp_path / "ca.pem"
    with pytest.raises(Misconfigured, match=r"--etcd-cafile .*ca.pem cannot be read: No such file"):
        tls_files_of(f"--etcd-cafile={path}")
    path.write_bytes(b"\xff not a certificate")
    with pytest.raises(Misconfigured, match="has no certificate in PEM form"):
        tls_files_of(f"--etcd-cafile={path}")
