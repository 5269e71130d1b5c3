"""Which of flanneld's flags goes to which service."""

from typing import Any

import pytest

from flannelette.services.core.errors import Misconfigured
from flannelette.services.runtime.process.settings import HelpRequested
from tests.services.command_lines import children_of


def started(*arguments: str, **environment: str) -> dict[str, Any]:
    return {child.name: child for child in children_of(arguments, environment)[0]}


def test_each_service_gets_the_flags_that_it_knows() -> None:
    found = started("-etcd-prefix=/net", "--iface", "eth1", "--ip-masq", "-iptables-resync", "7", "-v=2")
    assert found["lease"].arguments == ["--store=etcd", "--etcd-prefix=/net", "--v=2", "--healthz-port=0"]
    assert found["dataplane"].arguments == ["--iface=eth1", "--ip-masq=true", "--v=2", "--healthz-port=0"]
    assert found["masq"].arguments == ["--ip-masq=true", "--iptables-resync=7", "--v=2", "--healthz-port=0"]


@pytest.mark.parametrize(
    ("arguments", "environment", "store"),
    [
        ([], {}, "etcd"),
        (["--kube-subnet-mgr"], {}, "kube"),
        (["--store=embedded"], {}, "embedded"),
        ([], {"FLANNELD_STORE": "embedded"}, "embedded"),
        ([], {"FLANNELD_KUBE_SUBNET_MGR": "true"}, "kube"),
        (["--kube-subnet-mgr=false"], {}, "etcd"),
    ],
)
def test_leases_are_where_flanneld_has_them(arguments: list[str], environment: dict[str, str], store: str) -> None:
    lease = started(*arguments, **environment)["lease"]
    assert lease.settings.store == store


def test_each_network_has_three_services_and_its_prefix() -> None:
    for words, environment in (
        (["--network=blue=/b", "--network", "red=/r"], {}),
        ([], {"FLANNELD_NETWORK": "blue=/b,red=/r"}),
    ):
        found = started("--etcd-prefix=/x", *words, **environment)
        names = ("lease", "dataplane", "masq")
        assert list(found) == [f"{name}-{network}" for network in ("blue", "red") for name in names]
        assert found["lease-red"].arguments[1:-1] == ["--etcd-prefix=/x", "--network=red", "--etcd-prefix=/r"]
        for name in ("dataplane-red", "masq-red"):
            assert found[name].arguments == ["--network=red", "--healthz-port=0"]
        assert found["lease-red"].settings.etcd_prefix == "/r"
    assert list(started("--network=blue", "--etcd-prefix=/b")) == ["lease-blue", "dataplane-blue", "masq-blue"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--network=blue", "--network=red=/r"], "--network blue is one of several: write --network blue=PREFIX"),
        (["--network=a=/x", "--network=a=/y"], "names a network twice"),
        (["--network=a=/x", "--network=b=/y", "--store=embedded"], "--etcd-prefix is for --store=etcd only"),
        (["--network=a=/x", "--network=b=/y", "--lease-address=unix:/l"], "--lease-address is that of one network"),
        (["--network=a=/x", "--network=b=/y", "--route-protocol=80"], "--route-protocol is that of one network"),
        (["--network=A=/x"], "--network is 'A': a network's name has"),
    ],
)
def test_networks_that_cannot_be_meant_are_refused(words: list[str], said: str) -> None:
    with pytest.raises(Misconfigured, match=said):
        started(*words)


def test_one_port_for_probes_is_not_taken_three_times() -> None:
    found = started("--healthz-port=8471")
    assert all(child.arguments[-1] == "--healthz-port=0" for child in found.values())
    assert found["lease"].settings.healthz_port == 8471


def test_what_no_service_knows_is_refused_before_anything_starts() -> None:
    with pytest.raises(Misconfigured, match="there is no flag --remote"):
        started("--remote=1.2.3.4")
    with pytest.raises(Misconfigured, match="--iptables-resync is 0"):
        started("--iptables-resync=0")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--ip-masq true", "'true' is no flag and has no effect, as with flanneld; write --ip-masq=true"),
        (
            "--ip-masq false -iface=eth1 --nonsense",
            "'false' is no flag and has no effect, as with flanneld, and so have the words after it: -iface=eth1 "
            "--nonsense; write --ip-masq=false",
        ),
        (
            "--ip-masq start",
            "'start' is no flag and has no effect, as with flanneld; remove it, or write --name=value",
        ),
        ("--ip-masq - --iface=x", "'-' is no flag and has no effect, as with flanneld, and so have the"),
        ("--ip-masq -- --iface=x", "'--iface=x' is no flag and has no effect, as with flanneld; remove it"),
        ("--ip-masq --", ""),
        ("--ip-masq", ""),
    ],
)
def test_flags_end_at_the_first_word_that_is_none_as_with_flanneld_and_a_warning_says_so(
    words: str, said: str
) -> None:
    found, warning = children_of(words.split())
    dataplane = found[1].settings
    assert (dataplane.iface, dataplane.ip_masq) == ((), True)
    assert warning.startswith(said)
    assert bool(warning) == bool(said)


def test_help_names_the_flags_of_all_three_each_once_with_the_default_that_is_in_force() -> None:
    with pytest.raises(HelpRequested) as help_text:
        started("--help")
    text = str(help_text.value)
    for flag in ("--etcd-endpoints", "--iface-can-reach", "--iptables-forward-rules", "--ip-masq", "--node"):
        assert text.count(f"  {flag}\n") == 1
    assert text.startswith("Usage: flannelette flanneld [flags]")
    assert "(default etcd)" in text
    assert "(default embedded)" not in text
