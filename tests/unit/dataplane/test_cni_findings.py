"""What container runtimes and flannel's CNI configuration need of each other, on a host's files."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from flannelette.services.core.conditions import Condition
from flannelette.services.dataplane.diagnose.host_programs import HostFiles, check_cni, cni_view
from flannelette.services.dataplane.diagnose.seen import KernelSnapshot, Subject
from flannelette.services.dataplane.underlay import Underlay
from tests.findings.file_rows import FILE_FAULTS

SUBJECT = Subject({}, {}, Underlay(1, "eth0", 1500, (), (), ""), {}, 0, frozenset(), (), list, [])
NEEDED = ("bridge", "flannel", "host-local", "portmap")
FLANNEL = {"name": "cbr0", "plugins": [{"type": "flannel"}, {"type": "portmap"}]}
OTHER = {"name": "net", "plugins": [{"type": "bridge", "ipam": {"type": "host-local"}}]}


class Host:
    """Files of a host."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files = HostFiles(cni=root / "etc/cni/net.d", root=root)

    def write(self, path: str, text: str = "") -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def install(self, directory: str, *plugins: str) -> None:
        for each in plugins:
            self.write(f"{directory}/{each}")

    def configure(self, name: str, content: object = FLANNEL) -> None:
        self.write(f"etc/cni/net.d/{name}", json.dumps(content))

    def findings(self) -> list[Condition]:
        return list(check_cni(SUBJECT, KernelSnapshot(cni=cni_view(self.files))))


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_a_host_with_all_plugins_is_well(host: Host) -> None:
    host.configure("10-flannel.conflist")
    host.install("opt/cni/bin", *NEEDED)
    assert host.findings() == []


@pytest.mark.parametrize("missing", NEEDED)
def test_a_missing_plugin_is_named_and_linked_from_where_it_is(host: Host, missing: str) -> None:
    host.configure("10-flannel.conflist")
    host.install("opt/cni/bin", *(each for each in NEEDED if each != missing))
    host.write("etc/containerd/config.toml", f'[plugins]\n  bin_dir = "/opt/cni/bin"\n  conf_dir = "{host.root}"\n')
    (found,) = host.findings()
    assert (found.check, found.problem, found.cure) == ("cni-plugin", "No new pod starts on this node.", "")
    assert f"The CNI plugin {missing}, which {host.files.cni}/10-flannel.conflist calls, is not in " in found.cause
    assert "apt-get install containernetworking-plugins" in found.cause
    host.install("usr/lib/cni", missing)
    (found,) = host.findings()
    assert f"it is in {host.root}/usr/lib/cni" in found.cause
    subprocess.run(["sh", "-c", found.cure], check=True)
    assert host.findings() == []


@pytest.mark.parametrize("name", FILE_FAULTS)
def test_a_fault_of_the_table_is_named_and_its_cure_helps(host: Host, name: str) -> None:
    def text(of: str) -> str:
        return of.format(root=host.root)

    fault = FILE_FAULTS[name]
    host.configure("10-flannel.conflist")
    host.install("opt/cni/bin", *NEEDED)
    subprocess.run(["sh", "-c", text(fault.act)], check=True)
    (found,) = host.findings()
    said = (found.check, found.problem, found.cause, found.cure, found.evidence)
    assert said == (fault.check, fault.problem, text(fault.cause), text(fault.cure), text(fault.evidence))
    subprocess.run(["sh", "-c", text(fault.undo) or found.cure], check=True)
    assert host.findings() == []


@pytest.mark.parametrize(
    "content",
    [
        {"name": "m", "type": "multus"},
        {"cniVersion": "1.0.0"},
        "text",
        {"plugins": 5},
        {"plugins": ["flannel", None]},
    ],
)
def test_a_configuration_that_calls_the_next_or_is_none_is_no_finding(host: Host, content: object) -> None:
    host.configure("00-first.conf", content)
    host.configure("10-flannel.conflist")
    host.install("usr/lib/cni", *NEEDED)
    assert host.findings() == []


def test_nothing_is_found_where_nothing_can_be_seen(host: Host) -> None:
    assert host.findings() == []
    host.configure("10-flannel.conflist")  # as in a pod, which has no directory of plugins
    assert host.findings() == []
    host.configure("10-flannel.conflist", OTHER)
    host.install("opt/cni/bin")
    host.install("usr/lib/cni", "bridge")
    assert host.findings() == []


@pytest.mark.parametrize("delegate", ["bridge", ["bridge"], {"ipam": "host-local"}, None, 0])
def test_a_delegate_that_is_no_object_counts_as_none(host: Host, delegate: object) -> None:
    host.configure("10-flannel.conflist", {"plugins": [{"type": "flannel", "delegate": delegate}, {"ipam": []}]})
    host.install("opt/cni/bin", *NEEDED)
    assert host.findings() == []


def test_files_that_no_runtime_could_read_are_passed_over(host: Host) -> None:
    host.configure("10-flannel.conflist")
    host.install("opt/cni/bin", *NEEDED)
    host.write("etc/cni/net.d/00-deep.conf", "[" * 100_000)
    for place in ("etc/cni/net.d/01-bytes.conf", "etc/containerd/config.toml"):
        host.write(place)
        (host.root / place).write_bytes(b"bin_dir = '\xff'")
    os.mkfifo(host.root / "etc/cni/net.d/02-pipe.conf")
    assert host.findings() == []


def test_plugins_that_cannot_be_seen_are_not_missed(host: Host) -> None:
    host.configure("10-flannel.conflist")
    host.write("opt/cni", "not a directory, as what this user may not enter")
    assert host.findings() == []
