"""`flannelette-dataplane`: the parts put together."""

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from flannelette.dataplane.v1 import dataplane_pb2_grpc

from services.dataplane.cni import CniInstaller, read_configuration
from services.dataplane.dataplane import Dataplane
from services.dataplane.diagnose.diagnosis import Diagnosis
from services.dataplane.healing import heal
from services.dataplane.metrics import FindingCollector, PeerCollector
from services.dataplane.namespace import require_rights, sole_dataplane
from services.dataplane.netlink.inspection import Inspector
from services.dataplane.netlink.monitor import Monitor
from services.dataplane.netlink.socket import KernelSocket
from services.dataplane.service import DataplaneServicer
from services.dataplane.settings import DataplaneSettings
from services.dataplane.status import states
from services.runtime.feed import LeaseConnection
from services.runtime.logs import get_logger
from services.runtime.options import node_name, socket_address
from services.runtime.process import Process, run
from services.runtime.prometheus import REGISTRY
from services.runtime.state_file import StateFile

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
        KernelSocket() as kernel,
        Inspector() as inspector,
        StateFile(settings.state_dir, "dataplane") as state,
    ):
        await require_rights(kernel)
        monitor.ignore(kernel.port)
        connection = LeaseConnection(address, node_name(settings, os.environ), process.transport)
        dataplane = Dataplane(settings, connection, kernel, process.health, state)
        servicer = DataplaneServicer(dataplane, process.health, process.stopping)
        process.servicers[_NAME] = lambda server: dataplane_pb2_grpc.add_DataplaneServiceServicer_to_server(
            servicer, server
        )
        process.jobs["feed"] = dataplane.feed.run
        process.jobs["holder"] = dataplane.holder.run
        process.jobs["reporter"] = dataplane.reporter.run
        process.jobs["recorder"] = dataplane.recorder.run
        process.jobs["dataplane"] = dataplane.run
        process.jobs["diagnosis"] = Diagnosis(dataplane, inspector).run
        process.jobs["healing"] = partial(heal, dataplane, monitor, kernel.port)
        if cni is not None:
            process.jobs["CNI configuration"] = partial(CniInstaller(cni, process.health).run, dataplane)
        peers = PeerCollector(lambda: states(dataplane.overlay))
        findings = FindingCollector(lambda: [each.check for each in dataplane.in_the_way])
        for collector in (peers, findings):
            REGISTRY.register(collector)
        try:
            yield
        finally:
            for collector in (peers, findings):
                REGISTRY.unregister(collector)
            if not await dataplane.turn.end(_END_SECONDS):
                log.warning("what an operator asked for has not come to its end: ask again", seconds=_END_SECONDS)
            await dataplane.recorder.close()
            await connection.close()


def main() -> None:
    """The console script."""
    sys.exit(run("dataplane", DataplaneSettings, build))


if __name__ == "__main__":
    main()
