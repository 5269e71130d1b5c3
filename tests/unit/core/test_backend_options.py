"""The options of every backend: what is no value of one is refused, and what is no option at all is told."""

import json
from typing import Any

import pytest

from flannelette.services.core.backend_types import BACKEND_TYPES, Option, declared_options
from flannelette.services.core.network import parse_network
from flannelette.services.dataplane.backends import BACKENDS
from tests.examples.networks import refusal
from tests.paths import ROOT

PAGE = (ROOT / "docs" / "backends.md").read_text()
OPTIONS = [(name, option) for name in sorted(BACKENDS) for option in declared_options(BACKEND_TYPES[name]).values()]
VALID: dict[str, dict[str, Any]] = {"ipsec": {"PSK": "0123456789abcdef" * 6}}
"""What a backend cannot do without."""


def source(name: str, **options: object) -> str:
    backend = {"Type": name, **VALID.get(name, {}), **options}
    return json.dumps({"Network": "10.5.0.0/16", "Backend": backend})


@pytest.mark.parametrize("name", sorted(BACKENDS))
def test_every_backend_that_is_built_has_its_page(name: str) -> None:
    assert f"\n## {name}\n" in PAGE
    section = PAGE.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    assert [o.name for backend, o in OPTIONS if backend == name and f"`{o.name}`" not in section] == []


@pytest.mark.parametrize(("name", "option"), OPTIONS, ids=[f"{name}-{option.name}" for name, option in OPTIONS])
def test_a_value_of_another_type_or_out_of_range_is_refused_with_the_option_and_the_page(
    name: str, option: Option
) -> None:
    for value in wrong_values(option):
        message = refusal(source(name, **{option.name: value}))
        assert message.startswith(option.name)
        assert f"docs/backends.md#{name}" in message
        assert not option.is_secret or str(value) not in message


def wrong_values(option: Option) -> list[Any]:
    if isinstance(option.default, bool):
        return ["true", 1]
    if isinstance(option.default, int):
        return ["1", option.least - 1, option.most + 1, 1.5, True]
    if isinstance(option.default, tuple):
        return [8472, [8472], True]
    return [8472, True, *(["nonsense"] if option.choices else [])]


@pytest.mark.parametrize("name", sorted(BACKENDS))
def test_an_option_that_there_is_not_is_told_with_those_there_are(name: str) -> None:
    (warning,) = parse_network(source(name, Prot=4789)).warnings
    assert warning.startswith(f"Prot of Backend in the network configuration is no option of {name} and has no")
    assert f"docs/backends.md#{name}" in warning
    assert all(o.name in warning for backend, o in OPTIONS if backend == name)


@pytest.mark.parametrize("name", ["vxlan", "host-gw"])
def test_what_flannel_has_on_windows_is_no_mistake(name: str) -> None:
    assert parse_network(source(name, Name="x")).warnings == ()


@pytest.mark.parametrize("name", sorted(n for n in BACKENDS if not BACKEND_TYPES[n].carries_ipv6))
def test_a_backend_of_ipv4_alone_refuses_a_network_of_ipv6_alone(name: str) -> None:
    six = {"EnableIPv4": False, "EnableIPv6": True, "IPv6Network": "fd00:10:5::/48"}
    message = refusal(json.dumps({**six, "Backend": {"Type": name, **VALID.get(name, {})}}))
    assert message.startswith(f"backend {name} carries IPv4 only, and the network configuration enables IPv6 only: ")
    assert "enable IPv4, or use vxlan" in message


@pytest.mark.parametrize("name", sorted(n for n in BACKENDS if BACKENDS[n].link_kinds))
def test_a_kernel_without_the_devices_has_another_way_instead(name: str) -> None:
    for kind in BACKENDS[name].link_kinds:
        other, _, more = kind.instead.partition(" ")
        assert other in BACKENDS
        assert other != name or more


@pytest.mark.parametrize("name", ["ali-vpc", "tencent-vpc"])
def test_a_secret_key_in_the_network_configuration_works_and_is_warned_about_without_it(name: str) -> None:
    assert parse_network(source(name)).warnings == ()
    (warning,) = parse_network(source(name, AccessKeyID="LTAI1", AccessKeySecret="seeded-key")).warnings
    assert "every node reads it: give the instance of flannelette-cloud a role" in warning
    assert "seeded-key" not in warning
