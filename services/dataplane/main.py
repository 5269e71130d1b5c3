"""`flannelette-dataplane`: the parts put together."""

import os
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from flannelette.dataplane.v1 import dataplane_pb2_grpc

from services.dataplane.api.service import DataplaneServicer
from services.dataplane.api.status import findings_of, reported_findings, states
from services.dataplane.backends import BUILT
from services.dataplane.backends.task import TaskReports, run_backend_tasks
from services.dataplane.commands.runner import HookRunner
from services.dataplane.controller import Controller
from services.dataplane.diagnose.diagnosis import Diagnosis
from services.dataplane.diagnose.host_programs import HostFiles
from services.dataplane.diagnose.inspector import Inspector
from services.dataplane.events.causes import Cause
from services.dataplane.events.journal import EventKind, Journal
from services.dataplane.events.metrics import NumberCollector
from services.dataplane.ike.charon_actuator import CharonActuator
from services.dataplane.kernel.namespace import require_rights, sole_dataplane
from services.dataplane.netlink.actuator import CombinedActuator
from services.dataplane.netlink.fou.fou_actuator import FouActuator
from services.dataplane.netlink.ipsec.policy_socket import PolicyEvents, PolicySocket
from services.dataplane.netlink.kernel import KernelSocket
from services.dataplane.netlink.monitor import Monitor
from services.dataplane.netlink.wireguard.wireguard_socket import WireguardSocket
from services.dataplane.node.cni import CniInstaller, read_configuration
from services.dataplane.node.own_findings import own_findings
from services.dataplane.probes.prober import Prober
from services.dataplane.probes.record import Answering
from services.dataplane.settings import DataplaneSettings
from services.dataplane.watch import watch_kernel
from services.runtime.cache.state_file import StateFile
from services.runtime.events.event_file import EventFile
from services.runtime.lease.feed import LeaseConnection
from services.runtime.process.options import node_name, socket_address
from services.runtime.process.process import Process, run
from services.runtime.telemetry.logs import get_logger
from services.runtime.telemetry.metrics import REGISTRY

log = get_logger()

_END_SECONDS = 8.0
"""For what has begun when we stop: a kernel that answers ends it long before.

`docker stop` kills after 10 s, of which open calls have had half a second, and what is said and closed after it needs
the rest.
"""
_NAME = "flannelette.dataplane.v1.DataplaneService"


@asynccontextmanager
async def build(settings: DataplaneSettings, process: Process) -> AsyncIterator[None]:
    """Fills the process. Raises Misconfigured for a namespace that is not ours to change."""
    cni = read_configuration(settings.cni_config_path, settings.cni_install_path)
    address = settings.lease_address or socket_address(settings.socket_dir, "lease")
    with (
        sole_dataplane(),
        Monitor() as monitor,
        KernelSocket(monitor=monitor) as rtnetlink,
        WireguardSocket() as wireguard,
        FouActuator() as fou,
        PolicySocket() as policies,
        PolicyEvents(policies.port) as policy_events,
        CharonActuator(settings.charon_socket) as charon,
        Inspector() as inspector,
        StateFile(settings.state_dir, "dataplane") as state,
    ):
        await require_rights(rtnetlink)
        monitor.beside = (policy_events,)
        place = Path(settings.state_dir, "dataplane.events") if settings.state_dir else None
        events = EventFile(place, EventKind, Cause)
        hooks = HookRunner(
            is_allowed=settings.allow_extension_commands,
            seconds=settings.extension_timeout,
            path=state.path.with_suffix(".hooks") if state.is_usable else None,
        )
        connection = LeaseConnection(address, node_name(settings, os.environ), process.transport)
        kernel = CombinedActuator(rtnetlink, [wireguard, fou, policies, charon, hooks])
        dataplane = Controller(
            settings,
            connection,
            kernel,
            BUILT._replace(programs=hooks),
            process.health,
            state,
            journal=Journal(earlier=events.read()),
        )
        prober = Prober(dataplane, settings.probe_rate, keeps_offload_on=settings.checksum_offload == "on")
        renewer = dataplane.renewer
        process.health.finders.append(
            lambda: own_findings(renewer.lease, renewer.unrenewed, connection.clock_ahead, time.time())
        )
        dataplane.reporter.findings = partial(reported_findings, dataplane, prober)
        servicer = DataplaneServicer(dataplane, prober, inspector, process.health, process.stopping)
        process.servicers[_NAME] = lambda server: dataplane_pb2_grpc.add_DataplaneServiceServicer_to_server(
            servicer, server
        )
        process.jobs["feed"] = dataplane.feed.run
        process.jobs["holder"] = dataplane.renewer.run
        process.jobs["reporter"] = dataplane.reporter.run
        process.jobs["event file"] = partial(events.run, dataplane.journal)
        process.jobs["cache_writer"] = dataplane.cache_writer.run
        process.jobs["dataplane"] = dataplane.run

        def note_backends(reports: TaskReports) -> None:
            process.health.set("backend", "; ".join(filter(None, reports.reasons.values())))
            before, dataplane.tracker.reports = dataplane.tracker.reports, reports
            if (before.working, before.connected) != (reports.working, reports.connected):
                dataplane.audit()

        process.jobs["backend"] = partial(
            run_backend_tasks,
            lambda: [(config.backend, config.underlay) for config in dataplane.tracker.configs],
            settings.socket_dir,
            lambda: dataplane.iteration_after(dataplane.iterations),
            dataplane.audit,
            note_backends,
        )
        process.jobs["commands"] = partial(hooks.run, dataplane.journal.note, dataplane.audit)
        files = HostFiles(settings.subnet_file, Path(settings.cni_install_path or HostFiles().cni / "any").parent)
        process.jobs["diagnosis"] = Diagnosis(dataplane, inspector, files).run
        process.jobs["probes"] = prober.run
        process.jobs["healing"] = partial(watch_kernel, dataplane, kernel, rtnetlink.port)
        if cni is not None:
            process.jobs["CNI configuration"] = partial(CniInstaller(cni, process.health).run, dataplane)
        collectors = tuple(_collectors(dataplane, prober))
        for collector in collectors:
            REGISTRY.register(collector)
        try:
            yield
        finally:
            for collector in collectors:
                REGISTRY.unregister(collector)
            if not await dataplane.lock.end(_END_SECONDS):
                log.warning("the requested operation was not completed: try again", seconds=_END_SECONDS)
            await dataplane.cache_writer.close()
            await events.close(dataplane.journal)
            await connection.close()


def _collectors(dataplane: Controller, prober: Prober) -> Iterator[NumberCollector]:
    """What a scrape counts."""
    yield NumberCollector(
        "flannelette_peers", "Peers by state, as GetStatus says", "state", lambda: states(dataplane.programmer)
    )
    yield NumberCollector(
        "flannelette_probed_peers",
        "Peers by whether they answer probes through the overlay: answers, silent, unknown",
        "answer",
        lambda: {str(each): prober.answering[each] for each in Answering},
    )
    yield NumberCollector(
        "flannelette_findings",
        "Problems of the host that break the overlay, by check",
        "check",
        lambda: Counter(each.check for each in findings_of(dataplane, prober) if not each.is_remote),
    )


def main() -> None:
    """The console script."""
    sys.exit(run("dataplane", DataplaneSettings, build))


if __name__ == "__main__":
    main()
