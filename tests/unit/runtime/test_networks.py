"""Networks with names: what each has of its own, and what two of them cannot both have."""

from pathlib import Path
from typing import Any

import pytest

from flannelette.services.core.errors import InvalidInput, Misconfigured
from flannelette.services.runtime.os.names import DEVICE, RANGE, UDP_PORT, Claims, NameClaim
from flannelette.services.runtime.process.settings import listen_addresses
from tests.services.command_lines import ON_A_NODE, parsed


def dataplane(*flags: str) -> Any:
    return parsed("dataplane", flags)


def test_one_network_without_a_name_has_the_files_and_marks_that_it_always_had() -> None:
    for settings in (dataplane(), dataplane("--network=default")):
        own = settings.in_network()
        assert (own.subnet_file, own.route_protocol) == (Path("/run/flannel/subnet.env"), 77)
        assert own.lease_address == "unix:/run/flannelette/lease.sock"
        assert listen_addresses(settings, "dataplane") == ["unix:/run/flannelette/dataplane.sock"]
    assert parsed("masq").rules.nft_table == "flannelette"


def test_a_network_with_a_name_has_its_own() -> None:
    flags = ("--network=red=unix:/tmp/red.sock", "--cni-install-path=/etc/cni/x.conflist")
    blue, red = (dataplane(*each).in_network() for each in (("--network=blue",), flags))
    assert (blue.subnet_file, blue.lease_address) == (
        Path("/run/flannel/subnet-blue.env"),
        "unix:/run/flannelette/lease-blue.sock",
    )
    assert (red.cni_install_path, red.lease_address) == ("/etc/cni/x-red.conflist", "unix:/tmp/red.sock")
    assert blue.route_protocol != red.route_protocol
    assert {blue.route_protocol, red.route_protocol} <= set(range(100, 180))
    assert str(red.node_files({}).wireguard_key) == "/run/flannel/wgkey-red"
    assert listen_addresses(blue, "dataplane") == ["unix:/run/flannelette/dataplane-blue.sock"]
    masq = parsed("masq", ["--network=blue"])
    assert masq.rules.nft_table == "flannelette-blue"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--network=Blue",), "--network is 'Blue': a network's name has 1 to 15 of a to z, 0 to 9 and -"),
        (
            ("--network=a", "--network=b=unix:/x"),
            "--network names a and b: a process serves one network, so start one for each, with its own --network",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(flags: tuple[str, ...], said: str) -> None:
    with pytest.raises(Misconfigured, match=said.replace("[", r"\[")):
        dataplane(*flags)


@pytest.mark.parametrize("service", ON_A_NODE)
def test_each_service_has_one_network(service: str) -> None:
    """A lease service served the last one, and nobody the others."""
    assert parsed(service, ["--network=blue"]).served_network == "blue"
    assert parsed(service).served_network == ""
    with pytest.raises(Misconfigured, match="--network names blue and red: a process serves one network"):
        parsed(service, ["--network=blue", "--network=red"])


@pytest.mark.parametrize(
    ("one", "other", "excludes"),
    [
        (NameClaim(RANGE, "10.5.0.0/16"), NameClaim(RANGE, "10.5.128.0/17"), True),
        (NameClaim(RANGE, "10.5.0.0/16"), NameClaim(RANGE, "10.6.0.0/16"), False),
        (NameClaim(RANGE, "10.5.0.0/16"), NameClaim(RANGE, "fd00::/48"), False),
        (NameClaim(DEVICE, "flannel.1 (VNI 1)"), NameClaim(DEVICE, "flannel.1 (VNI 7)"), True),
        (NameClaim(DEVICE, "flannel.1 (VNI 1)"), NameClaim(DEVICE, "flannel.2 (VNI 2)"), False),
        (NameClaim(UDP_PORT, "8472 vxlan"), NameClaim(UDP_PORT, "8472 vxlan"), False),
        (NameClaim(UDP_PORT, "8472 vxlan"), NameClaim(UDP_PORT, "8472 wireguard"), True),
        (NameClaim("route protocol", "77"), NameClaim("route protocol", "77"), True),
    ],
)
def test_two_networks_cannot_have_these(one: NameClaim, other: NameClaim, excludes: bool) -> None:
    service = f"test-{abs(hash((one, other)))}"
    with Claims(service, "blue") as blue, Claims(service, "red") as red:
        blue.take([one])
        blue.take([one])
        if not excludes:
            red.take([other])
            return
        said = rf"{other.kind} .* of network red and {one.kind} .* of network blue"
        with pytest.raises(InvalidInput, match=said):
            red.take([other])
        with pytest.raises(InvalidInput, match=said):
            red.check([other])
        blue.take([])
        if one.kind == DEVICE:  # it may still be there
            with pytest.raises(InvalidInput, match=said):
                red.take([other])
            blue.keep_devices([])
        red.take([other])
