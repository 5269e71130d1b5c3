"""A file that the user of a service may not read: which file, which user, and what to do."""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from flannelette.services.core.errors import FlanneletteError, Misconfigured
from flannelette.services.lease.stores.etcd.settings import EtcdSettings, read_tls_files
from flannelette.services.lease.stores.kube.values import KubeSettings, find_access
from flannelette.services.lease.stores.store import read_network_file
from flannelette.services.runtime.os.files import why_unreadable
from flannelette.services.runtime.tls import TlsFiles, read

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="it takes root to be another user")
NOBODY = 65534
HTTPS = ("https://127.0.0.1:1",)
READERS: dict[str, Callable[[Path], object]] = {
    "--etcd-cafile": lambda file: read_tls_files(EtcdSettings(HTTPS, cafile=str(file))),
    "--etcd-certfile": lambda file: read_tls_files(EtcdSettings(HTTPS, certfile=str(file), keyfile=str(file))),
    "--kubeconfig-file": lambda file: find_access(KubeSettings(kubeconfig=str(file))),
    "--tls-cert-file": lambda file: read(TlsFiles(file, file, file)),
    "the network configuration": read_network_file,
}


@contextmanager
def as_nobody() -> Iterator[None]:
    groups = os.getgroups()
    os.setgroups([])
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that everybody may enter, as those of pytest are not."""
    with tempfile.TemporaryDirectory(prefix="fl-") as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


@pytest.mark.parametrize("what", READERS)
def test_the_line_names_the_file_the_user_and_a_command(place: Path, what: str) -> None:
    key = place / "key.pem"
    key.write_text("secret")
    key.chmod(0o600)
    with as_nobody(), pytest.raises(FlanneletteError) as refused:
        READERS[what](key)
    assert str(refused.value) == (
        f"{what} {key} cannot be read by the user nobody, which belongs to root with mode 0600: give it a copy, "
        f"`install -m 0400 -o nobody {key} /etc/flannelette/`, and name that"
    )


def test_a_directory_that_the_user_may_not_enter_is_named(place: Path) -> None:
    pki = place / "pki"
    pki.mkdir(mode=0o700)
    (pki / "ca.pem").touch(0o644)
    with as_nobody(), pytest.raises(Misconfigured) as refused:
        READERS["--etcd-cafile"](pki / "ca.pem")
    assert f"{pki}/ca.pem cannot be read by the user nobody, as {pki} belongs to root with mode 0700: " in str(
        refused.value
    )


def test_a_file_of_ours_is_given_to_the_user() -> None:
    with as_nobody():
        said = why_unreadable(Path("/etc/flannelette/etcd.key"), PermissionError(13, "Permission denied"))
    assert said == "cannot be read by the user nobody: `chown nobody /etc/flannelette/etcd.key`"


def test_a_file_that_is_not_there_is_that_and_no_question_of_rights(tmp_path: Path) -> None:
    assert why_unreadable(tmp_path / "x", FileNotFoundError(2, "No such file")) == "cannot be read: No such file"
