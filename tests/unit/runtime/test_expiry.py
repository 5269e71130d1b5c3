"""Certificates that run out soon: two weeks before, or in the last third of a short life."""

import time

import pytest

from services.ctl.certs.issue import Wanted
from services.runtime.process.process import Process
from services.runtime.rpc.transport import Transport
from services.runtime.tls.credentials import Credentials, expiry_findings, pair_findings
from services.runtime.tls.files import TlsFiles
from tests.services.certificates import Certificates

DAY = 86_400.0


@pytest.mark.parametrize(
    ("lives", "left", "is_told"), [(365, 15, False), (365, 13, True), (9, 4, False), (9, 2, True), (365, -1, True)]
)
def test_a_certificate_is_told_of_in_time(lab: Certificates, lives: int, left: int, is_told: bool) -> None:
    def made(days: int) -> TlsFiles:
        return lab.make("h1", Wanted("h1", addresses=("127.0.0.1",)), days=days)

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
