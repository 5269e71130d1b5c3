"""The lab as its users have it: started, tried, looked into, interrupted, killed."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.charon.real import require_charon
from tests.clouds.process import cloud_python
from tests.e2e.lab_process import LabProcess, lab
from tests.modules import has_module
from tests.pages.document import sections
from tests.paths import ROOT
from tests.tools import find_tool

SOAK = bool(os.environ.get("FLANNELETTE_SOAK"))
UP = "Ctrl-C ends the lab"


def tried(home: Path, *options: str) -> tuple[dict[str, Any], LabProcess]:
    figures = home / "lab.json"
    with lab(home, "ONCE=1", f"JSON={figures}", *options) as process:
        assert process.exit_code() == 0, process.output
    return json.loads(figures.read_text()), process


def test_three_vxlan_hosts_pass_their_trial_and_leave_nothing_behind(home: Path) -> None:
    figures, process = tried(home, f"TOPOLOGY={home / 'lab.svg'}")
    assert (home / "lab.svg").read_text().startswith("<svg ")
    assert figures.pop("ready_seconds") > 0
    assert figures == {
        "nodes": 3,
        "backend": "vxlan",
        "store": "embedded",
        "pod_pings": {"ok": 6, "total": 6},
        "masquerade": {"ok": 3, "total": 3},
        "restart_lost": 0,
    }
    assert "everything works" in process.output
    assert process.all_gone()
    assert not process.directory.exists()


def test_host_gw_hosts_with_an_etcd_pass_their_trial(home: Path) -> None:
    nodes = 5 if SOAK else 2
    figures, _ = tried(home, f"NODES={nodes}", "BACKEND=host-gw", "STORE=etcd")
    assert figures.pop("ready_seconds") > 0
    assert figures == {
        "nodes": nodes,
        "backend": "host-gw",
        "store": "etcd",
        "pod_pings": {"ok": nodes * (nodes - 1), "total": nodes * (nodes - 1)},
        "masquerade": {"ok": nodes, "total": nodes},
        "restart_lost": 0,
    }


def test_a_cloud_has_the_right_table_also_after_a_node_left_and_one_moved(home: Path) -> None:
    cloud_python()  # skipped where it is missing
    figures, process = tried(home, "BACKEND=aws-vpc")
    assert (figures["pod_pings"], figures["restart_lost"]) == ({"ok": 6, "total": 6}, 0)
    before, _, after = process.output.partition("new address")
    rows = re.compile(r"^10\.5\.\S+ +(h\d) +rtb-\w+ +eni-\w+ +active +-$", re.MULTILINE)
    assert (sorted(rows.findall(before)), sorted(rows.findall(after))) == (["h1", "h2", "h3"], ["h1", "h2"])


def test_pods_of_both_families_pass_their_trial(home: Path) -> None:
    figures, process = tried(home, "NODES=2", "FAMILY=dual")
    assert (figures["pod_pings"], figures["masquerade"]) == ({"ok": 2, "total": 2}, {"ok": 2, "total": 2})
    assert figures["restart_lost"] == 0
    assert "IPv4 and IPv6" in process.output


def test_a_narrow_path_is_followed_and_tcp_passes_as_the_page_says(home: Path) -> None:
    (block,) = next(each for each in sections(ROOT / "docs/operations.md") if each.title == "Probes").blocks
    words = block.commands.split()
    assert (words[:2], words[-1]) == (["make", "lab"], "ONCE=1")
    figures, process = tried(home, *words[2:-1], "NODES=2", "FAMILY=dual")
    assert figures["restart_lost"] == 0
    assert figures["tcp_bytes"] > 1_000_000
    assert figures["tcp_longest_stall"] <= 1
    assert "packets of 1330 of 1430 bytes pass the middle, as routes say" in process.output


def test_two_clusters_with_a_router_between_pass_their_trial(home: Path) -> None:
    """Pods of both reach each other under their own addresses, and no kill of any service loses a ping."""
    nodes = 2 if SOAK else 1
    figures, process = tried(home, "CLUSTERS=2", f"NODES={nodes}", "FAMILY=dual")
    pairs = 2 * nodes * (2 * nodes - 1)
    assert figures["pod_pings"] == {"ok": pairs, "total": pairs}
    assert figures["masquerade"] == {"ok": 2 * nodes, "total": 2 * nodes}
    assert figures["restart_lost"] == 0
    assert "2 clusters of" in process.output


@pytest.mark.parametrize(
    "backend",
    [
        pytest.param("ipsec", marks=pytest.mark.modules("esp4", "dummy")),
        pytest.param("wireguard", marks=pytest.mark.modules("wireguard")),
        pytest.param("ipip", marks=pytest.mark.modules("ipip")),
    ],
)
def test_two_clusters_pass_their_trial_through_each_backend(home: Path, backend: str) -> None:
    if backend == "ipsec":
        require_charon()
    figures, _ = tried(home, "CLUSTERS=2", "NODES=1", f"BACKEND={backend}")
    assert figures["pod_pings"] == {"ok": 2, "total": 2}
    assert figures["masquerade"] == {"ok": 2, "total": 2}
    assert figures["restart_lost"] == 0


@pytest.mark.modules("wireguard")
def test_two_wireguard_networks_on_each_host_pass_their_trial(home: Path) -> None:
    figures, _ = tried(home, "NETWORKS=2", "NODES=2", "BACKEND=wireguard")
    assert figures["pod_pings"] == {"ok": 4, "total": 4}
    assert figures["masquerade"] == {"ok": 4, "total": 4}
    assert figures["restart_lost"] == 0


@pytest.mark.parametrize("store", ["embedded", "etcd"] if SOAK else ["embedded"])
def test_two_networks_on_each_host_pass_their_trial(home: Path, store: str) -> None:
    """Pods of each reach those of theirs; no kill of any service loses a ping, or leaves the kernels otherwise."""
    figures, process = tried(home, "NETWORKS=2", "NODES=2", "FAMILY=dual", f"STORE={store}")
    assert figures["pod_pings"] == {"ok": 4, "total": 4}
    assert figures["masquerade"] == {"ok": 4, "total": 4}
    assert figures["restart_lost"] == 0
    killed = "12" if store == "etcd" else "10"
    assert re.search(rf"{killed} services in turn, .*, 0 lost, 0 changes in the kernel", process.output)
    assert process.all_gone()


def test_a_configuration_without_a_backend_passes_its_trial(home: Path) -> None:
    """Its processes that carry packets outlive the dataplanes that are killed, and not the lab."""
    if not Path("/dev/net/tun").exists():
        pytest.skip("there is no /dev/net/tun: modprobe tun")
    figures, process = tried(home, "NODES=2", "BACKEND=udp")
    assert (figures["pod_pings"], figures["masquerade"]) == ({"ok": 2, "total": 2}, {"ok": 2, "total": 2})
    assert figures["restart_lost"] == 0
    assert process.all_gone()


def test_a_lab_can_be_looked_into_and_a_service_that_dies_comes_back(home: Path) -> None:
    with lab(home, "NODES=2") as process:
        process.until_printed(UP)

        status, routes = (process.carry_out(hint) for hint in ("status", "route"))
        assert "h1 is healthy" in status
        assert "1 of 1 programmed" in status
        assert "dev flannel.1 proto 77" in routes
        assert "h2" in process.carry_out("nodes")
        _, *checks = process.carry_out("connectivity").splitlines()
        assert {tuple(line.split()[:4]) for line in checks} >= {
            ("passed", test, *pair)
            for test in ("overlay", "underlay", "pod")
            for pair in (("h1", "h2"), ("h2", "h1"))
        }

        assert (
            "h1    10.99.0.11  programmed"
            in process.inside("h2", sys.executable, "-m", "flannelette.services.ctl.main", "peers").stdout
        )
        assert "eth0" in process.inside("pod1", "ip", "-br", "link").stdout
        ping = [sys.executable, "-m", "lab.inside", "pod1", sys.executable, "-m", "lab.ping"]
        pinged = process.carry_out("make ping", lambda hint: shlex.join([*ping, hint.split()[2].removeprefix("TO=")]))
        assert " ms" in pinged
        nowhere = process.inside("h9", "true")
        assert nowhere.returncode == 1
        assert nowhere.stderr.startswith("lab: there is no 'h9' in this lab: make shell HOST=NAME, one of h1, h2, ")

        with lab(home) as second:
            assert second.exit_code() == 1
            assert second.output.startswith(f"lab: a lab is running in {process.directory}: stop it with Ctrl-C")
            assert len(second.output.splitlines()) == 1

        pid = next(
            pid for pid, command in process.processes().items() if "dataplane" in command and "--node=h2" in command
        )
        os.kill(pid, signal.SIGKILL)
        process.until_printed("the dataplane of h2 died (SIGKILL), restart number 1 follows")
        process.until_printed("the dataplane of h2 is ready again")

        assert process.exit_code(signal.SIGINT) == 0
        assert process.all_gone()
        assert not process.directory.exists()


def test_every_service_can_be_asked_with_grpcurl_as_the_lab_says(home: Path) -> None:
    find_tool("grpcurl")
    with lab(home, "NODES=1") as process:
        process.until_printed(UP)
        peers = json.loads(process.carry_out("grpcurl"))
        assert "peers" not in peers
        assert peers["counts"]["total"] == 0
        for name in ("lease/lease", "h1/dataplane", "h1/masq"):
            socket = process.directory / f"{name}.sock"
            listed = subprocess.run(
                ["grpcurl", "-plaintext", "-unix", socket, "list"], capture_output=True, text=True, check=True
            )
            assert f"flannelette.{socket.stem}.v1." in listed.stdout
            assert "grpc.health.v1.Health" in listed.stdout


def test_a_killed_lab_takes_its_processes_along_and_the_next_one_clears_up(home: Path) -> None:
    with lab(home, "NODES=1") as process:
        process.until_printed(UP)
        process.exit_code(signal.SIGKILL)
        assert process.all_gone()
        assert process.directory.exists()
    with lab(home, "NODES=1") as second:
        second.until_printed(UP)
        assert second.exit_code(signal.SIGTERM) == 0
        assert not second.directory.exists()


def test_an_interrupted_trial_is_not_a_passed_one(home: Path) -> None:
    with lab(home, "NODES=1", "ONCE=1") as process:
        process.until_printed("pings")
        assert process.exit_code(signal.SIGINT) == 130
        assert process.all_gone()
        assert not process.directory.exists()


def test_a_lab_that_gives_up_says_how_busy_the_machine_was(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLANNELETTE_PATIENCE", "0.0001")
    with lab(home, "NODES=1", "ONCE=1") as process:
        assert process.exit_code() == 1
    assert re.search(r"not ready after 0 s with a load of [\d.]+ on \d+ processors?: see its log", process.output)


def test_wrong_options_end_it_with_one_line_and_exit_code_2(home: Path) -> None:
    with lab(home, "NODES=0") as process:
        assert process.exit_code() == 2
        assert process.output == "lab: NODES=0: use a whole number from 1 to 200\n"


def test_a_backend_that_the_kernel_has_no_module_for_ends_it_with_the_way_out(home: Path) -> None:
    if has_module("ipip"):
        pytest.skip("this kernel has ipip")
    with lab(home, "BACKEND=ipip") as process:
        assert process.exit_code() == 2
        assert process.output.startswith("lab: BACKEND=ipip: this kernel has no ipip devices (")
        assert process.output.endswith(
            "): `modprobe ipip`, or VM=1 for a lab in a virtual machine, which has them; or use vxlan\n"
        )


def test_a_directory_too_long_for_sockets_is_said_before_anything_starts(home: Path) -> None:
    deep = home / ("d" * 90)
    deep.mkdir()
    with lab(deep) as process:
        assert process.exit_code() == 1
        assert process.output.endswith("is too long for unix sockets: set TMPDIR to a shorter directory\n")
