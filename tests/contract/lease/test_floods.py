"""Nodes that are too many, and reports without end: refused or cut, and the others are served.

Regression tests of hole 4.
"""

from pathlib import Path

import grpc
import grpc.aio
import pytest

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.services.core.limits import LONGEST_DATA, LONGEST_NAME
from flannelette.services.lease.progress import MOST_FAILED
from flannelette.services.runtime.lease.wire import request_to_proto
from tests.contract.tls.test_process import embedded
from tests.examples.leases import make_request
from tests.patience import PATIENCE
from tests.services.lease import ServiceProcess, stub_of

MOST = 5


def request_of(number: int) -> pb.AcquireLeaseRequest:
    request = request_to_proto(make_request(f"n{number}", f"172.16.0.{number}"))
    request.subnets[0].vxlan.mac = f"02:00:00:00:00:{number:02x}"
    return request


async def test_no_more_leases_are_given_than_there_may_be(tmp_path: Path) -> None:
    with ServiceProcess(tmp_path, *embedded(tmp_path), f"--max-leases={MOST}") as service:
        async with stub_of(service.address) as stub:
            for number in range(1, MOST + 1):
                await stub.AcquireLease(request_of(number))
            with pytest.raises(grpc.aio.AioRpcError, match="raise --max-leases") as caught:
                await stub.AcquireLease(request_of(99))
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            await stub.AcquireLease(request_of(1))
            assert (await stub.GetStatus(pb.GetStatusRequest(), timeout=PATIENCE)).leases == MOST


async def test_what_a_node_says_of_itself_is_kept_in_part_only(tmp_path: Path) -> None:
    with ServiceProcess(tmp_path, *embedded(tmp_path)) as service:
        async with stub_of(service.address) as stub:
            await stub.AcquireLease(request_to_proto(make_request("n0", "172.16.0.1")))
            cursor = (await stub.GetStatus(pb.GetStatusRequest())).cursor
            before = service.resident_mib
            failed = [pb.FailedLease(name="x" * 8_000, reason="y" * 8_000) for _ in range(60)]  # a call has 1 MiB
            for number in range(40):
                report = pb.ReportProgressRequest(node=f"n{number}", cursor=cursor, failed=failed, failed_count=60)
                await stub.ReportProgress(report, timeout=PATIENCE)
            assert service.resident_mib < before + 60
            (node,) = [each for each in (await stub.ListNodes(pb.ListNodesRequest())).nodes if each.name == "n0"]
            assert len(node.failed) <= MOST_FAILED
            assert all(len(each.name) <= LONGEST_NAME for each in node.failed)


async def test_the_data_of_a_lease_are_short(tmp_path: Path) -> None:
    with ServiceProcess(tmp_path, *embedded(tmp_path)) as service:
        async with stub_of(service.address) as stub:
            request = request_to_proto(make_request("n1", "172.16.0.1"))
            request.backend_type = "extension"
            request.subnets[0].opaque_json = '"' + "x" * LONGEST_DATA + '"'
            with pytest.raises(grpc.aio.AioRpcError, match=f"at most {LONGEST_DATA}") as caught:
                await stub.AcquireLease(request)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
