"""flanneld's command line: a real flanneld and `flannelette flanneld` understand the same words."""

import os
import re
import selectors
import subprocess
import time
from collections.abc import Mapping
from typing import Final

import pytest

from flannelette.services.core.errors import Misconfigured
from flannelette.services.runtime.process.settings import HelpRequested
from tests.hosts.namespaces import NetworkNamespace
from tests.patience import PATIENCE
from tests.services.command_lines import children_of
from tests.tools import find_tool

NOBODY: Final = "--etcd-endpoints=http://127.0.0.1:1"
"""Where a flanneld that has understood its flags waits for ever."""

ROWS: Final[tuple[tuple[str, Mapping[str, str]], ...]] = (
    ("", {}),
    ("--ip-masq", {}),
    ("-ip-masq", {}),
    ("--ip-masq=true -etcd-prefix=/a", {}),
    ("--ip-masq=0", {}),
    ("--ip-masq=F --iptables-forward-rules=f", {}),
    ("--ip-masq true --etcd-prefix=/a", {}),
    ("--ip-masq false", {}),
    ("start --ip-masq", {}),
    ("--ip-masq - --etcd-prefix=/a", {}),
    ("--ip-masq -- --etcd-prefix=/a", {}),
    ("--iface eth1 --iface=eth2 -iface-regex ^e --ip-masq", {}),
    ("--iface --ip-masq", {}),
    ("--iface= --etcd-prefix=/a=b", {}),
    ("--subnet-lease-renew-margin=0x10 --iptables-resync 020", {}),
    ("--healthz-port=0b10 --subnet-lease-renew-margin 1_0", {}),
    ("--etcd-prefix=/a -etcd-prefix /b", {}),
    ("--ip-masq", {"FLANNELD_IP_MASQ": "false", "FLANNELD_ETCD_PREFIX": "/v"}),
    ("--etcd-prefix=/a", {"FLANNELD_IFACE": "eth1,eth2", "FLANNELD_IPTABLES_FORWARD_RULES": "0"}),
    ("--etcd-prefix /a", {"FLANNELD_IP_MASQ": "", "FLANNELD_VERSION": "true", "FLANNELD_IFCE": "x"}),
)
REFUSED: Final = ("--nonsense", "--iface", "--ip-masq=yes", "--iptables-resync=x", "---ip-masq", "-=x", "--=x", "-h")
"""flanneld prints its usage for these, and ends."""

_FIELDS: Final = (
    "etcdPrefix",
    "iface",
    "ifaceRegex",
    "ipMasq",
    "subnetLeaseRenewMargin",
    "healthzPort",
    "iptablesResyncSeconds",
    "iptablesForwardRules",
)


def understood_by_flanneld(netns: NetworkNamespace, words: list[str], variables: Mapping[str, str]) -> dict[str, str]:
    """What a real flanneld logs of its flags; empty: it has ended without."""
    command = netns.command(find_tool("flanneld"), NOBODY, *words)
    environment = {name: text for name, text in os.environ.items() if not name.startswith("FLANNELD_")}
    with subprocess.Popen(command, stderr=subprocess.PIPE, env={**environment, **variables}) as process:
        assert process.stderr is not None
        try:
            said, deadline = "", time.monotonic() + PATIENCE
            with selectors.DefaultSelector() as selector:
                selector.register(process.stderr, selectors.EVENT_READ)
                while not (line := re.search(r"CLI flags config: {(.*)}\n", said)):
                    assert selector.select(deadline - time.monotonic()), said
                    if not (more := os.read(process.stderr.fileno(), 65536)):
                        return {}
                    said += more.decode()
        finally:
            process.kill()
    return dict(re.findall(r"(\w+):(\[.*?\]|\S*)", line[1]))


def understood_by_ours(words: list[str], variables: Mapping[str, str]) -> dict[str, str]:
    """The same by our services' settings; empty: refused, or an answer instead of a start."""
    try:
        found, _ = children_of([NOBODY, *words], variables)
    except (Misconfigured, HelpRequested):
        return {}
    lease, dataplane, masq = (child.settings for child in found)
    if lease.version:
        return {}
    values = (
        lease.etcd_prefix,
        f"[{' '.join(dataplane.iface)}]",
        f"[{' '.join(dataplane.iface_regex)}]",
        dataplane.ip_masq,
        dataplane.subnet_lease_renew_margin,
        masq.healthz_port,
        masq.iptables_resync,
        masq.iptables_forward_rules,
    )
    return {
        name: str(each).lower() if isinstance(each, bool) else str(each)
        for name, each in zip(_FIELDS, values, strict=True)
    }


@pytest.mark.parametrize(("line", "variables"), ROWS)
def test_a_command_line_of_flanneld_means_the_same(
    netns: NetworkNamespace, line: str, variables: Mapping[str, str]
) -> None:
    flanneld = understood_by_flanneld(netns, line.split(), variables)
    assert understood_by_ours(line.split(), variables) == {name: flanneld[name] for name in _FIELDS}


@pytest.mark.parametrize("line", REFUSED)
def test_a_command_line_with_which_no_flanneld_starts_starts_nothing_of_ours(
    netns: NetworkNamespace, line: str
) -> None:
    assert understood_by_flanneld(netns, line.split(), {}) == understood_by_ours(line.split(), {}) == {}
