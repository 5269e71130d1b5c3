"""Certificates that run out soon: two weeks before, or in the last third of a short life."""

import time
from datetime import UTC, datetime, timedelta

import pytest

from flannelette.services.core.errors import Misconfigured
from flannelette.services.ctl.certificates import CertificateRequest, issue, make_authority, read_authority
from flannelette.services.runtime.process.process import Process
from flannelette.services.runtime.rpc.transport import Transport
from flannelette.services.runtime.tls import Credentials, TlsFiles, date, expiry_findings, not_after, pair_findings
from tests.services.certificates import Certificates

DAY = 86_400.0


@pytest.mark.parametrize(
    ("lives", "left", "is_told"), [(365, 15, False), (365, 13, True), (9, 4, False), (9, 2, True), (365, -1, True)]
)
def test_a_certificate_is_told_of_in_time(lab: Certificates, lives: int, left: int, is_told: bool) -> None:
    def made(days: int) -> TlsFiles:
        return lab.make("h1", "h1", addresses=("127.0.0.1",), days=days)

    credentials = Credentials(made(min(lives, 30)))
    own = credentials.material.certificate
    now = time.time()
    object.__setattr__(own, "not_before", now + (left - lives) * DAY)
    object.__setattr__(own, "not_after", now + left * DAY)
    found = [each for each in expiry_findings(credentials, now) if "h1" in each.problem]
    assert [each.check for each in found] == ["certificate"] * is_told
    assert all(each.is_soon and str(credentials.files.certificate) in each.problem for each in found)


def test_the_authority_counts_too_and_every_process_says_so(lab: Certificates) -> None:
    credentials = Credentials(lab.server())
    assert not list(expiry_findings(credentials, time.time()))
    (own, authority) = expiry_findings(credentials, time.time() + 25 * DAY)
    assert str(credentials.files.authorities) in authority.problem
    assert "ran out on" in own.problem
    assert Process("masq", Transport(credentials)).health.findings == []


def test_the_certificate_for_etcd_counts_too_and_what_is_no_certificate_is_told_by_its_user(
    lab: Certificates,
) -> None:
    files, now = lab.client("h1"), time.time()
    assert not list(pair_findings(files.certificate, files.key, now))
    (found,) = pair_findings(files.certificate, files.key, now + 8 * DAY)
    assert str(files.certificate) in found.problem
    assert not list(pair_findings(files.certificate / "none", files.key, now + 8 * DAY))
    assert not list(pair_findings(files.certificate, lab.client("h2").key, now + 8 * DAY))


def test_an_authority_that_has_run_out_is_a_reason_with_its_file_and_date(
    lab: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    credentials = Credentials(lab.make("h1", "h1", addresses=("127.0.0.1",), days=29))
    assert credentials.invalid_reason() == ""
    object.__setattr__(credentials.material.certificate, "not_after", time.time() + 90 * DAY)
    later = time.time() + 31 * DAY
    monkeypatch.setattr(time, "time", lambda: later)
    over = date(credentials.authority_not_after)
    assert credentials.invalid_reason().startswith(
        f"the last authority in {credentials.files.authorities} expired on {over}: "
    )


def test_files_that_cannot_be_used_are_told_until_they_can(lab: Certificates) -> None:
    credentials, now = Credentials(lab.server()), time.time()
    good = credentials.files.key.read_bytes()
    for damaged in (b"", good[:60], lab.server("another").key.read_bytes()):
        credentials.files.key.write_bytes(damaged)
        with pytest.raises(Misconfigured):
            credentials.replace()
        (found,) = expiry_findings(credentials, now)
        assert found.check == "certificate"
        assert found.is_soon
        assert str(credentials.files.key) in found.problem
        assert date(credentials.material.certificate.not_after) in found.evidence
    credentials.files.key.write_bytes(good)
    credentials.replace()
    assert not list(expiry_findings(credentials, now))


@pytest.mark.parametrize("start_days", [0, 365 * 26])
def test_when_a_certificate_runs_out_is_read_from_its_bytes(lab: Certificates, start_days: int) -> None:
    """Also after 2050, when its time is written in another way."""
    authority = make_authority("of a century", datetime.now(UTC), days=36_500)
    signer = read_authority(authority.certificate, authority.key)
    begin = datetime.now(UTC) + timedelta(days=start_days)
    made = issue(signer, CertificateRequest("h1", uris=("flannelette://node/h1/dataplane",)), begin, 10)
    expected = begin + timedelta(days=10)
    assert abs(not_after(made.certificate) - expected.timestamp()) < 2 * DAY
    for damaged in (b"", made.certificate[:80], b"-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n"):
        with pytest.raises(ValueError, match=r"certificate|PEM|base64|header"):
            not_after(damaged)
