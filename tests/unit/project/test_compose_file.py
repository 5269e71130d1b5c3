"""deploy/compose/docker-compose.yml is what its generator prints."""

import os
import re
import subprocess

import pytest
import yaml

from tests.paths import ROOT

COMPOSE = ROOT / "deploy" / "compose"


def generated(hosts: str, backend: str = "", process: str = "") -> str:
    command = ["sh", str(COMPOSE / "generate.sh"), hosts]
    environment = os.environ | {"BACKEND": backend, "PROCESS": process}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def test_the_file_in_the_repository_is_the_generated_one() -> None:
    assert (COMPOSE / "docker-compose.yml").read_text() == generated("3")


@pytest.mark.parametrize(
    "hosts", ["abc", "0", "-1", "245", "500", "3.5", "", "3 4", " 3", "010", "1e2", "99999999999999999999"]
)
def test_what_is_no_number_of_hosts_is_refused_with_the_reason(hosts: str) -> None:
    """A regression test of hole 20."""
    command = ["sh", str(COMPOSE / "generate.sh"), hosts]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if hosts:
        assert (done.returncode, done.stdout) == (2, "")
        reason = "use 1 to 244, which have the addresses .11 to .254 of the lab's /24"
        assert done.stderr == f"{hosts} is not a number of hosts: {reason}\n"
    else:
        assert done.stdout == generated("3")


def test_every_host_of_the_largest_lab_has_an_address() -> None:
    """A regression test of hole 20."""
    addresses = re.findall(r"ipv4_address: .*\.(\d+)\"", generated("244"))
    assert sorted(map(int, addresses)) == [2, 3, 4, *range(11, 255)]


def test_no_limit_is_asked_for_that_an_engine_may_be_refused() -> None:
    """An engine without CAP_SYS_RESOURCE raises none, and starts nothing; a service raises its own soft one."""
    assert "ulimits" not in generated("3")


def test_every_host_has_its_containers_its_address_and_its_volumes() -> None:
    text = generated("12")
    for number in range(1, 13):
        for service in (f"h{number}", f"h{number}-lease", f"h{number}-dataplane", f"h{number}-masq", f"pod{number}"):
            assert f"\n  {service}:\n" in text
        assert f'ipv4_address: "${{UNDERLAY:-10.99.0}}.{10 + number}"' in text
        assert f"\n  h{number}-run: *volume\n" in text
        assert f"\n    volumes: &h{number}-volumes\n" in text
        assert f"\n      - h{number}-state:/var/lib/flannelette\n" in text
        assert f"\n    volumes: *h{number}-volumes\n" in text  # masq's, as the dataplane's


def test_a_device_is_let_into_the_dataplanes_for_udp_alone() -> None:
    plain, udp = generated("3").splitlines(), generated("3", "udp").splitlines()
    assert [line for line in udp if line not in plain] == ["  devices: [/dev/net/tun]"]
    assert len(udp) == len(plain) + 1
    assert generated("3", "ipip").splitlines() == plain


@pytest.mark.parametrize("backend", ["", "udp"])
def test_one_process_of_a_host_has_the_rights_and_places_of_its_three_services(backend: str) -> None:
    three, one = (yaml.safe_load(generated("3", backend, each))["services"] for each in ("separate", "one"))
    services = [three[f"h2-{name}"] for name in ("lease", "dataplane", "masq")]
    flanneld = one["h2-flanneld"]
    assert three.keys() - one.keys() == {f"h{n}-{name}" for n in (1, 2, 3) for name in ("lease", "dataplane", "masq")}
    assert set(flanneld["cap_add"]) == {each for service in services for each in service.get("cap_add", ())}
    assert flanneld.get("devices") == three["h2-dataplane"].get("devices")
    places = {each for service in services for each in service["volumes"] if not each.startswith("lease-run:")}
    assert set(flanneld["volumes"]) == places
    assert flanneld["environment"] == three["h2-dataplane"]["environment"]


def test_a_lease_service_has_the_sockets_of_no_other() -> None:
    """Nor is its own volume where another has those of the dataplane and masq."""
    volumes, images = dict[str, dict[str, str]](), dict[str, str]()
    for name, service in yaml.safe_load(generated("3"))["services"].items():
        pairs = [each.split(":")[:2] for each in service.get("volumes", ())]
        volumes[name] = {place: volume for volume, place in pairs}
        images[name] = service.get("image", "").replace("${FLANNELETTE_IMAGE:-flannelette}", "flannelette")
    common = {places["/run/flannelette"] for places in volumes.values() if "/run/flannelette" in places}
    for name, places in volumes.items():
        if images[name].startswith("flannelette-lease:"):
            assert not common & {*places.values()}, name
            assert "/run/flannelette-lease" in places, name
        elif images[name].startswith(("flannelette-dataplane:", "flannelette-masq:")):
            assert {"/run/flannelette", "/run/flannelette-lease"} <= places.keys(), name


def test_the_images_of_a_registry_can_be_named_and_without_a_name_they_are_those_that_are_built() -> None:
    files = (ROOT / "deploy/compose/docker-compose.yml", ROOT / "deploy/compose/cloud/docker-compose.yml")
    for service in [each for file in files for each in yaml.safe_load(file.read_text())["services"].values()]:
        assert re.fullmatch(
            r"\$\{FLANNELETTE_IMAGE:-flannelette\}-[a-z]+:\$\{FLANNELETTE_TAG:-latest\}", service["image"]
        )
