"""`flannelette flanneld`: the three services in flanneld's place, on a host with an etcd."""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.etcd.server import EtcdServer
from tests.hosts.masq import Host, entered
from tests.hosts.namespaces import NetworkNamespace
from tests.patience import PATIENCE
from tests.services.flanneld_command import Flanneld

SEPARATE: Final = ("--separate",)
CONFIG: Final = '{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}'


@pytest.fixture
def host(netns: NetworkNamespace, tmp_path: Path) -> Iterator[Host]:
    netns.ip("link", "add", "eth0", "type", "veth", "peer", "far")
    for name in ("eth0", "far"):
        netns.ip("link", "set", name, "up")
    netns.ip("address", "add", "10.99.0.11/16", "dev", "eth0")
    with entered(netns, tmp_path) as it:
        it.use_legacy()
        yield it


@pytest.fixture
def etcd(host: Host, tmp_path: Path) -> Iterator[EtcdServer]:
    directory = tmp_path / "etcd"
    directory.mkdir()
    server = EtcdServer(directory, port=2379)
    try:
        server.start()
        server.etcdctl("put", "/coreos.com/network/config", CONFIG)
        yield server
    finally:
        server.discard()


def is_alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize(("form", "processes"), [((), set()), (SEPARATE, {"lease", "dataplane", "masq"})])
def test_flanneld_s_own_command_line_makes_a_node_of_the_overlay(
    host: Host, etcd: EtcdServer, tmp_path: Path, form: tuple[str, ...], processes: set[str]
) -> None:
    """Without a word on etcd: its default endpoints are flanneld's."""
    flanneld = Flanneld(host, tmp_path, "-ip-masq", *form)
    try:
        flanneld.until_ready()
        assert flanneld.ask("/healthz") == (200, "flanneld is running")
        subnet = re.search(r"FLANNEL_SUBNET=(\S+)\.1/24\n", flanneld.subnet_file.read_text())
        assert subnet is not None
        assert "FLANNEL_IPMASQ=true" in flanneld.subnet_file.read_text()
        assert f"subnets/{subnet[1]}.0-24" in etcd.etcdctl("get", "--prefix", "--keys-only", "/coreos.com/network")
        assert "flannel.1" in host.run("ip", "link", "show", "flannel.1")
        assert any("MASQUERADE" in rule for rule in host.rules("FLANNEL-POSTRTG"))
        children = flanneld.children()
        assert set(children) == processes
        assert flanneld.end() == 0
        assert not any(is_alive(pid) for pid in children.values())
        assert "flannel.1" in host.run("ip", "link", "show", "flannel.1"), "stopping leaves the kernel alone"
    finally:
        flanneld.process.kill()
        flanneld.process.wait()


def test_each_of_several_networks_is_served_by_three_services_of_its_own(
    host: Host, etcd: EtcdServer, tmp_path: Path
) -> None:
    for number, network in enumerate(("blue", "red"), 5):
        value = {"Network": f"10.{number}.0.0/16", "Backend": {"Type": "vxlan", "VNI": number}}
        etcd.etcdctl("put", f"/{network}/network/config", json.dumps(value))
    networks = [f"--network={network}=/{network}/network" for network in ("blue", "red")]
    flanneld = Flanneld(host, tmp_path, "-ip-masq", *networks)
    try:
        flanneld.until_ready()
        for number, network in enumerate(("blue", "red"), 5):
            assert f"FLANNEL_NETWORK=10.{number}.0.0/16\n" in (tmp_path / f"subnet-{network}.env").read_text()
            assert f"flannel.{number}" in host.run("ip", "link", "show", f"flannel.{number}")
            assert any(f" 10.{number}." in rule for rule in host.rules("FLANNEL-POSTRTG"))
        up = {f"{name}-{network}": 1 for name in ("lease", "dataplane", "masq") for network in ("blue", "red")}
        flanneld.until(lambda: samples_of(flanneld.ask("/metrics")[1])["flannelette_up"] == up)
        samples = re.findall(
            r'^flannelette_(\w+)\{service="(\w+)-(\w+)".*\bnetwork="(\w+)"', flanneld.ask("/metrics")[1], re.M
        )
        assert {each[:2] for each in samples} > {
            ("ready", "lease"),
            ("peers", "dataplane"),
            ("masq_rules_wanted", "masq"),
        }
        assert all(of == network for _, _, of, network in samples)
        assert flanneld.end() == 0
    finally:
        flanneld.process.kill()
        flanneld.process.wait()


def samples_of(text: str) -> dict[str, dict[str, float]]:
    """Values by the name of the sample and the service that it is of; fails for what Prometheus does not read."""
    heads = [line.rpartition(" ")[0] for line in text.splitlines() if line.startswith("# TYPE ")]
    assert len(heads) == len(set(heads)), "a family has two types"
    found: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[sample.labels["service"]] = sample.value
    return found


def test_the_metrics_of_one_process_say_of_which_service_they_are(
    host: Host, etcd: EtcdServer, tmp_path: Path
) -> None:
    flanneld = Flanneld(host, tmp_path, "-ip-masq")
    try:
        flanneld.until_ready()
        found = samples_of(flanneld.ask("/metrics")[1])
        assert found["flannelette_up"] == {"lease": 1, "dataplane": 1, "masq": 1}
        assert found["flannelette_ready"] == {"lease": 1, "dataplane": 1, "masq": 1}
        assert found["flannelette_lease_leases"] == {"lease": 1}
        assert found["flannelette_peers"].keys() == {"dataplane"}
        assert found["flannelette_masq_rules_wanted"]["masq"] > 0
        assert found["process_resident_memory_bytes"].keys() == {"flanneld"}
        etcd.kill()
        flanneld.until(
            lambda: samples_of(flanneld.ask("/metrics")[1])["flannelette_lease_store_connected"] == {"lease": 0}
        )
        found = samples_of(flanneld.ask("/metrics")[1])
        assert found["flannelette_ready"] == {"lease": 0, "dataplane": 0, "masq": 0}
        assert flanneld.ask("/healthz") == (200, "flanneld is running")
    finally:
        flanneld.process.kill()
        flanneld.process.wait()


def test_a_socket_that_is_deleted_ends_the_one_process_and_its_error_says_so(
    host: Host, etcd: EtcdServer, tmp_path: Path
) -> None:
    flanneld = Flanneld(host, tmp_path)
    try:
        flanneld.until_ready()
        (tmp_path / "masq.sock").unlink()
        assert flanneld.process.wait(PATIENCE) == 1
        log = flanneld.log.read_text()
        assert f"flanneld: the socket {tmp_path}/masq.sock was deleted" in log
        assert "is away" not in log, "a service that stops tells no other that it is away"
        assert "Traceback" not in log
        assert "flannel.1" in host.run("ip", "link", "show", "flannel.1"), "stopping leaves the kernel alone"
    finally:
        flanneld.process.kill()
        flanneld.process.wait()


def test_one_process_and_three_take_turns_and_the_kernel_stays_as_it_is(
    host: Host, etcd: EtcdServer, tmp_path: Path
) -> None:
    value = {
        "PublicIP": "10.99.0.12",
        "BackendType": "vxlan",
        "BackendData": {"VNI": 1, "VtepMAC": "02:00:00:00:00:53"},
    }
    etcd.etcdctl("put", "/coreos.com/network/subnets/10.5.53.0-24", json.dumps(value))
    looks = (
        "ip route show proto 77",
        "ip neigh show nud permanent",
        "bridge fdb show dev flannel.1",
        "ip -d link show",
    )
    seen = list[list[str]]()
    monitor = host.netns.command("ip", "monitor", "link", "address", "route", "neigh")
    with (tmp_path / "monitor").open("w") as out, subprocess.Popen(monitor, stdout=out) as monitoring:
        try:
            for form in ((), SEPARATE, ()):
                flanneld = Flanneld(host, tmp_path, "-ip-masq", *form)
                try:
                    flanneld.until_ready()
                    seen.append([*(host.run(*each.split()) for each in looks), *host.rules("FLANNEL-POSTRTG")])
                    assert "10.5.53.0/24" in seen[-1][0]
                    assert flanneld.end() == 0
                    flanneld.until_gone()
                finally:
                    flanneld.process.kill()
                    flanneld.process.wait()
        finally:
            monitoring.kill()
    assert seen[0] == seen[1] == seen[2]
    gone = [line for line in (tmp_path / "monitor").read_text().splitlines() if line.startswith("Deleted")]
    assert not gone


def test_a_second_one_ends_and_says_that_one_is_running(host: Host, etcd: EtcdServer, tmp_path: Path) -> None:
    flanneld = Flanneld(host, tmp_path)
    try:
        flanneld.until_ready()
        (beside := tmp_path / "beside").mkdir()
        second = Flanneld(host, beside, f"--socket-dir={tmp_path}", "--healthz-port=0")
        assert second.process.wait(PATIENCE) == 1
        assert f"flanneld: the socket {tmp_path}/lease.sock is in use by a running service" in second.log.read_text()
        assert flanneld.ask("/readyz") == (200, "flanneld is ready")
        assert flanneld.end() == 0
        log = flanneld.log.read_text()
        assert ("is away" not in log, "Traceback" not in log) == (True, True), log
    finally:
        flanneld.process.kill()
        flanneld.process.wait()


def test_its_metrics_are_those_of_the_three_services(host: Host, etcd: EtcdServer, tmp_path: Path) -> None:
    flanneld = Flanneld(host, tmp_path, "-ip-masq", *SEPARATE)
    try:
        flanneld.until_ready()
        found = samples_of(flanneld.ask("/metrics")[1])
        assert found["flannelette_up"] == {"lease": 1, "dataplane": 1, "masq": 1}
        assert found["flannelette_ready"] == {"lease": 1, "dataplane": 1, "masq": 1}
        assert found["flannelette_lease_leases"] == {"lease": 1}
        assert found["flannelette_peers"].keys() == {"dataplane"}
        assert found["flannelette_masq_rules_wanted"]["masq"] > 0
        assert found["process_resident_memory_bytes"].keys() == {"flanneld", "lease", "dataplane", "masq"}
        masq = flanneld.children()["masq"]
        os.kill(masq, signal.SIGSTOP)
        try:
            found = samples_of(flanneld.ask("/metrics")[1])
        finally:
            os.kill(masq, signal.SIGCONT)
        assert found["flannelette_up"] == {"lease": 1, "dataplane": 1, "masq": 0}
        assert found["flannelette_ready"] == {"lease": 1, "dataplane": 1}
    finally:
        flanneld.process.kill()
        flanneld.process.wait()


def test_one_service_that_ends_ends_all_so_that_they_are_started_again_together(
    host: Host, etcd: EtcdServer, tmp_path: Path
) -> None:
    flanneld = Flanneld(host, tmp_path, *SEPARATE)
    try:
        flanneld.until_ready()
        children = flanneld.children()
        os.kill(children["dataplane"], signal.SIGKILL)
        assert flanneld.process.wait(PATIENCE) == 1
        assert not any(is_alive(pid) for pid in children.values())
        assert "a service has ended" in flanneld.log.read_text()
    finally:
        flanneld.process.kill()
        flanneld.process.wait()


def test_no_service_outlives_a_flanneld_that_is_killed(host: Host, etcd: EtcdServer, tmp_path: Path) -> None:
    flanneld = Flanneld(host, tmp_path, *SEPARATE)
    flanneld.until_ready()
    children = flanneld.children()
    flanneld.end(signal.SIGKILL)
    deadline = time.monotonic() + PATIENCE
    while any(is_alive(pid) for pid in children.values()):
        assert time.monotonic() < deadline, "a service has outlived it"
        time.sleep(0.05)


def test_without_its_etcd_it_is_running_and_not_ready(host: Host, tmp_path: Path) -> None:
    flanneld = Flanneld(host, tmp_path)
    try:
        flanneld.until(lambda: flanneld.ask("/readyz") == (503, "flanneld is not ready yet"))
        assert flanneld.ask("/healthz") == (200, "flanneld is running")
        assert flanneld.end(signal.SIGINT) == 0
    finally:
        flanneld.process.kill()
        flanneld.process.wait()


def test_a_wrong_flag_is_one_line(host: Host, tmp_path: Path) -> None:
    flanneld = Flanneld(host, tmp_path, "--kube-subnet-manager")
    assert flanneld.process.wait(PATIENCE) == 2
    said = "there is no flag --kube-subnet-manager: did you mean --kube-subnet-mgr? (--help lists them)"
    assert flanneld.log.read_text() == f"flanneld: {said}\n"


def test_words_behind_the_flags_and_misspelt_variables_are_told_once_and_it_runs(
    host: Host, etcd: EtcdServer, tmp_path: Path
) -> None:
    flanneld = Flanneld(host, tmp_path, "-ip-masq", "true", "--iface=nosuch", "--", "-x", FLANNELD_IFCE="eth9")
    try:
        flanneld.until_ready()
        assert "FLANNEL_IPMASQ=true" in flanneld.subnet_file.read_text()
        assert flanneld.end() == 0
    finally:
        flanneld.process.kill()
        flanneld.process.wait()
    log = flanneld.log.read_text()
    said = "'true' is no flag and has no effect, as with flanneld, and so have the words after it:"
    assert log.count(f"{said} --iface=nosuch -- -x; write --ip-masq=true") == 1
    assert log.count("no flag has the variable FLANNELD_IFCE, which has no effect: did you mean FLANNELD_IFACE?") == 1
