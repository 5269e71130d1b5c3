"""A dataplane with two peers, what the kernel has for them, and when it has all of it again."""

from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from typing import NamedTuple

from tests.hosts.dataplane import Cluster, Running, cluster_in
from tests.hosts.namespaces import NamespaceMaker
from tests.waiting import equals, eventually

SUBNETS = ("10.5.53.0/24", "10.5.97.0/24")
ROUTES = [
    "10.5.53.0/24 via 10.5.53.0 dev flannel.1 proto 77 metric 1334 onlink",
    "10.5.97.0/24 via 10.5.97.0 dev flannel.1 proto 77 metric 1378 onlink",
]
FDB = [
    "06:0c:56:6d:fb:b3 dst 10.99.0.12 self permanent",
    "0e:9d:40:24:9e:77 dst 10.99.0.13 self permanent",
]
NEIGHBOURS = ["10.5.53.0 lladdr 06:0c:56:6d:fb:b3 PERMANENT", "10.5.97.0 lladdr 0e:9d:40:24:9e:77 PERMANENT"]


@asynccontextmanager
async def undisturbed(cluster: Cluster) -> AsyncIterator[Running]:
    """A dataplane with the two peers above, its comparisons seldom, and nothing left to happen by itself."""
    async with cluster.dataplane("--audit-interval=600") as made:
        await made.until()
        await join(cluster)
        await made.until(peers=2)
        await cluster.quiet()
        await made.quiet()
        yield made


class Scene(NamedTuple):
    """Such a dataplane, and where it runs."""

    cluster: Cluster
    running: Running


@asynccontextmanager
async def two_peers(_: None) -> AsyncIterator[Scene]:
    with ExitStack() as ending:
        make_netns = NamespaceMaker()
        ending.callback(make_netns.close)
        cluster = ending.enter_context(cluster_in(make_netns()))
        async with undisturbed(cluster) as running:
            yield Scene(cluster, running)


def state_of(scene: Scene) -> tuple[object, ...]:
    """What a test has to leave as it was, if others are to have its scene: all but the numbers of the interfaces."""
    links = [line.partition(": ")[2] for line in scene.cluster.ip("-d -o link show").splitlines()]
    kernel = scene.cluster.ip("route show"), links, scene.cluster.ip("-br addr show")
    return programmed(scene.cluster), kernel, scene.running.process.poll(), scene.cluster.leases.is_running


async def join(cluster: Cluster) -> None:
    await cluster.join("n2", "10.99.0.12", "06:0c:56:6d:fb:b3", SUBNETS[0])
    await cluster.join("n3", "10.99.0.13", "0e:9d:40:24:9e:77", SUBNETS[1])


def programmed(cluster: Cluster) -> tuple[list[str], ...]:
    if "flannel.1" not in cluster.ip("-br link"):
        return ()
    routes = [route for route in cluster.routes() if " proto 77 " in route]
    return routes, cluster.fdb(), cluster.neighbours()


COMPLETE = (ROUTES, FDB, NEIGHBOURS)


async def healed(cluster: Cluster) -> None:
    """Returns once everything is back: by an event, for the next audit is minutes away. How fast, a bench tells."""
    await eventually(lambda: programmed(cluster), equals(COMPLETE))
