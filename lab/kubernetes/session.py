"""What the user sees happen: the cluster comes up, is shown, is tried or waits, and goes."""

import asyncio
import json
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Any, Final

from rich.table import Table

from lab.cluster import Pod
from lab.kubernetes import parts, policy, trial
from lab.kubernetes.answers import answers_table, ask, unanswered
from lab.kubernetes.cluster import Cluster
from lab.kubernetes.install import clean_up_words
from lab.kubernetes.options import Options
from lab.kubernetes.parts import CACHE
from lab.reach import reach
from lab.show import Screen, matrix_table, plain_table

_SOCKET: Final = "/proc/$(pgrep -of flannelette-dataplane)/root/run/flannelette/dataplane.sock"
"""Path through /proc, because its path on the node is longer than the address of a socket may be."""
_LIST_PEERS: Final = "flannelette.dataplane.v1.DataplaneService/ListPeers"


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
            failures = await self._take_over(pods) if self._options.flannel else []
            failures += await self._look(pods)
            if self._options.once:
                return await self._try(pods, failures)
            for failure in failures:
                self._screen.failure(failure)
            self._how_to_look_inside()
            await asyncio.Event().wait()
            return 0
        finally:
            with self._screen.step("teardown", "every process has ended, and its files are gone"):
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
        with screen.step("network", f"{self._how()}; ready on every node"):
            await (cluster.install_flannel() if self._options.flannel else cluster.install())
        if self._options.policy:
            with screen.step("policy", f"{self._options.policy} on every node"):
                await policy.install(cluster, self._options)
        with screen.step("pods", "one on each node"):
            return await cluster.start_pods()

    def _how(self) -> str:
        is_chart = self._options.overlay == "helm"
        if self._options.flannel:
            return f"kube-flannel {parts.flannel_version()} by its {'chart' if is_chart else 'manifest'}"
        return f"Flannelette by the {'chart' if is_chart else f'overlay {self._options.overlay}'}"

    async def _take_over(self, pods: list[Pod]) -> list[str]:
        how = "helm upgrade" if self._options.overlay == "helm" else "the overlay in-place"
        return await self._change("take over", f"Flannelette by {how}", pods, self._cluster.take_over())

    async def _give_back(self) -> list[str]:
        how = "helm rollback" if self._options.overlay == "helm" else "its manifest"
        pods = await self._cluster.pods()
        return await self._change("give back", f"kube-flannel by {how}", pods, self._cluster.give_back())

    async def _change(self, title: str, how: str, pods: list[Pod], change: Awaitable[None]) -> list[str]:
        with self._screen.step(title, "") as step:
            outcome = await trial.under_pings(pods, change)
            step.detail = f"{how}: {outcome.sent:,} pings, {len(outcome.lost)} lost"
            step.is_good = not outcome.failures
        return outcome.failures

    async def _look(self, pods: list[Pod]) -> list[str]:
        """Shows nodes and pods, and who reaches whom; who does not, a sentence each."""
        with self._screen.step("pings", "from every pod to every other and to the outside host") as step:
            failures = await trial.still_unreached(pods)
            with reach(pods) as reaching:
                matrix, outside = await reaching.matrix(), await reaching.outside()
            step.is_good = not failures
        with self._screen.step("answers", "of nodes, the Service, host ports; to full-size packets") as step:
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
            step.detail = f"each container of Flannelette: {kills.sent:,} pings, {len(kills.lost)} lost"
            step.is_good = not kills.failures
        failures += kills.failures
        if self._options.policy:
            with self._screen.step("policies", "") as step:
                found = await policy.try_all(self._cluster, self._options, step.update)
                step.detail = (
                    f"{len(policy.SCENES)} scenes, {len(policy.DISTURBANCES)} disturbances: {len(found)} wrong"
                )
                step.is_good = not found
            failures += found
        if len(pods) > 1:
            with self._screen.step("power", "") as step:
                boot = await trial.fail_and_boot(self._cluster, pods)
                step.detail = f"fails on the last node: {boot.sent:,} pings of the others, {len(boot.lost)} lost"
                step.is_good = not boot.failures
            failures += boot.failures
        if self._options.flannel:
            failures += await self._give_back()
        return self._screen.verdict(failures)

    def _how_to_look_inside(self) -> None:
        cluster = self._cluster
        outside = f"{self._way_in} ip netns exec outside"
        lines = [
            f"kubectl='{outside} {CACHE / 'bin' / 'kubectl'} --kubeconfig={cluster.config}'",
            f"node='{' '.join(cluster.nodes[0].command())}'",
            "$kubectl get pods --all-namespaces --output wide",
            "$kubectl exec daemonset/kube-flannel-ds -n kube-flannel -- flannelette status",
            f"$node sh -c 'grpcurl -plaintext -unix {_SOCKET} {_LIST_PEERS}'",
            "$node bash",
        ]
        if self._options.overlay == "central":
            lines.insert(4, "$kubectl exec deployment/flannelette-lease -n kube-flannel -- flannelette nodes")
        self._screen.note("\n  ".join(["From a second terminal:\n", *lines]) + "\n")
        if self._options.flannel:
            self._screen.note("\n  ".join(["Back to kube-flannel:\n", *self._way_back(outside)]) + "\n")
        self._screen.note("[dim]Ctrl-C ends the cluster.[/]\n")

    def _way_back(self, outside: str) -> list[str]:
        apply = f"$kubectl apply -k {self._cluster.flannel}"
        if self._options.overlay == "helm":
            helm = f"env KUBECONFIG={self._cluster.config} {CACHE / 'bin' / 'helm'}"
            apply = f"{outside} {helm} rollback flannel -n kube-flannel"
        names = " ".join(node.name for node in self._cluster.nodes)
        clean_up = f"for each in {names}; do $kubectl {' '.join(clean_up_words('$each'))}; done"
        return [apply, "$kubectl rollout status daemonset/kube-flannel-ds -n kube-flannel", clean_up]


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
