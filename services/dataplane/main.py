"""`flannelette-dataplane`: the parts put together."""

import os
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from flannelette.dataplane.v1 import dataplane_pb2, dataplane_pb2_grpc

try:
    from flannelette.services.dataplane.netlink import pyroute2_parts as pyroute2_parts
except ModuleNotFoundError as error:
    package = str(error.name).partition(".")[0]
    sys.exit(f"flannelette-dataplane needs the package {package}: pip install 'flannelette[dataplane]'")

from flannelette.services.dataplane.api.service import DataplaneServicer
from flannelette.services.dataplane.api.status import findings_of, reported_findings, states
from flannelette.services.dataplane.backends import BUILT
from flannelette.services.dataplane.backends.task import TaskReports, run_backend_tasks
from flannelette.services.dataplane.commands.runner import HookRunner
from flannelette.services.dataplane.controller import Controller
from flannelette.services.dataplane.diagnose.diagnosis import Diagnosis
from flannelette.services.dataplane.diagnose.host_programs import HostFiles
from flannelette.services.dataplane.diagnose.inspector import Inspector
from flannelette.services.dataplane.events.causes import Cause
from flannelette.services.dataplane.events.journal import EventKind, Journal
from flannelette.services.dataplane.events.metrics import NumberCollector
from flannelette.services.dataplane.ike.charon_actuator import CharonActuator
from flannelette.services.dataplane.kernel.namespace import require_rights, sole_dataplane
from flannelette.services.dataplane.netlink.actuator import CombinedActuator
from flannelette.services.dataplane.netlink.fou.fou_actuator import FouActuator
from flannelette.services.dataplane.netlink.ipsec.policy_socket import PolicyEvents, PolicySocket
from flannelette.services.dataplane.netlink.kernel import KernelSocket
from flannelette.services.dataplane.netlink.monitor import Monitor
from flannelette.services.dataplane.netlink.wireguard.wireguard_socket import WireguardSocket
from flannelette.services.dataplane.node.cni import CniInstaller, read_configuration
from flannelette.services.dataplane.node.own_findings import lacking_findings, own_findings
from flannelette.services.dataplane.probes.prober import Prober
from flannelette.services.dataplane.probes.record import Answering
from flannelette.services.dataplane.settings import DataplaneSettings
from flannelette.services.dataplane.watch import watch_kernel
from flannelette.services.runtime.cache.machine import MachineToken
from flannelette.services.runtime.cache.state_file import StateFile
from flannelette.services.runtime.events.event_file import EventFile
from flannelette.services.runtime.lease.feed import LeaseConnection
from flannelette.services.runtime.os.claims import Claims, claims_of
from flannelette.services.runtime.os.names import stranger_findings
from flannelette.services.runtime.os.single_instance import lock_name
from flannelette.services.runtime.process.networks import NodeNetwork
from flannelette.services.runtime.process.options import node_name
from flannelette.services.runtime.process.process import Job, Process, run
from flannelette.services.runtime.rpc.by_network import by_network
from flannelette.services.runtime.state import unwritten
from flannelette.services.runtime.telemetry.logs import get_logger
from flannelette.services.runtime.telemetry.metrics import REGISTRY
from flannelette.services.runtime.telemetry.network import in_network, job_of

log = get_logger()

_END_SECONDS = 8.0
"""For what has begun when we stop: a kernel that answers ends it long before.

`docker stop` kills after 10 s, of which open calls have had half a second, and what is said and closed after it needs
the rest.
"""
_SERVICE = "DataplaneService"
_NAME = f"flannelette.dataplane.v1.{_SERVICE}"


@asynccontextmanager
async def build(settings: DataplaneSettings, process: Process) -> AsyncIterator[None]:
    """Fills the process. Raises Misconfigured for a namespace that is not ours to change."""
    parts: dict[str, _Part] = {}
    process.health.finders.append(partial(stranger_findings, lock_name("dataplane"), claims_of("dataplane")))
    machine = MachineToken(settings.state_dir)
    process.health.finders.append(lambda: unwritten([machine]))
    async with AsyncExitStack() as stack:
        for network in settings.networks:
            with in_network(network.name):
                part = await stack.enter_async_context(
                    _network(settings.of(network), network, process, machine.token)
                )
            parts[network.name] = part
            for name, job in part.jobs.items():
                process.jobs[f"{name}{network.suffix}"] = job_of(network.name, job)
        servicer = by_network(
            {name: part.servicer for name, part in parts.items()}, dataplane_pb2.DESCRIPTOR.services_by_name[_SERVICE]
        )
        process.servicers[_NAME] = lambda server: dataplane_pb2_grpc.add_DataplaneServiceServicer_to_server(
            servicer, server
        )
        for collector in _collectors(parts):
            REGISTRY.register(collector)
            stack.callback(REGISTRY.unregister, collector)
        yield


@dataclass(frozen=True, slots=True)
class _Part:
    """What a network has of the process."""

    controller: Controller
    prober: Prober
    servicer: DataplaneServicer
    jobs: Mapping[str, Job]


@asynccontextmanager
async def _network(
    settings: DataplaneSettings, network: NodeNetwork, process: Process, machine: str
) -> AsyncIterator[_Part]:
    """One network of the node: its connection, its kernel sockets, its state. Raises Misconfigured."""
    cni = read_configuration(settings.cni_config_path, settings.cni_install_path)
    health, service, is_named = process.health.of_network(network.name), f"dataplane{network.suffix}", network.suffix
    with (
        sole_dataplane(service=service),
        Monitor() as monitor,
        KernelSocket(monitor=monitor) as rtnetlink,
        WireguardSocket() as wireguard,
        FouActuator() as fou,
        PolicySocket() as policies,
        PolicyEvents(policies.port) as policy_events,
        CharonActuator(settings.charon_socket) as charon,
        Inspector() as inspector,
        StateFile(settings.state_dir, service, machine) as state,
        Claims("dataplane", network.name) as claims,
    ):
        await require_rights(rtnetlink)
        monitor.beside = () if is_named else (policy_events,)
        place = Path(settings.state_dir, f"{service}.events") if settings.state_dir else None
        events = EventFile(place, EventKind, Cause)
        hooks = HookRunner(
            is_allowed=settings.allow_extension_commands,
            seconds=settings.extension_timeout,
            path=Path(settings.state_dir, f"{service}.hooks") if state.is_usable else None,
        )
        name = node_name(settings, os.environ)
        connection = LeaseConnection(settings.lease_address, name, process.transport, machine=machine)
        # The policies and charon are those of the one network that may have backend ipsec.
        kernel = CombinedActuator(rtnetlink, [wireguard, fou, *(() if is_named else (policies, charon)), hooks])
        dataplane = Controller(
            settings,
            connection,
            kernel,
            BUILT._replace(programs=hooks, claims=claims),
            health,
            state,
            journal=Journal(earlier=events.read()),
        )
        prober = Prober(dataplane, settings.probe_rate, keeps_offload_on=settings.checksum_offload == "on")
        renewer = dataplane.renewer
        health.finders.append(lambda: unwritten([state, hooks, events]))
        health.finders.append(
            lambda: own_findings(renewer.lease, renewer.unrenewed, connection.clock_ahead, time.time())
        )
        health.finders.append(lambda: lacking_findings(c.underlay if (c := dataplane.tracker.config) else None))
        dataplane.reporter.findings = partial(reported_findings, dataplane, prober)

        def note_backends(reports: TaskReports) -> None:
            health.set("backend", "; ".join(filter(None, reports.reasons.values())))
            before, dataplane.tracker.reports = dataplane.tracker.reports, reports
            if (before.working, before.connected) != (reports.working, reports.connected):
                dataplane.audit()

        files = HostFiles(
            settings.subnet_file,
            Path(settings.cni_install_path or HostFiles().cni / "any").parent,
            cni_state=Path(settings.cni_state_dir) if settings.cni_state_dir else None,
        )
        jobs: dict[str, Job] = {
            "feed": dataplane.feed.run,
            "holder": dataplane.renewer.run,
            "reporter": dataplane.reporter.run,
            "event file": partial(events.run, dataplane.journal),
            "cache_writer": dataplane.cache_writer.run,
            "dataplane": dataplane.run,
            "backend": partial(
                run_backend_tasks,
                lambda: [(config.backend, config.underlay) for config in dataplane.tracker.configs],
                settings.socket_dir,
                lambda: dataplane.iteration_after(dataplane.iterations),
                dataplane.audit,
                note_backends,
            ),
            "commands": partial(hooks.run, dataplane.journal.note, dataplane.audit),
            "diagnosis": Diagnosis(dataplane, inspector, files).run,
            "probes": prober.run,
            "healing": partial(watch_kernel, dataplane, kernel, rtnetlink.port),
        }
        if cni is not None:
            jobs["CNI configuration"] = partial(CniInstaller(cni, health).run, dataplane)
        servicer = DataplaneServicer(dataplane, prober, inspector, health, process.stopping)
        try:
            yield _Part(dataplane, prober, servicer, jobs)
        finally:
            if not await dataplane.lock.end(_END_SECONDS):
                log.warning("the requested operation was not completed: try again", seconds=_END_SECONDS)
            await dataplane.cache_writer.close()
            await events.close(dataplane.journal)
            await connection.close()


def _collectors(parts: Mapping[str, _Part]) -> Iterator[NumberCollector]:
    """What a scrape counts."""

    def of_each(count: Callable[[_Part], Mapping[str, int]]) -> Callable[[], dict[str, Mapping[str, int]]]:
        return lambda: {name: count(part) for name, part in parts.items()}

    yield NumberCollector(
        "flannelette_peers",
        "Peers by state, as GetStatus says",
        "state",
        of_each(lambda part: states(part.controller.programmer)),
    )
    yield NumberCollector(
        "flannelette_probed_peers",
        "Peers by whether they answer probes through the overlay: answers, silent, unknown",
        "answer",
        of_each(lambda part: {str(each): part.prober.answering[each] for each in Answering}),
    )
    yield NumberCollector(
        "flannelette_findings",
        "Problems of the host that break the overlay, by check",
        "check",
        of_each(
            lambda part: Counter(
                each.check for each in findings_of(part.controller, part.prober) if not each.is_remote
            )
        ),
    )


def main() -> None:
    """Runs the console script `flannelette-dataplane`."""
    sys.exit(run("dataplane", DataplaneSettings, build))


if __name__ == "__main__":
    main()
