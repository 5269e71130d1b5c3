"""Several networks beside real flannelds: of ours on another host, and of two other networks on our own."""

import asyncio
import signal
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from ipaddress import ip_interface
from pathlib import Path

from lab import topology
from lab.build import carry_out, make_pod, make_router
from lab.cluster import Pod
from lab.reach import Reach, reach, unreached
from lab.stream import Stream
from lab.topology import OUTSIDE, OUTSIDE_ADDRESS
from tests.etcd.server import EtcdServer
from tests.flannel.real import Flanneld, require_flanneld
from tests.hosts.namespaces import remove_hosts
from tests.patience import PATIENCE
from tests.services.lease import ServiceProcess
from tests.services.networks import Host
from tests.waiting import eventually

CONFIGURATIONS = {
    "blue": '{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan","VNI":1}}',
    "red": '{"Network":"10.6.0.0/16","Backend":{"Type":"vxlan","VNI":2}}',
    "green": '{"Network":"10.7.0.0/16","Backend":{"Type":"vxlan","VNI":3}}',
    "white": '{"Network":"10.8.0.0/16","Backend":{"Type":"vxlan","VNI":4}}',
}
OBJECTS = {network: (f"flannel.{number}", f"10.{number + 4}") for number, network in enumerate(CONFIGURATIONS, 1)}
OURS = ("blue", "red")


@dataclass
class Hosts:
    """Ours is in blue and red; theirs has flannelds."""

    ours: Host
    theirs: topology.Host
    etcd: EtcdServer
    stack: AsyncExitStack

    async def flanneld(self, network: str, host: topology.Host) -> Flanneld:
        """A flanneld that is ready. One that starts ends if another deletes the shared rule; it is started again."""
        (home := self.ours.home / f"{host.name}-{network}").mkdir()
        made = Flanneld(self, host.namespace, home, f"--etcd-prefix=/{network}/network", "--iptables-resync=1")
        self.stack.callback(made.discard)
        for left in (2, 1, 0):
            try:
                await made.start()
                break
            except AssertionError:
                if not left or "RULE_DELETE failed" not in made.log:
                    raise
        return made

    async def pod(self, host: topology.Host, network: str, subnet_env: str) -> Pod:
        """One as the text says."""
        found = dict(line.split("=", 1) for line in subnet_env.splitlines())
        gateway = ip_interface(found["FLANNEL_SUBNET"])
        await make_pod(host, [gateway], int(found["FLANNEL_MTU"]), network)
        return Pod(host, topology.pod_address(gateway), network)

    def objects(self) -> dict[str, list[str]]:
        """What the kernel of our host has of each network."""
        return {network: sorted(self.ours.objects(*where).splitlines()) for network, where in OBJECTS.items()}

    async def until_theirs_are_complete(self) -> None:
        """The other host has all rules too: a flow that began before would keep its address, and have no answer."""
        await eventually(
            lambda: self.theirs.namespace.run("iptables-nft-save").splitlines(),
            lambda lines: all(sum(f" {net}." in line for line in lines) == 7 for _, net in OBJECTS.values()),
        )

    async def until(self, fits: Callable[[dict[str, list[str]]], bool]) -> dict[str, list[str]]:
        """The same, as soon as it is like that."""
        return await eventually(self.objects, fits)


@asynccontextmanager
async def two_hosts() -> AsyncIterator[Hosts]:
    async with AsyncExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fl-")))
        hosts = (topology.Host(1), topology.Host(2))
        stack.callback(remove_hosts, hosts, OURS)
        await carry_out(topology.underlay(hosts, OURS))
        for host in hosts:
            await make_router(host)
        etcd = EtcdServer(home, host=str(OUTSIDE_ADDRESS), namespace=OUTSIDE)
        with OUTSIDE.inside():
            etcd.start()
            for network, configuration in CONFIGURATIONS.items():
                etcd.etcdctl("put", f"/{network}/network/config", configuration)
        stack.callback(etcd.discard)
        ours = Host(1, hosts[0].namespace, home)
        stack.callback(ours.end)
        for network in OURS:
            (home / network).mkdir()
            store = ("--store=etcd", f"--etcd-endpoints={etcd.endpoint}", f"--etcd-prefix=/{network}/network")
            lease = ServiceProcess(home / network, *store, "--node=n1", namespace=ours.namespace)
            stack.enter_context(lease)
        yield Hosts(ours, hosts[1], etcd, stack)


def is_complete(found: dict[str, list[str]]) -> bool:
    """Whether each network has its route to the other host, and its rules."""
    return all(
        any(f"{net}." in line and " via " in line for line in lines)
        and sum(line.startswith("-A FLANNEL") for line in lines) == 7
        for lines, (_, net) in ((found[network], where) for network, where in OBJECTS.items())
    )


async def until_all_reach(reaching: Reach) -> None:
    """A flanneld that starts empties the chains that all share; the others put their rules back within a second."""
    failures: list[str] = []
    try:
        async with asyncio.timeout(PATIENCE):
            while failures := list(unreached(await reaching.matrix(), await reaching.outside())):
                pass
    except TimeoutError:
        raise AssertionError(failures) from None


async def test_two_networks_of_ours_have_flannelds_as_peers_and_two_of_other_networks_beside_them() -> None:
    """A flanneld asks only whether its rules exist, so two that run do not fight; one that starts empties all."""
    require_flanneld()
    async with two_hosts() as hosts:
        ours = hosts.ours
        dataplanes, masqs = ({name: ours.serve(kind, name) for name in OURS} for kind in ("dataplane", "masq"))
        there = {network: await hosts.flanneld(network, hosts.theirs) for network in OURS}
        for network in ("green", "white"):
            await hosts.flanneld(network, hosts.theirs)
        beside = [await hosts.flanneld(network, topology.Host(1)) for network in ("green", "white")]

        async def all_in_force() -> None:
            for service in ours.services:
                await service.until_in_force()

        await all_in_force()
        pods = []
        for network in OURS:
            for host, file in (
                (topology.Host(1), ours.directory / f"subnet-{network}.env"),
                (hosts.theirs, there[network].home / "subnet.env"),
            ):
                pods.append(await hosts.pod(host, network, file.read_text()))
        await hosts.until(is_complete)
        await hosts.until_theirs_are_complete()
        with reach(pods) as reaching:
            await until_all_reach(reaching)
            between = [path for path in reaching.paths() if path.target != OUTSIDE.name]
            before = await hosts.until(is_complete)
            async with Stream(between) as stream:
                for service in ours.services:
                    service.end(signal.SIGKILL)
                    service.start()
                    await all_in_force()
                for network in OURS:
                    await dataplanes[network].call("ResyncKernel")
                    await masqs[network].call("ResyncRules")
            assert (stream.sent > 0, stream.lost) == (True, [])
            await hosts.until(lambda found: found == before)
            await dataplanes["blue"].call("TeardownKernel")
            await masqs["blue"].call("TeardownRules")
            await hosts.until(lambda found: found == before | {"blue": []})
            for each in beside:
                await each.stop()  # it empties the chains when it ends, too
                await hosts.until(lambda found: found["red"] == before["red"])
