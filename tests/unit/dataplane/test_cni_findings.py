"""What container runtimes and flannel's CNI configuration need of each other, on a host's files."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from flannelette.services.core.conditions import Condition
from flannelette.services.dataplane.diagnose.cni import check_cni, cni_view
from flannelette.services.dataplane.diagnose.host_programs import HostFiles
from flannelette.services.dataplane.diagnose.seen import HostLink, KernelSnapshot, Subject
from flannelette.services.dataplane.underlay import Underlay
from tests.findings.file_rows import FILE_FAULTS

SUBJECT = Subject({}, {}, Underlay(1, "eth0", 1500, (), (), ""), {}, 0, frozenset(), (), list, [])
NEEDED = ("bridge", "flannel", "host-local", "portmap")
FLANNEL = {"name": "cbr0", "plugins": [{"type": "flannel"}, {"type": "portmap"}]}
OTHER = {"name": "net", "plugins": [{"type": "bridge", "ipam": {"type": "host-local"}}]}

CONTAINERD = 'version = 2\n[plugins."io.containerd.grpc.v1.cri".cni]\n{}\n'


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

    def findings(self, *devices: str) -> list[Condition]:
        links = {number: HostLink(number, name) for number, name in enumerate(devices, 2)}
        return list(check_cni(SUBJECT, KernelSnapshot(cni=cni_view(self.files), links=links)))


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
    host.write("etc/containerd/config.toml", CONTAINERD.format('bin_dir = "/opt/cni/bin"'))
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


def test_containerds_own_directory_counts_and_not_the_usual_one(host: Host) -> None:
    host.configure("10-flannel.conflist")
    host.configure("05-other.conflist", OTHER)
    host.install("opt/cni/bin", *NEEDED)
    host.write("etc/containerd/config.toml", CONTAINERD.format('conf_dir = "/var/cni"'))
    assert [each.code for each in host.findings()] == ["host.cni-configuration"]  # where /var/cni is not seen
    host.write("var/cni/10-flannel.conflist", json.dumps(FLANNEL))
    assert host.findings() == []
    host.write("var/cni/01-calico.conflist", json.dumps({"name": "k8s", "plugins": [{"type": "calico"}]}))
    (found,) = host.findings()
    assert found.cause == (
        f"The container runtime takes {host.root}/var/cni/01-calico.conflist of Calico, which comes before "
        "10-flannel.conflist by name."
    )


@pytest.mark.parametrize("place", ["var/lib/rancher/k3s/agent/etc/containerd", "etc/containerd"])
def test_a_configuration_that_the_runtime_does_not_read_is_named_and_linked(host: Host, place: str) -> None:
    host.configure("10-flannel.conflist")
    host.install("opt/cni/bin", *NEEDED)
    host.write(f"{place}/config.toml", CONTAINERD.format('conf_dir = "/var/cni"'))
    host.write("var/cni/90-net.conflist", json.dumps(OTHER))
    (found,) = host.findings()
    assert (found.code, found.cure) == (
        "host.cni-directory",
        f"ln -s {host.files.cni}/10-flannel.conflist {host.root}/var/cni/",
    )
    assert (
        f"takes CNI configurations from {host.root}/var/cni, as {host.root}/{place}/config.toml says" in found.cause
    )
    subprocess.run(["sh", "-c", found.cure], check=True)
    assert host.findings() == []


BROKEN = {
    "no JSON": "{",
    "a constant of Python": '{"name": "x", "plugins": [{"type": "x", "n": NaN}]}',
    "no name": '{"plugins": [{"type": "x"}]}',
    "no plugins": '{"name": "x", "plugins": []}',
    "no type": '{"name": "x", "plugins": [{}]}',
    "a version that is a number": '{"name": "x", "cniVersion": 1, "plugins": [{"type": "x"}]}',
    "no object": "[]",
    "nothing": "",
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
def test_a_file_that_cannot_be_read_stops_containerd_if_it_comes_first_and_harms_nothing_elsewhere(
    host: Host, text: str
) -> None:
    host.configure("10-flannel.conflist")
    host.install("opt/cni/bin", *NEEDED)
    host.write("etc/cni/net.d/05-broken.conflist", text)
    host.write("etc/cni/net.d/20-broken.conflist", text)
    assert host.findings() == []  # CRI-O passes over it
    host.write("etc/containerd/config.toml", CONTAINERD.format(""))
    (found,) = host.findings()
    assert (found.check, found.problem) == ("cni-configuration", "No new pod starts on this node.")
    assert found.cause.startswith(f"containerd cannot read {host.files.cni}/05-broken.conflist, and then reads no ")
    subprocess.run(["sh", "-c", found.cure], check=True)
    assert host.findings() == []
    host.write("etc/containerd/config.toml", CONTAINERD.format("max_conf_num = 2"))
    (found,) = host.findings()
    assert f"{host.files.cni}/20-broken.conflist" in found.cause


def test_flannels_own_file_that_is_broken_is_named_and_not_put_aside(host: Host) -> None:
    host.write("etc/cni/net.d/10-flannel.conflist", "{")
    host.install("opt/cni/bin", *NEEDED)
    host.write("etc/containerd/config.toml", CONTAINERD.format(""))
    (found,) = host.findings()
    assert (found.code, found.cure) == ("host.cni-broken", "")
    assert found.cause.endswith("It is flannel's own: write it again.")


def test_what_another_cni_has_left_is_named_and_what_is_called_behind_flannel_is_not(host: Host) -> None:
    host.install("opt/cni/bin", *NEEDED, "cilium-cni")
    host.configure("10-flannel.conflist")
    host.configure("50-cilium.conflist", {"name": "cilium", "plugins": [{"type": "cilium-cni"}]})
    host.configure("87-podman.conflist", OTHER)
    file, device = host.findings("eth0", "cilium_host", "cilium_net", "cilium_vxlan")
    assert (file.code, file.cure) == (
        "host.cni-leftover-file",
        f"mv {host.files.cni}/50-cilium.conflist {host.files.cni}/50-cilium.conflist.disabled",
    )
    assert (device.cause, device.cure) == (
        "cilium_host and cilium_vxlan are there, and no configuration of Cilium is in force.",
        "ip link del cilium_host && ip link del cilium_vxlan",
    )
    host.configure("10-flannel.conflist", {"name": "n", "plugins": [*FLANNEL["plugins"], {"type": "cilium-cni"}]})
    (host.files.cni / "50-cilium.conflist").unlink()
    assert host.findings("cilium_host") == []


def test_docker_beside_kubernetes_has_no_say(host: Host) -> None:
    host.configure("10-flannel.conflist")
    host.install("opt/cni/bin", *NEEDED)
    host.write("etc/cni/net.d/05-broken.conflist", "{")
    host.write("etc/containerd/config.toml", 'disabled_plugins = ["cri"]\n')
    assert host.findings() == []
