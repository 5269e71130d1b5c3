"""Where services without rights on the node have their sockets, for services, probes and the command line alike."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from flannelette.services.ctl.connect import targets as connect
from flannelette.services.ctl.connect.targets import cloud_beside, targets
from flannelette.services.runtime import networks, probe
from flannelette.services.runtime.networks import directory_of, moved_address, network_of
from flannelette.services.runtime.process.settings import ProcessSettings, listen_addresses


@dataclass(frozen=True)
class Host:
    """The default directories of a host, below a temporary one."""

    common: Path

    @property
    def lease(self) -> Path:
        return self.common.with_name("flannelette-lease")


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    found = Host(tmp_path / "flannelette")
    found.common.mkdir()
    for module in (networks, connect, probe):
        monkeypatch.setattr(module, "SOCKET_DIR", found.common)
    return found


def test_services_without_rights_have_directories_of_their_own_where_these_are_there(host: Host) -> None:
    assert directory_of("lease", host.common) == host.common
    host.lease.mkdir()
    assert directory_of("lease", host.common) == host.lease
    assert directory_of("cloud", host.common) == host.common
    assert directory_of("dataplane", host.common) == directory_of("masq", host.common) == host.common


def test_a_directory_that_is_given_is_that_of_all_services(host: Host, tmp_path: Path) -> None:
    host.lease.mkdir()
    there = tmp_path / "lab"
    assert directory_of("lease", there) == there
    assert network_of((), "", there).lease_address == f"unix:{there}/lease.sock"


def test_whoever_calls_the_lease_service_looks_where_it_listens(host: Host) -> None:
    host.lease.mkdir()
    settings = ProcessSettings(socket_dir=host.common)
    here = f"unix:{host.lease}/lease.sock"
    assert listen_addresses(settings, "lease") == [here]
    assert listen_addresses(settings, "masq") == [f"unix:{host.common}/masq.sock"]
    assert network_of((), "", host.common).lease_address == here
    assert network_of(("blue",), "", host.common).lease_address == f"unix:{host.lease}/lease-blue.sock"
    assert probe.address_of("lease", {}) == here
    assert targets(host.common, {})["lease"].address == here


def test_an_address_that_names_the_place_of_an_earlier_release_means_the_service_where_it_is_now(host: Host) -> None:
    host.lease.mkdir()
    former, now = f"unix:{host.common}/lease.sock", f"unix:{host.lease}/lease.sock"
    settings = ProcessSettings(socket_dir=host.common, listen=f"{former},10.0.0.1:7070")
    assert listen_addresses(settings, "lease") == [now, "10.0.0.1:7070"]
    assert network_of((), former, host.common).lease_address == now
    assert network_of((f"blue={former}",), "", host.common).lease_address == now
    assert probe.address_of("lease", {"FLANNELD_LISTEN": former}) == now
    assert targets(host.common, {"lease": former})["lease"].address == now
    for other in ("10.0.0.1:7070", "unix:/elsewhere/lease.sock", f"unix:{host.common}/masq.sock", ""):
        assert moved_address(other) == other


def test_a_lease_service_that_runs_since_before_an_upgrade_is_found_where_it_is(host: Host) -> None:
    host.lease.mkdir()
    (host.common / "lease.sock").touch()
    assert targets(host.common, {})["lease"].path == host.common / "lease.sock"
    (host.lease / "lease.sock").touch()
    assert targets(host.common, {})["lease"].path == host.lease / "lease.sock"


def test_the_process_of_a_clouds_routes_is_found_in_its_own_directory_or_beside_the_others(host: Host) -> None:
    cloud = cloud_beside(targets(host.common, {}))
    assert cloud is not None
    assert cloud.path == host.common / "cloud.sock"
    host.common.with_name("flannelette-cloud").mkdir()
    cloud = cloud_beside(targets(host.common, {}))
    assert cloud is not None
    assert cloud.path == host.common.with_name("flannelette-cloud") / "cloud.sock"
