"""The start of the service: what it waits for, and what it cannot work with."""

import asyncio
import os
import signal
import subprocess
import sys
from dataclasses import astuple

import grpc.aio
import pytest

from flannelette.masq.v1 import masq_pb2 as pb
from flannelette.masq.v1 import masq_pb2_grpc
from tests.hosts.masq import Host, golden
from tests.patience import PATIENCE
from tests.services.certificates import Certificates, flags
from tests.services.masq import Masq, acquire, lease_service, masq_on
from tests.waiting import contains, eventually

pytestmark = pytest.mark.usefixtures("legacy")


async def test_over_tls_a_certificate_that_is_not_trusted_is_the_reason_until_it_is(host: Host) -> None:
    ours, others = (Certificates(host.lock.parent / name) for name in ("ours", "others"))
    served, address = ours.server(), "127.0.0.1:7070"
    mine = others.client("h1-masq")
    with lease_service(host, f"--listen=unix:{host.lock.parent}/lease.sock,{address}", *flags(served)) as leases:
        await acquire(leases)
        async with masq_on(host, "--ip-masq", f"--lease-address={address}", *flags(mine)) as masq:
            await eventually(masq.reasons, contains("has signed the server's certificate"))
            for new, old in zip(astuple(ours.client("h1-masq")), astuple(mine), strict=True):
                new.replace(old)
            await masq.until()
        assert host.save() == golden("ipv4")


async def test_a_second_masq_in_the_namespace_waits_for_the_first_one_to_go_and_then_says_what_to_do(
    host: Host, tmp_path_factory: pytest.TempPathFactory
) -> None:
    places = tmp_path_factory.mktemp("second")
    words = [
        sys.executable,
        "-m",
        "flannelette.services.masq.main",
        f"--socket-dir={places}",
        f"--state-dir={places}",
    ]
    environment = host.environment | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with lease_service(host) as leases:
        await acquire(leases)
        async with masq_on(host, "--ip-masq") as first:
            await first.until()
            done = await asyncio.to_thread(
                subprocess.run,
                host.netns.command(*words),
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            assert (done.returncode, done.stderr) == (
                1,
                "flannelette-masq: another masq runs in this network namespace: stop it first: two would undo each "
                "other's rules; one for another network needs --network with the name of that\n",
            )
            assert (await first.status()).ready
            second = Masq(host, "--ip-masq", f"--socket-dir={places}")
            await asyncio.sleep(1)
            assert second.process.poll() is None, "the first one may be about to end"
        async with grpc.aio.insecure_channel(f"unix:{places}/masq.sock") as channel:
            stub = masq_pb2_grpc.MasqServiceStub(channel)
            await stub.GetStatus(pb.GetStatusRequest(), wait_for_ready=True, timeout=PATIENCE)
        await second.end(signal.SIGKILL)


@pytest.mark.parametrize(
    ("around", "arguments", "code", "line"),
    [
        (["setpriv", "--bounding-set=-net_raw", "--inh-caps=-net_raw"], ["--ip-masq"], 1, "CAP_NET_RAW"),
        ([], ["--ip-masq=perhaps"], 2, "--ip-masq is 'perhaps': use true or false"),
        ([], ["--iptables-resync=0"], 2, "--iptables-resync is 0: use at least 1 second"),
    ],
)
def test_what_cannot_work_ends_with_one_clear_line(
    host: Host, around: list[str], arguments: list[str], code: int, line: str
) -> None:
    places = (f"--socket-dir={host.lock.parent}", f"--state-dir={host.lock.parent}/state")
    done = subprocess.run(
        [*around, sys.executable, "-m", "flannelette.services.masq.main", *places, *arguments],
        env=host.environment | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("flannelette-masq: ")
    assert line in done.stderr
