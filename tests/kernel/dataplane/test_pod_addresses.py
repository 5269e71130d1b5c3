"""Addresses that the real `host-local` has given to pods: those of pods that are gone are freed, and no other.

Pods are network namespaces that CNI's plugins attach; one that is gone was killed without the plugins, as in a crash.
"""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from concurrent import futures
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio

from tests.ctl.process import Ran, run
from tests.hosts.dataplane import VXLAN, Running, cluster_in
from tests.hosts.namespaces import NamespaceMaker, NetworkNamespace
from tests.hosts.pods import Node, flags
from tests.pages.document import sections
from tests.paths import ROOT
from tests.patience import PATIENCE
from tests.services.containerd import Runtime, containerd
from tests.tools import find_tool, lacking

PAGE = ROOT / "docs/operations.md"
SUBNET = f"10.5.{100 + os.getpid() % 155}"
"""Namespaces of other tests are seen here too: their pods shall have other addresses."""


class Pods(Node):
    """Pods of which some have gone without a word."""

    around: tuple[str, ...] = ()
    """A command that runs what follows it, such as a container."""

    async def addresses(self, *words: str, directory: str = "") -> Ran:
        return await self.flannelette("addresses", *words, directory=directory)

    async def flannelette(self, *words: str, directory: str = "") -> Ran:
        """`flannelette WORDS...` on this node."""
        cluster, around = self.cluster, self.cluster.namespace.command(*self.around)
        variables = {
            "FLANNELD_SUBNET_FILE": f"{cluster.directory}/subnet.env",
            "FLANNELD_CNI_STATE_DIR": directory or f"{cluster.directory}/var/lib/cni",
        }
        return await run(cluster.directory, *words, prefix=around, **variables)

    async def states(self, *words: str) -> dict[str, tuple[str, str]]:
        """State and sign by address."""
        found = (await self.addresses(*words, "-o", "json")).json
        self.reasons = {each["address"]: each["reason"] for each in found["addresses"]}
        return {each["address"]: (each["state"], each["sign"]) for each in found["addresses"]}

    def kill(self, number: int) -> str:
        """Ends a pod as a crash does, and returns its address."""
        pod, address, _ = self.pods.pop(number)
        pod.delete()
        self.make_netns.made.remove(pod)
        return address

    @property
    def reserved(self) -> dict[str, str]:
        """What is reserved, with the content of each file."""
        return {
            path.name: path.read_text() for path in (self.state / "networks/cbr0").iterdir() if path.name[0].isdigit()
        }

    async def until_gone(self, number: int) -> None:
        """Until the kernel has removed the interface of a pod that ended: it does so in its own time."""
        async with asyncio.timeout(PATIENCE):
            while self.ip("-o link show type veth").count("veth") > number:  # noqa: ASYNC110 - the kernel does it
                await asyncio.sleep(0.05)


@pytest_asyncio.fixture
async def empty(netns: NetworkNamespace) -> AsyncIterator[Pods]:
    """A node without pods."""
    find_tool("cnitool")
    if os.geteuid() != 0:
        lacking("it takes root to look into network namespaces")
    make_netns = NamespaceMaker()
    with ExitStack() as ending, cluster_in(netns, VXLAN) as cluster:
        ending.callback(make_netns.close)
        (cluster.directory / "subnet.env").write_text(f"FLANNEL_SUBNET={SUBNET}.1/24\n")
        netns.run("sysctl", "-qw", "net.ipv4.ip_forward=1")
        async with cluster.dataplane(*flags(cluster)) as running:
            await running.until()
            yield Pods(cluster, running, make_netns)


@pytest.fixture
def node(empty: Pods) -> Pods:
    """A node with three pods."""
    for _ in range(3):
        empty.add_pod()
    return empty


@pytest.fixture
def pods_of_containerd(empty: Pods) -> Iterator[Runtime]:
    """A containerd on that node, which starts pods by runc."""
    empty.configure()
    made = Runtime(empty.cluster.directory, empty.cluster.namespace.path)
    made.start()
    try:
        yield made
    finally:
        made.cut_power()


async def test_pods_that_run_have_their_addresses_and_those_of_a_killed_pod_are_freed(node: Pods) -> None:
    assert await node.states() == {f"{SUBNET}.{n}": ("ALIVE", "NAMESPACE") for n in (2, 3, 4)}
    gone = node.kill(1)
    await node.until_gone(4)
    assert (await node.states())[gone] == ("DEAD", "INTERFACE")
    listed = await node.addresses()
    assert listed.code == 1
    assert [line.split()[:2] for line in listed.out.splitlines()[1:]] == [["n1", f"{SUBNET}.{n}"] for n in (2, 3, 4)]

    done = await node.addresses("--release", "--yes", "--pause=100ms", "-o", "json")
    assert (done.code, done.json["released"]) == (0, [gone]), done.err
    assert sorted(node.reserved) == [f"{SUBNET}.2", f"{SUBNET}.4"]
    assert (await node.addresses()).code == 0
    node.add_pod()
    assert len(node.reserved) == 3
    await node.until_it_flows()


async def test_doctor_names_the_addresses_of_killed_pods_and_what_the_page_says_frees_them(node: Pods) -> None:
    (block,) = next(s for s in sections(PAGE) if s.title == "Addresses of pods that are gone").blocks
    typed = [line.split()[2:] for line in block.commands.splitlines() if line.startswith("sudo flannelette")]
    assert typed == [["addresses"], ["addresses", "--release"]]
    gone = node.kill(1)
    await node.until_gone(4)
    found = list[Any]()
    async with asyncio.timeout(180):
        while not (found := [each for each in await node.findings() if each.check == "pod-addresses"]):
            await asyncio.sleep(10)
            await node.running.resync()
    (finding,) = found
    assert finding.problem == (
        f"1 address of {SUBNET}.0/24 is reserved for pods that are gone, and given to no new one: {gone}."
    )
    assert (finding.broken, finding.cure) == (False, "flannelette addresses --release")
    assert "250 are free" in finding.cause
    assert await node.flows()
    listed, released = [await node.addresses(*words[1:], "--yes", "--pause=0s") for words in typed]
    assert (listed.code, released.code, released.out.splitlines()[-1]) == (1, 0, f"freed: {gone}")
    async with asyncio.timeout(PATIENCE):
        while [each for each in await node.findings() if each.check == "pod-addresses"]:
            await node.running.resync()
            await asyncio.sleep(0.5)


async def test_doctor_of_root_names_what_a_dataplane_without_rights_does_not_see(node: Pods) -> None:
    gone = node.kill(1)
    await node.until_gone(4)
    await node.running.end()
    node.running = Running(node.cluster, ("--cni-state-dir=",), ())
    try:
        await node.running.until()
        found = (await node.flannelette("doctor", "dataplane", "-o", "json")).json
    finally:
        await node.running.end()
    (problem,) = [each for each in found["problems"] if each["check"] == "pod-addresses"]
    assert (problem["service"], problem["nodes"], problem["fixable"]) == ("dataplane", ["n1"], False)
    assert f"given to no new one: {gone}." in problem["problem"]
    assert problem["cure"] == "flannelette addresses --release"


async def test_a_reservation_without_a_result_is_dead_once_no_namespace_has_the_address(node: Pods) -> None:
    for path in (node.state / "results").iterdir():
        path.unlink()
    gone = node.kill(0)
    (node.state / "networks/cbr0" / f"{SUBNET}.77").touch()  # as after a power cut
    found = await node.states()
    assert found == {
        gone: ("DEAD", "NAMESPACE"),
        f"{SUBNET}.3": ("ALIVE", "NAMESPACE"),
        f"{SUBNET}.4": ("ALIVE", "NAMESPACE"),
        f"{SUBNET}.77": ("DEAD", "NAMESPACE"),
    }
    done = await node.addresses("--release", "--yes", "--pause=0s", "-o", "json")
    assert sorted(done.json["released"]) == sorted((gone, f"{SUBNET}.77"))


async def test_a_pod_that_has_lost_its_address_lives_and_one_that_is_not_known_stops_everything(node: Pods) -> None:
    pod, address, _ = node.pods[0]
    pod.ip("addr", "flush", "dev", "eth0")
    assert (await node.states())[address] == ("ALIVE", "INTERFACE")
    for path in (node.state / "results").iterdir():
        path.unlink()
    gone = node.kill(2)
    found = await node.states()
    assert (found[address], found[gone]) == (("UNKNOWN", "NONE"), ("UNKNOWN", "NONE"))
    before = node.reserved
    done = await node.addresses("--release", "--yes", "--pause=0s", "-o", "json")
    assert (done.json["released"], node.reserved) == ([], before)


async def test_while_a_plugin_runs_for_a_container_its_address_is_not_free(node: Pods) -> None:
    (node.state / "networks/cbr0" / f"{SUBNET}.9").write_text("starting\r\neth0")
    plugin = await asyncio.create_subprocess_exec("sleep", "60", env={"CNI_CONTAINERID": "starting"})
    try:
        assert (await node.states())[f"{SUBNET}.9"] == ("ALIVE", "PLUGIN")
    finally:
        plugin.kill()
        await plugin.wait()
    assert (await node.states())[f"{SUBNET}.9"] == ("DEAD", "NAMESPACE"), node.reasons


async def test_without_rights_and_without_a_dataplane_nothing_is_dead(node: Pods) -> None:
    gone = node.kill(0)
    await node.until_gone(4)
    await node.running.end()
    assert (await node.states())[gone] == ("UNKNOWN", "NONE")
    before = node.reserved
    done = await node.addresses("--release", "--yes", "--pause=0s", "-o", "json")
    assert (done.json["released"], node.reserved) == ([], before)
    said = await node.addresses(directory=f"{node.cluster.directory}/nowhere")
    assert (said.code, "cannot be read here" in said.err) == (1, True)


async def test_a_container_knows_by_the_processes_of_the_host_whether_it_sees_all_pods(node: Pods) -> None:
    """As `kubectl debug node` makes one: without the host's mounts, with its processes and its network."""
    for path in (node.state / "results").iterdir():
        path.unlink()
    gone = node.kill(0)
    node.around = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /run/netns && exec "$0" "$@"')
    assert (await node.states())[gone] == ("UNKNOWN", "NONE")
    assert "leads to a pod of which the address is not known" in node.reasons[gone]
    inside = [await asyncio.create_subprocess_exec(*pod.command("sleep", "60")) for pod, _, _ in node.pods]
    try:
        async with asyncio.timeout(PATIENCE):
            while (found := await node.states())[gone] == ("UNKNOWN", "NONE"):  # until each is in its namespace
                pass
        living = {address: ("ALIVE", "NAMESPACE") for _, address, _ in node.pods}
        assert found == {gone: ("DEAD", "NAMESPACE"), **living}
    finally:
        for each in inside:
            each.kill()
            await each.wait()


@contextmanager
def runtime(path: Path, *containers: str) -> Iterator[None]:
    """The call of a container runtime that lists sandboxes, which it answers with these and their metadata."""

    def item(container: str) -> bytes:
        name = container.encode()
        inner = bytes((0x0A, len(name))) + name + b"\x12\x04\x0a\x02p1\x18\x01"
        return bytes((0x0A, len(inner))) + inner

    answer = b"".join(map(item, containers))
    call = grpc.unary_unary_rpc_method_handler(lambda request, context: answer, bytes, bytes)
    server = grpc.server(futures.ThreadPoolExecutor(1))
    if containers:
        handlers = grpc.method_handlers_generic_handler("runtime.v1.RuntimeService", {"ListPodSandbox": call})
        server.add_generic_rpc_handlers((handlers,))
    server.add_insecure_port(f"unix:{path}")
    server.start()
    try:
        yield
    finally:
        server.stop(None).wait()


async def test_what_a_container_runtime_knows_is_alive_and_one_that_is_silent_decides_nothing(node: Pods) -> None:
    gone = node.kill(0)
    await node.until_gone(4)
    container = node.reserved[gone].splitlines()[0]
    path = node.cluster.directory / "cri.sock"
    asked = f"--runtime={path}"
    with runtime(path, "another", container):
        assert (await node.states(asked))[gone] == ("ALIVE", "RUNTIME")
    with runtime(path, "another"):
        assert (await node.states(asked))[gone] == ("DEAD", "INTERFACE")
    with runtime(path):  # one that has no such call, as docker's containerd
        assert (await node.states(asked))[gone] == ("DEAD", "INTERFACE")
    assert (await node.states(asked))[gone] == ("UNKNOWN", "NONE")


async def test_a_real_containerd_that_does_not_know_a_container_stops_nothing(node: Pods) -> None:
    gone = node.kill(0)
    await node.until_gone(4)
    directory = node.cluster.directory
    (directory / "etc/containerd").mkdir(parents=True)
    (directory / "etc/containerd/config.toml").write_text("version = 3\n")
    with containerd(directory) as socket:
        assert (await node.states(f"--runtime={socket}"))[gone] == ("DEAD", "INTERFACE"), node.reasons


async def test_what_starts_leave_that_were_killed_at_any_moment_is_freed_once_their_pods_are_gone(node: Pods) -> None:
    """Kills the plugins as a crash of the runtime does: many leave an address, and no result."""
    living, lost = {address for _, address, _ in node.pods}, list[NetworkNamespace]()
    for number in range(40):
        lost.append(pod := node.make_netns())
        with node.plugins("add", pod) as process:
            await asyncio.sleep(0.004 * number)
            os.killpg(process.pid, signal.SIGKILL)
    left = node.reserved.keys() - living
    assert left, "all were killed before host-local, or none"
    before = await node.addresses("--release", "--yes", "--pause=0s", "-o", "json")
    assert living <= node.reserved.keys(), before.out
    for pod in lost:
        pod.delete()
        node.make_netns.made.remove(pod)
    await node.until_gone(2 + len(node.pods))
    await node.addresses("--release", "--yes", "--pause=0s")
    assert node.reserved.keys() == living
    assert await node.flows()
    print(json.dumps({"killed": len(lost), "left": len(left), "freed before": len(before.json["released"])}))


async def test_pods_that_start_while_addresses_are_freed_keep_theirs(node: Pods) -> None:
    """Starts pods and kills others, three at a time, while addresses are freed all the time, without a pause."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    killed, freed, rounds = set[str](), list[str](), 0

    async def start_and_kill(pool: futures.Executor) -> None:
        for number in count():
            if number >= 15 and rounds > 3:
                return
            await loop.run_in_executor(pool, node.add_pod)
            if number % 2:
                killed.add(node.kill(number % len(node.pods)))

    async def free() -> None:
        nonlocal rounds
        while not ended.is_set():
            done: Any = (await node.addresses("--release", "--yes", "--pause=0s", "-o", "json")).json
            freed.extend(done["released"])
            rounds += 1

    with futures.ThreadPoolExecutor(3) as pool:
        freeing = asyncio.create_task(free())
        await asyncio.gather(*(start_and_kill(pool) for _ in range(3)))
        ended.set()
        await freeing
    living = {address for _, address, _ in node.pods}
    assert len(living) == len(node.pods)
    assert living <= node.reserved.keys()
    assert set(freed) <= killed
    await node.until_gone(2 + len(node.pods))
    await node.addresses("--release", "--yes", "--pause=0s")
    assert node.reserved.keys() == living
    print(json.dumps({"rounds": rounds, "living": len(living), "killed": len(killed), "freed": len(freed)}))


@pytest.mark.parametrize("is_forgotten", [True, False])
async def test_after_a_power_cut_containerd_frees_what_it_knows_and_the_command_what_it_has_forgotten(
    empty: Pods, pods_of_containerd: Runtime, is_forgotten: bool
) -> None:
    containerd, asked = pods_of_containerd, f"--runtime={pods_of_containerd.socket}"
    identities = [containerd.run_pod(f"p{number}") for number in range(3)]
    before = empty.reserved
    assert await empty.states(asked) == dict.fromkeys(before, ("ALIVE", "RUNTIME"))
    assert len(before) == 3
    assert await empty.states("--runtime=/nowhere") == dict.fromkeys(before, ("ALIVE", "NAMESPACE"))
    containerd.cut_power()
    if is_forgotten:
        containerd.forget()
    containerd.start()
    await empty.until_gone(2)
    released = ("--release", "--yes", "--pause=0s", "-o", "json", asked)
    if is_forgotten:
        assert await empty.states(asked) == dict.fromkeys(before, ("DEAD", "INTERFACE"))
        containerd.run_pod("p9")
        (fresh,) = empty.reserved.keys() - before.keys()
        assert sorted((await empty.addresses(*released)).json["released"]) == sorted(before)
        assert list(empty.reserved) == [fresh]
    else:
        assert await empty.states(asked) == dict.fromkeys(before, ("ALIVE", "RUNTIME"))
        assert (await empty.addresses(*released)).json["released"] == []
        for each in identities:
            containerd.remove_pod(each)
        assert not empty.reserved


async def test_pods_that_containerd_starts_while_addresses_are_freed_keep_theirs(
    empty: Pods, pods_of_containerd: Runtime
) -> None:
    containerd, loop, ended = pods_of_containerd, asyncio.get_running_loop(), asyncio.Event()
    empty.configure()
    for number in range(200, 220):
        (empty.state / "networks/cbr0").mkdir(parents=True, exist_ok=True)
        (empty.state / "networks/cbr0" / f"{SUBNET}.{number}").write_text(f"gone{number}\r\neth0")
    freed = list[str]()

    async def free() -> None:
        while not ended.is_set():
            words = ("--release", "--yes", "--pause=0s", "-o", "json", f"--runtime={containerd.socket}")
            freed.extend((await empty.addresses(*words)).json["released"])

    with futures.ThreadPoolExecutor(3) as pool:
        freeing = asyncio.create_task(free())
        await asyncio.gather(*(loop.run_in_executor(pool, containerd.run_pod, f"p{n}") for n in range(20)))
        ended.set()
        await freeing
    assert sorted(freed) == sorted(f"{SUBNET}.{number}" for number in range(200, 220))
    assert len(empty.reserved) == 20
    found = await empty.states(f"--runtime={containerd.socket}")
    assert found == dict.fromkeys(empty.reserved, ("ALIVE", "RUNTIME"))
