"""The flags of flannelette-lease, and the flannel flags among them."""

from pathlib import Path
from typing import Any

import pytest

from flannelette.services.core.errors import Misconfigured
from tests.services.command_lines import help_of, parsed


def parse(*arguments: str, **environment: str) -> Any:
    return parsed("lease", arguments, environment)


def test_the_defaults_are_flannels() -> None:
    settings = parse()
    assert settings.store == "embedded"
    assert settings.etcd_endpoints == "http://127.0.0.1:4001,http://127.0.0.1:2379"
    assert settings.etcd_prefix == "/coreos.com/network"
    assert settings.net_config_path == Path("/etc/kube-flannel/net-conf.json")
    assert settings.kube_annotation_prefix == "flannel.alpha.coreos.com"
    assert settings.set_node_network_unavailable
    assert settings.lease_seconds == 86_400


def test_every_flag_of_flannels_subnet_managers_exists() -> None:
    text = help_of("lease")
    flags = (
        "etcd-endpoints etcd-prefix etcd-keyfile etcd-certfile etcd-cafile etcd-username etcd-password "
        "kube-subnet-mgr kube-api-url kubeconfig-file kube-annotation-prefix net-config-path "
        "set-node-network-unavailable v vmodule log_backtrace_at healthz-ip healthz-port version"
    )
    for flag in flags.split():
        assert f"--{flag}\n" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--store=relay"], "--store=relay needs --upstream"),
        (["--upstream=unix:/x", "--store=etcd"], "--upstream is for --store=relay only, and --store is etcd"),
        (["--store=embedded", "--etcd-prefix=/x"], "--etcd-prefix is for --store=etcd only, and --store is embedded"),
        (["--etcd-prefix=/x", "--store-file=/y"], "--store-file is for --store=embedded and --etcd-prefix for"),
        (["--store=zookeeper"], "--store is 'zookeeper': use embedded, etcd, kube or relay"),
        (["--node=a"], "the embedded store is central"),
        (["--store=etcd", "--central", "--node=a"], "--central and --node=a exclude each other"),
        (["--lease-seconds=0"], "--lease-seconds is 0"),
    ],
)
def test_what_cannot_be_is_told_with_the_way_out(arguments: list[str], message: str) -> None:
    with pytest.raises(Misconfigured, match=message):
        parse(*arguments)


@pytest.mark.parametrize(
    ("arguments", "environment", "store"),
    [
        (["--etcd-endpoints=http://127.0.0.1:4001,http://127.0.0.1:2379"], {}, "etcd"),
        ([], {"FLANNELD_ETCD_PREFIX": "/x"}, "etcd"),
        (["--kubeconfig-file=/x"], {}, "kube"),
        (["--upstream=unix:/x"], {"FLANNELD_ETCD_PREFIX": "/x"}, "relay"),
        (["--store=embedded"], {"FLANNELD_ETCD_PREFIX": "/x"}, "embedded"),
        (["--net-config-path=/x"], {}, "embedded"),
        (["--kube-subnet-mgr", "--etcd-endpoints=http://x:2379"], {}, "kube"),
    ],
)
def test_the_store_follows_from_the_flags_that_are_given(
    arguments: list[str], environment: dict[str, str], store: str
) -> None:
    assert parse(*arguments, **environment).store == store


def test_flannels_flag_for_kubernetes_chooses_the_store() -> None:
    assert parse("--kube-subnet-mgr").store == "kube"
    assert parse("--kube-subnet-mgr=false").store == "embedded"
    assert parse(FLANNELD_KUBE_SUBNET_MGR="true").store == "kube"
    assert parse("--kube-subnet-mgr", "--node=a", "--store=etcd").store == "kube"


def test_flannels_variables_are_read_and_the_command_line_wins() -> None:
    settings = parse("-etcd-prefix", "/x", FLANNELD_ETCD_PREFIX="/y", FLANNELD_ETCD_USERNAME="u")
    assert (settings.etcd_prefix, settings.etcd_username) == ("/x", "u")
