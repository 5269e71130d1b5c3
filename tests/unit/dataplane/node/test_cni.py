"""The CNI configuration: not before everything else is ready, whole, and again when it is gone."""

from pathlib import Path

import pytest

from flannelette.services.core.errors import Misconfigured
from flannelette.services.dataplane.node.cni import CniInstaller, read_configuration
from flannelette.services.runtime.telemetry.health import Health

TEXT = '{"name": "cbr0", "plugins": [{"type": "flannel"}]}\n'


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "net.d" / "10-flannel.conflist"


@pytest.fixture
def health() -> Health:
    made = Health()
    made.set("kernel", "the first complete snapshot of leases is not programmed yet")
    return made


@pytest.fixture
def installer(tmp_path: Path, target: Path, health: Health) -> CniInstaller:
    source = tmp_path / "cni-conf.json"
    source.write_text(TEXT)
    configuration = read_configuration(source, str(target))
    assert configuration is not None
    return CniInstaller(configuration, health)


def test_it_is_installed_once_nothing_else_is_in_the_way(
    installer: CniInstaller, target: Path, health: Health
) -> None:
    installer.look()
    assert not target.parent.exists()
    health.set("kernel")
    installer.look()
    assert target.read_text() == TEXT
    assert target.stat().st_mode & 0o777 == 0o600
    assert health.ready
    assert list(target.parent.iterdir()) == [target]


def test_it_is_put_back_when_it_is_gone_and_left_alone_when_it_was_changed(
    installer: CniInstaller, target: Path, health: Health
) -> None:
    health.set("kernel")
    installer.look()
    meshed = TEXT.replace("]", ', {"type": "istio-cni"}]')
    target.write_text(meshed)
    installer.look()
    assert target.read_text() == meshed
    target.unlink()
    installer.look()
    assert target.read_text() == TEXT


def test_one_that_is_there_before_is_kept_if_it_is_the_same_and_replaced_if_not(
    installer: CniInstaller, target: Path, health: Health
) -> None:
    target.parent.mkdir()
    target.write_text(TEXT)
    before = target.stat()
    health.set("kernel")
    installer.look()
    assert target.stat().st_ino == before.st_ino
    target.write_text("{}")
    CniInstaller(installer._configuration, health).look()
    assert target.read_text() == TEXT


def test_it_stays_when_the_service_is_not_ready_any_more(
    installer: CniInstaller, target: Path, health: Health
) -> None:
    health.set("kernel")
    installer.look()
    health.set("store", "etcd is away")
    installer.look()
    assert target.exists()
    target.unlink()
    installer.look()
    assert not target.exists()


def test_a_place_that_cannot_be_written_is_a_reason_until_it_can(
    installer: CniInstaller, target: Path, health: Health
) -> None:
    target.parent.write_text("a file where the directory should be")
    health.set("kernel")
    installer.look()
    assert health.reasons == [f"cannot install the CNI configuration {target}: File exists; no new pod starts here"]
    target.parent.unlink()
    installer.look()
    assert health.ready
    assert target.read_text() == TEXT


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "there is no CNI configuration"),
        ("{", "is not valid JSON"),
        ("[]", "lacks a name or its plugins"),
        ('{"name": "cbr0"}', "lacks a name or its plugins"),
        ('{"plugins": []}', "lacks a name or its plugins"),
    ],
)
def test_what_is_no_configuration_ends_the_service(tmp_path: Path, text: str | None, message: str) -> None:
    source = tmp_path / "cni-conf.json"
    if text is not None:
        source.write_text(text)
    with pytest.raises(Misconfigured, match=message):
        read_configuration(source, str(tmp_path / "10-flannel.conflist"))


def test_without_a_place_nothing_is_read() -> None:
    assert read_configuration(Path("/nonexistent"), "") is None
