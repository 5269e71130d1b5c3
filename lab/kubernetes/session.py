"""What the user sees happen: the cluster comes up, is shown, is tried or waits, and goes."""

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.table import Table

from lab.cluster import Pod
from lab.kubernetes import trial
from lab.kubernetes.answers import answers_table, ask, unanswered
from lab.kubernetes.cluster import Cluster
from lab.kubernetes.options import Options
from lab.kubernetes.parts import CACHE
from lab.reach import reach, unreached
from lab.show import Screen, matrix_table, plain_table


class Session:
    """One cluster from start to end."""

    def __init__(self, options: Options, way_in: str) -> None:
        self._options = options
        self._way_in = way_in
        self._screen = Screen()
        self._cluster = Cluster(options)

    async def run(self) -> int:
        """Returns the exit code. Whatever happens, no process is left."""
        try:
            pods = await self._come_up()
            failures = await self._look(pods)
            if self._options.once:
                return await self._try(pods, failures)
            for failure in failures:
                self._screen.failure(failure)
            self._how_to_look_inside()
            await asyncio.Event().wait()
            return 0
        finally:
            with self._screen.step("teardown", "every process has ended; namespaces and files go with them"):
                self._cluster.stop()

    async def _come_up(self) -> list[Pod]:
        cluster, screen = self._cluster, self._screen
        await cluster.build()
        with screen.step("images", "in a containerd of the cache") as step:
            step.update("a minute or two when they are new")
            images = await cluster.import_images()
        with screen.step("nodes", "namespaces, cgroups and a containerd each"):
            await cluster.boot(images)
        with screen.step("kubeadm", "init on h1, join on the others"):
            await cluster.join()
        how = "the chart" if self._options.overlay == "helm" else f"the overlay {self._options.overlay}"
        with screen.step("network", f"Flannelette by {how}; ready on every node"):
            await cluster.install()
        with screen.step("pods", "one on each node"):
            return await cluster.start_pods()

    async def _look(self, pods: list[Pod]) -> list[str]:
        """Shows nodes and pods, and who reaches whom; who does not, a sentence each."""
        with self._screen.step("pings", "from every pod to every other and to the outside host") as step:
            with reach(pods) as reaching:
                matrix, outside = await reaching.matrix(), await reaching.outside()
            failures = list(unreached(matrix, outside))
            step.is_good = not failures
        with self._screen.step("answers", "of nodes, the Service, ports of nodes; to packets of full size") as step:
            answers = await ask(pods, await self._cluster.service())
            more = list(unanswered(answers))
            step.is_good = not more
        items = json.loads(await self._cluster.kubectl("get", "nodes", "--output=json"))["items"]
        one_each = [pod for pod in pods if pod.address.version == pods[0].address.version]
        self._screen.show(_nodes_table(pods, items), matrix_table(one_each, matrix, outside), answers_table(answers))
        return failures + more

    async def _try(self, pods: list[Pod], failures: list[str]) -> int:
        with self._screen.step("kill -9", "") as step:
            kills = await trial.kill_each(self._cluster, pods, step.update)
            step.detail = f"every container of Flannelette in turn: {kills.sent:,} pings, {len(kills.lost)} lost"
            step.is_good = not kills.failures
        failures += kills.failures
        if len(pods) > 1:
            with self._screen.step("power", "") as step:
                boot = await trial.fail_and_boot(self._cluster, pods)
                step.detail = (
                    f"failed on the last node, and back: {boot.sent:,} pings of the others, {len(boot.lost)} lost"
                )
                step.is_good = not boot.failures
            failures += boot.failures
        return self._screen.verdict(failures)

    def _how_to_look_inside(self) -> None:
        outside = f"{self._way_in} ip netns exec outside"
        kubectl = f"{outside} {CACHE / 'bin' / 'kubectl'} --kubeconfig={self._cluster.config}"
        node = self._cluster.nodes[0]
        self._screen.note(
            "From a second terminal:\n\n"
            f"  kubectl='{kubectl}'\n"
            "  $kubectl get pods --all-namespaces --output wide\n"
            "  $kubectl exec daemonset/kube-flannel-ds -n kube-flannel -c dataplane -- flannelette status\n"
            f"  {' '.join(node.command('bash'))}\n\n"
            "[dim]Ctrl-C ends the cluster.[/]\n"
        )


def _nodes_table(pods: Sequence[Pod], items: Iterable[Mapping[str, Any]]) -> Table:
    """A row per node, as the API server has it."""
    table = plain_table("node", "address", "pod network", "pod", "kubelet")
    for item in sorted(items, key=lambda item: int(item["metadata"]["name"][1:])):
        name, status = item["metadata"]["name"], item["status"]
        addresses = [each["address"] for each in status["addresses"] if each["type"] == "InternalIP"]
        own = [str(pod.address) for pod in pods if pod.host.name == name]
        cells = ("\n".join(cell) for cell in (addresses, item["spec"]["podCIDRs"], own))
        table.add_row(name, *cells, status["nodeInfo"]["kubeletVersion"])
    return table
