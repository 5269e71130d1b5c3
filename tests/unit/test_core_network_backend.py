"""The backend of a network configuration, and what is no configuration at all."""

import pytest

from services.core.network import KNOWN_BACKENDS, parse_network
from tests.network_rows import refusal


@pytest.mark.parametrize("key", ["EnableIPv4", "EnableIPv6", "EnableNFTables"])
def test_a_switch_that_is_no_boolean_is_refused(key: str) -> None:
    message = refusal(f'{{"{key}": "true", "Network": "10.5.0.0/16"}}')
    assert message == f'{key} in the network configuration must be true or false, not "true"'


@pytest.mark.parametrize("source", ["", "{", "[]", "null", '{"Network": "10.5.0.0/16"} x'])
def test_what_is_no_json_object_is_refused(source: str) -> None:
    assert refusal(source).startswith("the network configuration ")


def test_a_missing_backend_is_udp_with_a_warning() -> None:
    network = parse_network('{"Network": "10.5.0.0/16"}')
    assert network.backend_type == "udp"
    assert network.backend_options.number("Port", 8285) == 8285
    (warning,) = network.warnings
    assert "Backend is missing" in warning
    assert "udp" in warning


@pytest.mark.parametrize("backend", ["{}", "null", '{"Type": ""}', '{"Type": null}', '{"VNI": 1}'])
def test_a_backend_without_type_is_refused(backend: str) -> None:
    message = refusal(f'{{"Network": "10.5.0.0/16", "Backend": {backend}}}')
    assert message == 'Backend in the network configuration has no Type: write for instance {"Type":"vxlan"}'


@pytest.mark.parametrize("backend", ['"vxlan"', "7", "[]", "true"])
def test_a_backend_that_is_no_object_is_refused(backend: str) -> None:
    message = refusal(f'{{"Network": "10.5.0.0/16", "Backend": {backend}}}')
    assert message.startswith("Backend in the network configuration must be a JSON object, not ")


@pytest.mark.parametrize("name", sorted(KNOWN_BACKENDS))
def test_every_backend_that_flannel_ever_had_is_known_in_any_case(name: str) -> None:
    source = f'{{"Network": "10.5.0.0/16", "Backend": {{"Type": "{name.upper()}"}}}}'
    assert parse_network(source).backend_type == name


def test_an_unknown_backend_is_refused_with_those_there_are() -> None:
    message = refusal('{"Network": "10.5.0.0/16", "Backend": {"Type": "vxlna"}}')
    assert message.startswith("Type 'vxlna' of Backend in the network configuration does not exist: write one of ")
    assert all(name in message for name in KNOWN_BACKENDS)
