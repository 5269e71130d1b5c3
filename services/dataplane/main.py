"""`flannelette-dataplane`: the parts put together."""

import os
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from flannelette.dataplane.v1 import dataplane_pb2_grpc

try:
    from flannelette.services.dataplane.netlink import pyroute2_parts as pyroute2_parts
except ModuleNotFoundError as error:
    package = str(error.name).partition(".")[0]
    sys.exit(f"flannelette-dataplane needs the package {package}: pip install 'flannelette[dataplane]'")

from flannelette.services.dataplane.api.service import DataplaneServicer
from flannelette.services.dataplane.api.status import findings_of, reported_findings, states
from flannelette.services.dataplane.backends import BUILT
from flannelette.services.dataplane.backends.backend import TaskReports, run_backend_tasks
from flannelette.services.dataplane.commands import HookRunner
from flannelette.services.dataplane.controller import Controller
from flannelette.services.dataplane.diagnose.diagnosis import Diagnosis
from flannelette.services.dataplane.diagnose.host_programs import HostFiles
from flannelette.services.dataplane.diagnose.inspector import Inspector
from flannelette.services.dataplane.events import Cause, NodeEventKind, NodeJournal, NumberCollector
from flannelette.services.dataplane.ike import CharonActuator
from flannelette.services.dataplane.netlink.actuator import CombinedActuator
from flannelette.services.dataplane.netlink.fou import FouActuator
from flannelette.services.dataplane.netlink.kernel import KernelSocket
from flannelette.services.dataplane.netlink.monitor import Monitor
from flannelette.services.dataplane.netlink.wireguard import WireguardSocket
from flannelette.services.dataplane.netlink.xfrm import PolicyEvents, PolicySocket
from flannelette.services.dataplane.node.cni import CniInstaller, read_configuration
from flannelette.services.dataplane.node.lease_renewer import own_findings
from flannelette.services.dataplane.node.path_mtus import PathMtuFile
from flannelette.services.dataplane.probes.prober import Prober
from flannelette.services.dataplane.probes.record import Answering
from flannelette.services.dataplane.settings import DataplaneSettings
from flannelette.services.dataplane.underlay import lacking_findings
from flannelette.services.dataplane.watch import watch_kernel
from flannelette.services.runtime.cache import MachineToken, StateFile
from flannelette.services.runtime.events import EventFile
from flannelette.services.runtime.lease.feed import Connect, connect_over_grpc
from flannelette.services.runtime.os.names import Claims, claims_of, lock_name, single_instance, stranger_finder
from flannelette.services.runtime.process.process import Process, run
from flannelette.services.runtime.process.settings import node_name
from flannelette.services.runtime.state import unwritten
from flannelette.services.runtime.telemetry.logs import get_logger
from flannelette.services.runtime.telemetry.metrics import REGISTRY

log = get_logger()

_END_SECONDS = 8.0
"""Seconds for what has begun when we stop: a kernel that answers ends it long before.

`docker stop` kills after 10 s, of which open calls have had half a second, and what is said and closed after it needs
the rest.
"""


@asynccontextmanager
async def build(
    settings: DataplaneSettings, process: Process, connect: Connect = connect_over_grpc
) -> AsyncIterator[None]:
    """Wires the connection, the kernel sockets and the state of the node's network.

    Raises Misconfigured for a namespace that is not ours to change.
    """
    network, settings = settings.node_network, settings.in_network()
    cni = read_configuration(settings.cni_config_path, settings.cni_install_path)
    health, service, is_named = process.health, f"dataplane{network.suffix}", settings.is_named
    machine = MachineToken(settings.state_dir)
    health.finders.append(stranger_finder(lock_name("dataplane"), claims_of("dataplane")))
    with (
        single_instance(service, "stop it first: two would undo each other's changes"),
        Monitor() as monitor,
        KernelSocket(monitor=monitor) as rtnetlink,
        WireguardSocket() as wireguard,
        FouActuator() as fou,
        PolicySocket() as policies,
        PolicyEvents(policies.port) as policy_events,
        CharonActuator(settings.charon_socket) as charon,
        Inspector() as inspector,
        StateFile(settings.state_dir, service, machine.token) as state,
        Claims("dataplane", network.name) as claims,
    ):
        await rtnetlink.require_rights()
        monitor.beside = () if is_named else (policy_events,)
        place = Path(settings.state_dir, f"{service}.events") if settings.state_dir else None
        events = EventFile(place, NodeEventKind, Cause)
        hooks = HookRunner(
            is_allowed=settings.allow_extension_commands,
            seconds=settings.extension_timeout,
            path=Path(settings.state_dir, f"{service}.hooks") if state.is_usable else None,
        )
        name = node_name(settings, os.environ)
        path_mtus = PathMtuFile(Path(settings.state_dir, f"{service}.paths") if state.is_usable else None)
        connection = connect(settings.lease_address, name, process.transport, machine.token)
        # The policies and charon are those of the one network that may have backend ipsec.
        kernel = CombinedActuator(rtnetlink, [wireguard, fou, *(() if is_named else (policies, charon)), hooks])
        dataplane = Controller(
            settings,
            connection,
            kernel,
            BUILT._replace(programs=hooks, claims=claims),
            health,
            state,
            journal=NodeJournal(earlier=events.read()),
            path_mtu_file=path_mtus,
        )
        prober = Prober(dataplane, settings.probe_rate, keeps_offload_on=settings.checksum_offload == "on")
        renewer = dataplane.renewer
        health.finders.append(lambda: unwritten([machine, state, hooks, events, path_mtus]))
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
        process.jobs |= {
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
            process.jobs["CNI configuration"] = partial(CniInstaller(cni, health).run, dataplane)
        servicer = DataplaneServicer(dataplane, prober, inspector, health, process.stopping)
        process.servicers["flannelette.dataplane.v1.DataplaneService"] = lambda server: (
            dataplane_pb2_grpc.add_DataplaneServiceServicer_to_server(servicer, server)
        )
        collectors = _collectors(dataplane, prober)
        for collector in collectors:
            REGISTRY.register(collector)
        try:
            yield
        finally:
            for collector in collectors:
                REGISTRY.unregister(collector)
            if not await dataplane.lock.end(_END_SECONDS):
                log.warning("the requested operation was not completed: try again", seconds=_END_SECONDS)
            await dataplane.cache_writer.write()
            await events.close(dataplane.journal)
            await connection.close()


def _collectors(dataplane: Controller, prober: Prober) -> tuple[NumberCollector, ...]:
    """What a scrape counts."""
    return (
        NumberCollector(
            "flannelette_peers",
            "Peers by state, as GetStatus says",
            ["state"],
            lambda: {(state,): number for state, number in states(dataplane.programmer).items()},
        ),
        NumberCollector(
            "flannelette_probed_peers",
            "Peers by whether they answer probes through the overlay: answers, silent, unknown",
            ["answer"],
            lambda: {(str(each),): prober.answering[each] for each in Answering},
        ),
        NumberCollector(
            "flannelette_peer_paths",
            "Paths to peers through the overlay, by the bytes of the largest packet that should pass, and of the one "
            "that does (unknown: not known yet)",
            ["family", "configured", "measured"],
            lambda: dict(prober.path_classes),
        ),
        NumberCollector(
            "flannelette_findings",
            "Problems of the host that break the overlay, by check",
            ["check"],
            lambda: Counter((each.check,) for each in findings_of(dataplane, prober) if not each.is_remote),
        ),
    )


def main() -> None:
    """Runs the console script `flannelette-dataplane`."""
    sys.exit(run("dataplane", DataplaneSettings, build))


if __name__ == "__main__":
    main()
