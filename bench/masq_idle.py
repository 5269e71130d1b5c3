"""What an hour of masq costs in which nothing happens, in all three firewalls; and flanneld's way to watch rules."""

import asyncio
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import grpc.aio

from bench.masq import CHAINS, add_foreign, ask_each, reset
from bench.process import children, cpu_seconds, running
from bench.result import Bench, BenchFailed, Result
from flannelette.lease.v1 import lease_pb2, lease_pb2_grpc
from flannelette.masq.v1 import masq_pb2, masq_pb2_grpc
from flannelette.services.masq.firewalls.firewall import Firewall
from flannelette.services.masq.firewalls.iptables_legacy.firewall import IptablesFirewall
from flannelette.services.masq.firewalls.iptables_nft import IptablesNftFirewall

_NETWORK: Final = '{"Network":"10.5.0.0/16","Backend":{"Type":"host-gw"}}'
FIREWALLS: Final = ("nftables", "iptables-nft", "iptables-legacy")
_RESYNC_SECONDS: Final = 5
_PASSES: Final = 5
_START_SECONDS: Final = 90.0
_HOUR: Final = 3600


def run(parameters: Mapping[str, int]) -> Result:
    """Runs the bench. Raises BenchFailed."""
    seconds, figures, peers = parameters["seconds"], dict[str, float](), dict[str, float]()
    with tempfile.TemporaryDirectory() as directory, lease_service(Path(directory)):
        for firewall in FIREWALLS:
            add_foreign(firewall, 10)  # a host of its kind has rules of its own
            figures[firewall.replace("-", "_")] = _idle(Path(directory), firewall, parameters) * _HOUR / seconds
            reset(firewall)
        for peer in (IptablesNftFirewall(), IptablesFirewall(Path(directory, "xtables.lock"))):
            name = f"{peer.name} -C for each rule, every {_RESYNC_SECONDS} s"
            peers[name] = asyncio.run(_asking(peer)) * _HOUR / _RESYNC_SECONDS
    ours = max(figures.values())
    return Result(
        "masq_idle", dict(parameters), "CPU seconds an hour", ours, peers, True, ours * seconds / _HOUR, figures
    )


@contextmanager
def lease_service(directory: Path) -> Iterator[None]:
    """A lease service with the lease of this node."""
    config = directory / "net-conf.json"
    config.write_text(_NETWORK)
    flags = (f"--socket-dir={directory}", f"--net-config-path={config}", f"--store-file={directory}/leases.db")
    with running(sys.executable, "-m", "flannelette.services.lease.main", *flags):
        asyncio.run(_acquire(f"unix:{directory}/lease.sock"))
        yield


async def _acquire(address: str) -> None:
    subnet = lease_pb2.Subnet(public_address="192.0.2.1")
    request = lease_pb2.AcquireLeaseRequest(node="n1", subnets=[subnet], backend_type="host-gw")
    async with grpc.aio.insecure_channel(address) as channel:
        stub = lease_pb2_grpc.LeaseServiceStub(channel)
        await stub.AcquireLease(request, wait_for_ready=True, timeout=_START_SECONDS)


def _idle(directory: Path, firewall: str, parameters: Mapping[str, int]) -> float:
    """CPU seconds of the service and its workers. At first they settle: the checks after a repair look again."""
    with running_masq(directory, firewall) as process:
        time.sleep(parameters["settle"])
        before = cpu_seconds(process) + _workers(process)
        time.sleep(parameters["seconds"])
        return cpu_seconds(process) + _workers(process) - before


@contextmanager
def running_masq(directory: Path, firewall: str) -> "Iterator[subprocess.Popen[bytes]]":
    """masq with its rules in place. Raises BenchFailed."""
    setting = "nftables" if firewall == "nftables" else "iptables"
    places = (f"--socket-dir={directory}", f"--state-dir={directory}/state")
    flags = ("--node=n1", *places, "--ip-masq", f"--firewall={setting}")
    with running(sys.executable, "-m", "flannelette.services.masq.main", *flags) as process:
        chosen = asyncio.run(_ready(f"unix:{directory}/masq.sock"))
        if chosen != firewall:
            raise BenchFailed(f"masq chose {chosen} on a host of {firewall}")
        yield process


def cpu_of_all(process: "subprocess.Popen[bytes]") -> float:
    """CPU seconds of the service, of its workers, and of the programs that it has run."""
    ended = sum(map(int, Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[13:15]))
    return cpu_seconds(process) + _workers(process) + ended / os.sysconf("SC_CLK_TCK")


async def _ready(address: str) -> str:
    """The firewall, once its rules are in place."""
    async with grpc.aio.insecure_channel(address) as channel, asyncio.timeout(_START_SECONDS):
        stub = masq_pb2_grpc.MasqServiceStub(channel)
        while True:
            answer = await stub.GetStatus(masq_pb2.GetStatusRequest(), wait_for_ready=True)
            if answer.status.ready:
                return answer.status.firewall
            await asyncio.sleep(0.1)


def _workers(process: "subprocess.Popen[bytes]") -> float:
    return sum(int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) for pid in children(process)) / 1e9


async def _asking(firewall: Firewall) -> float:
    """CPU seconds of one pass."""
    add_foreign(firewall.name, 10)
    await firewall.check(CHAINS, repair=True)
    before = _of_children()
    for _ in range(_PASSES):
        await ask_each(firewall.name)
    took = (_of_children() - before) / _PASSES
    await firewall.close()
    reset(firewall.name)
    return took


def _of_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


MASQ_IDLE: Final = Bench("masq_idle", "an hour of masq in which nothing happens", {"seconds": 60, "settle": 12}, run)
