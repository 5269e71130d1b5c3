"""The backend of a network configuration, and what is no configuration at all."""

import json
import re

import pytest

from flannelette.services.core.backend_types import BACKEND_TYPES, UdpOptions
from flannelette.services.core.network import parse_network
from tests.examples.networks import refusal


@pytest.mark.parametrize("text", ['"10.0.0.0/8"', '["10.0.0.0/8", 4]', '["10.0.0.0"]', '["10.0.0.0/33"]'])
def test_what_is_no_list_of_networks_is_refused_with_an_example(text: str) -> None:
    message = refusal(f'{{"Network":"10.5.0.0/16","NoMasquerade":{text},"Backend":{{"Type":"vxlan"}}}}')
    assert re.match(r'NoMasquerade .*(array of strings|\["10.0.0.0/8"\])', message), message


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
    assert network.options == UdpOptions(port=8285)
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


KEY = "correct-horse-battery-staple"


@pytest.mark.parametrize("name", ["PSK", "psk", "AccessKeySecret"])
@pytest.mark.parametrize(
    "source",
    [
        '{"Network":"10.5.0.0/16","Backend":[{"Type":"ipsec",NAME:KEY}]}',
        '{"Network":"10.5.0.0/16","Backend":[NAME,KEY]}',
        '{"Network":{NAME:KEY},"Backend":{"Type":"vxlan"}}',
        '{"Network":"10.5.0.0/16","SubnetLen":{NAME:KEY},"Backend":{"Type":"vxlan"}}',
        '{"Network":"10.5.0.0/16","Backend":{"Type":{NAME:KEY}}}',
        '{"Network":"10.5.0.0/16","Backend":{"Type":"ipsec",NAME:[KEY]}}',
        '{"Network":"10.5.0.0/16","Backend":{"Type":"ipsec",NAME:{"is":KEY}}}',
        '{"Network":"10.5.0.0/16","Backend":{"Type":"ipsec",NAME:KEY}',
        '[{"Type":"ipsec",NAME:KEY}]',
    ],
)
def test_a_configuration_that_is_wrong_shows_no_key_in_what_is_said_of_it(source: str, name: str) -> None:
    told = source.replace("NAME", f'"{name}"').replace("KEY", f'"{KEY}"')
    assert KEY not in refusal(told)
    assert KEY not in refusal(json.dumps(told)), "as a string, which a template has quoted once too often"


@pytest.mark.parametrize("name", sorted(BACKEND_TYPES))
def test_every_backend_that_flannel_ever_had_is_known_in_any_case(name: str) -> None:
    required = f', "PSK": "{"x" * 96}"' if name == "ipsec" else ""
    source = f'{{"Network": "10.5.0.0/16", "Backend": {{"Type": "{name.upper()}"{required}}}}}'
    assert parse_network(source).backend_type == name


def test_an_unknown_backend_is_refused_with_those_there_are() -> None:
    message = refusal('{"Network": "10.5.0.0/16", "Backend": {"Type": "vxlna"}}')
    assert message.startswith("Type 'vxlna' of Backend in the network configuration does not exist: write one of ")
    assert all(name in message for name in BACKEND_TYPES)


DUAL = '"Network": "10.5.0.0/16", "IPv6Network": "fd00:10:5::/48", "EnableIPv6": true'


@pytest.mark.parametrize("kind", ["ipip", "alloc"])
def test_a_backend_of_ipv4_alone_leaves_ipv6_out_and_says_so(kind: str) -> None:
    found = parse_network(f'{{{DUAL}, "Backend": {{"Type": "{kind}"}}}}')
    assert [str(n.cidr) for n in found.families] == ["10.5.0.0/16"]
    assert found.warnings == (
        f"backend {kind} carries IPv4 only: the network's IPv6 is left out; use vxlan to have both",
    )
    message = refusal(f'{{{DUAL}, "EnableIPv4": false, "Backend": {{"Type": "{kind}"}}}}')
    assert message.startswith(f"backend {kind} carries IPv4 only, and the network configuration enables IPv6 only: ")


def test_an_option_of_ipip_is_checked_before_any_node_sees_it() -> None:
    message = refusal('{"Network": "10.5.0.0/16", "Backend": {"Type": "ipip", "DirectRouting": "yes"}}')
    assert message == (
        'DirectRouting in Backend in the network configuration must be true or false, not "yes" '
        "(docs/backends.md#ipip has the options of ipip)"
    )


def test_the_mode_of_udp_is_checked_before_any_node_sees_it() -> None:
    message = refusal('{"Network": "10.5.0.0/16", "Backend": {"Type": "udp", "Mode": "fou"}}')
    expected = "Mode 'fou' of Backend in the network configuration does not exist: write auto, kernel or user"
    assert message == f"{expected} (docs/backends.md#udp has the options of udp)"


@pytest.mark.parametrize(
    ("backend", "told", "device"),
    [
        ('{"Type": "vxlan", "VNI": 7}', "UDP port 8472", "flannel.7"),
        ('{"Type": "vxlan", "Port": 4789, "DirectRouting": true}', "UDP port 4789", ""),
        ('{"Type": "ipip"}', "IP protocol 4", "flannel.ipip"),
        ('{"Type": "ipip", "DirectRouting": true}', "IP protocol 4", ""),
        ('{"Type": "udp"}', "UDP port 8285", ""),
        ('{"Type": "udp", "Mode": "user", "Port": 9000}', "UDP port 9000", "flannel0"),
        ('{"Type": "udp", "Mode": "kernel"}', "UDP port 8285", "flannel.fou"),
    ],
)
def test_a_tunnel_is_known_from_outside(backend: str, told: str, device: str) -> None:
    network = parse_network(f'{{"Network": "10.5.0.0/16", "Backend": {backend}}}')
    tunnel = network.tunnel()
    assert tunnel is not None
    assert (tunnel.text, tunnel.devices.get(4, "")) == (told, device)


@pytest.mark.parametrize("kind", ["host-gw", "alloc"])
def test_a_backend_without_a_tunnel_has_none(kind: str) -> None:
    network = parse_network(f'{{"Network": "10.5.0.0/16", "Backend": {{"Type": "{kind}"}}}}')
    assert network.tunnel() is None


@pytest.mark.parametrize(("mode", "versions"), [("ipv4", (4,)), ("ipv4", (4, 6)), ("ipv6", (6,)), ("ipv6", (4, 6))])
def test_a_wireguard_that_sends_over_a_family_of_the_nodes_is_right(mode: str, versions: tuple[int, ...]) -> None:
    assert parse_network(wireguard(mode, versions)).families


@pytest.mark.parametrize(("mode", "version", "enabled"), [("ipv4", 6, "IPv6"), ("ipv6", 4, "IPv4")])
def test_a_wireguard_that_sends_over_another_family_is_refused(mode: str, version: int, enabled: str) -> None:
    message = refusal(wireguard(mode, (version,)))
    assert f"Mode {mode} of Backend" in message
    assert f"the network has {enabled} only: write Mode separate" in message


def wireguard(mode: str, versions: tuple[int, ...]) -> str:
    networks = {4: ("Network", "10.5.0.0/16"), 6: ("IPv6Network", "fd00:10:5::/48")}
    enabled = {f"EnableIPv{version}": version in versions for version in (4, 6)}
    given = dict(networks[version] for version in versions)
    return json.dumps({**enabled, **given, "Backend": {"Type": "wireguard", "Mode": mode}})
