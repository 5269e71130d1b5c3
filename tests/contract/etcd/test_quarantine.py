"""Keys that are refused, in a real etcd: leases outside the network, and keys of any bytes."""

from pathlib import Path

import grpc
import grpc.aio
import pytest

from flannelette.lease.v1 import lease_pb2 as pb
from tests.examples.leases import SMALL_JSON
from tests.flannel.network import NAMES, Network, value, watching


async def test_two_leases_that_overlap_are_both_served(tmp_path: Path, network: Network) -> None:
    """Which of them counts is decided on the nodes: `tests/unit/core/test_conflicts.py`."""
    async with watching(tmp_path, network) as client:
        half = "10.5.1.0-25"
        network.put(f"subnets/{half}", value(66))
        await client.until_known(21)
        assert {half, NAMES[0]} <= client.table.leases.keys()


async def test_a_refused_key_can_be_deleted_and_no_other(tmp_path: Path, network: Network) -> None:
    async with watching(tmp_path, network) as client:
        stray = "10.6.1.0-24"
        network.put(f"subnets/{stray}", value(66))
        assert (await client.until_quarantined(stray)).kind == pb.REFUSAL_KIND_OUTSIDE_NETWORK
        await client.stub.DeleteQuarantined(pb.DeleteQuarantinedRequest(key=stray))
        assert f"subnets/{stray}" not in network.keys
        assert client.lost == set()
        for key in (NAMES[0], "nonsense"):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await client.stub.DeleteQuarantined(pb.DeleteQuarantinedRequest(key=key))
            assert refused.value.code() is grpc.StatusCode.NOT_FOUND


async def test_a_lease_outside_the_network_is_refused_until_the_network_is_wider(
    tmp_path: Path, network: Network
) -> None:
    async with watching(tmp_path, network) as client:
        network.put("subnets/10.6.1.0-24", value(66))
        assert (await client.until_quarantined("10.6.1.0-24")).kind == pb.REFUSAL_KIND_OUTSIDE_NETWORK
        network.put("config", SMALL_JSON.replace("10.5.0.0/16", "10.0.0.0/8"))
        await client.until_known(21)
        assert "10.6.1.0-24" in client.table.leases


async def test_keys_of_any_bytes_are_told_and_deleted(tmp_path: Path, network: Network) -> None:
    async with watching(tmp_path, network) as client:
        network.put("subnets/back\\slash\n", "x")
        network.put("subnets-old/x", "x")
        network.put(f"holders/{NAMES[0]}", "x")
        for key in ("back\\\\slash\\x0a", f"{network.prefix}/subnets-old/x", f"holders/{NAMES[0]}"):
            found = await client.until_quarantined(key)
            assert "\\\\\\\\" not in found.reason, "escaped twice"
            await client.stub.DeleteQuarantined(pb.DeleteQuarantinedRequest(key=key))
        await client.until_none_quarantined()
        assert network.keys == {"config", *(f"subnets/{name}" for name in NAMES)}
        assert client.lost == set()
