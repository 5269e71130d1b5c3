"""Keys that the guard refuses, in a real etcd: overlaps, leases outside the network, keys of any bytes."""

import json
from pathlib import Path

import grpc
import grpc.aio
import pytest
from flannelette.lease.v1 import lease_pb2 as pb

from tests.flanneld_network import NAMES, Network, value, watching
from tests.lease_examples import SMALL_JSON


async def test_a_lease_inside_anothers_is_refused_and_can_be_deleted(tmp_path: Path, network: Network) -> None:
    async with watching(tmp_path, network) as client:
        half = "10.5.1.0-25"
        network.put(f"subnets/{half}", value(66))
        found = await client.until_quarantined(half)
        assert (found.kind, found.other_lease) == (pb.REFUSAL_KIND_OVERLAP, NAMES[0])
        assert "which is older" in found.reason
        await client.stub.DeleteQuarantined(pb.DeleteQuarantinedRequest(key=half))
        assert f"subnets/{half}" not in network.keys
        assert half not in client.table.leases
        assert client.lost == set()
        for key, code in ((NAMES[0], grpc.StatusCode.NOT_FOUND), ("nonsense", grpc.StatusCode.NOT_FOUND)):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await client.stub.DeleteQuarantined(pb.DeleteQuarantinedRequest(key=key))
            assert refused.value.code() is code


async def test_the_lease_of_a_known_node_beats_an_older_one_and_gives_its_place_back(
    tmp_path: Path, network: Network
) -> None:
    async with watching(tmp_path, network) as client:
        wide = "10.5.1.0-23"
        holder = json.dumps({"node": "h", "public_ip": "172.16.0.66", "public_ipv6": ""})
        network.put(f"holders/{wide.replace('1.0', '0.0')}", holder)
        network.put(f"subnets/{wide.replace('1.0', '0.0')}", value(66))
        assert (await client.until_quarantined(NAMES[0])).other_lease == "10.5.0.0-23"
        network.delete("holders/10.5.0.0-23")
        found = await client.until_quarantined("10.5.0.0-23")
        assert found.other_lease == NAMES[0]
        await client.until_known(20)
        assert NAMES[0] in client.table.leases


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
