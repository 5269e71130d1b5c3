"""Which way leads to the Kubernetes API, and what is told when none does."""

from pathlib import Path

import pytest

from flannelette.services.core.errors import Misconfigured, Unavailable
from flannelette.services.lease.stores.kube.values import (
    Access,
    Busy,
    Expired,
    Gone,
    KubeSettings,
    away,
    find_access,
    refusal,
)

IN_CLUSTER = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}


@pytest.fixture
def account(tmp_path: Path) -> Path:
    """A service account's directory."""
    (tmp_path / "token").write_text("secret")
    (tmp_path / "ca.crt").write_text("certificate")
    return tmp_path


def test_a_pod_uses_its_service_account(account: Path) -> None:
    files = {"ca_file": str(account / "ca.crt"), "token_file": str(account / "token")}
    assert find_access(KubeSettings(), IN_CLUSTER, account) == Access("https://10.96.0.1:443", **files)
    ipv6 = {**IN_CLUSTER, "KUBERNETES_SERVICE_HOST": "fd00::1"}
    assert find_access(KubeSettings(), ipv6, account).url == "https://[fd00::1]:443"


def test_the_flags_win_over_the_pod(account: Path) -> None:
    kubeconfig = account / "config"
    kubeconfig.write_text("{}")
    both = KubeSettings(api_url="https://api.example:6443/", kubeconfig=str(kubeconfig))
    assert find_access(both, IN_CLUSTER, account) == Access("https://api.example:6443", str(kubeconfig))
    assert find_access(KubeSettings(kubeconfig=str(kubeconfig)), {}, account / "none").name == (
        f"the cluster of {kubeconfig}"
    )


def test_a_url_alone_uses_the_pods_token_if_nobody_can_read_it_on_the_way(account: Path) -> None:
    secure = find_access(KubeSettings(api_url="https://api.example"), {}, account)
    assert secure.token_file == str(account / "token")
    assert find_access(KubeSettings(api_url="http://api.example"), {}, account) == Access("http://api.example")
    elsewhere = find_access(KubeSettings(api_url="https://api.example"), {}, account / "none")
    assert elsewhere == Access("https://api.example")


def test_no_way_in_is_told_with_the_flags_to_set(account: Path) -> None:
    with pytest.raises(Misconfigured, match="give --kubeconfig-file or --kube-api-url"):
        find_access(KubeSettings(), {}, account)
    with pytest.raises(Misconfigured, match="automountServiceAccountToken"):
        find_access(KubeSettings(), IN_CLUSTER, account / "none")
    with pytest.raises(Misconfigured, match="cannot be read: No such file"):
        find_access(KubeSettings(kubeconfig=str(account / "none")), IN_CLUSTER, account)
    for url in ("api.example", "ftp://x", "https://"):
        with pytest.raises(Misconfigured, match="write for instance https"):
            KubeSettings(api_url=url)


def test_what_the_server_says_becomes_an_error_that_says_what_to_do() -> None:
    def said(status: int, body: object = b'{"message":"why"}', retry: str = "") -> Exception:
        return refusal("s", "list nodes", status, body, retry)

    assert isinstance(said(410), Expired)
    assert isinstance(said(404), Gone)
    assert "check the token" in str(said(401))
    assert "give our role get, list and watch of nodes and patch of nodes/status (why)" in str(said(403))
    assert (
        str(said(500, b"<html>oops\n</html>"))
        == "the Kubernetes API at s cannot list nodes now: 500 <html>oops </html>"
    )
    for status, retry, seconds in (
        (429, "", 1.0),
        (429, "7", 7.0),
        (503, "3", 3.0),
        (429, "9999", 60.0),
        (429, "x", 1.0),
    ):
        busy = said(status, retry=retry)
        assert isinstance(busy, Busy)
        assert busy.seconds == seconds
    assert type(said(503)) is Unavailable


def test_what_is_in_the_way_is_told_in_a_sentence() -> None:
    for error, sentence in (
        (TimeoutError(), "does not answer in time"),
        (ConnectionRefusedError(111, "Connect call failed"), "refuses connections"),
        (OSError("certificate verify failed: CERTIFICATE_VERIFY_FAILED"), "check the certificate authority"),
        (OSError("something else"), "cannot be used: OSError: something else"),
    ):
        assert sentence in str(away("https://x", error))
