"""`flannelette leases` says when leases in etcd expire: those of every node, also by a relay."""

import re
from pathlib import Path

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.services.runtime.lease.wire import request_to_proto
from tests.ctl.process import run
from tests.etcd.server import EtcdServer
from tests.examples.leases import make_request
from tests.services.lease import ServiceProcess, stub_of
from tests.waiting import eventually

NETWORK = '{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}'
FLANNELD = '{"PublicIP":"172.16.0.9","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"%s"}}'


async def listed(directory: Path) -> dict[str, str]:
    """EXPIRES of each subnet."""
    ran = await run(directory, "leases")
    return {row.split()[0]: row for row in ran.out.splitlines()[1:] if row}


async def test_the_leases_of_all_nodes_show_their_end(tmp_path: Path, own_etcd: EtcdServer) -> None:
    own_etcd.etcdctl("put", "/coreos.com/network/config", NETWORK)
    number = re.search(r"lease (\w+) granted", own_etcd.etcdctl("lease", "grant", "7200"))
    assert number is not None
    prefix = "/coreos.com/network/subnets"
    own_etcd.etcdctl("put", f"{prefix}/10.5.9.0-24", FLANNELD % "02:00:00:00:00:09", f"--lease={number[1]}")
    own_etcd.etcdctl("put", f"{prefix}/10.5.8.0-24", FLANNELD.replace(".9", ".8") % "02:00:00:00:00:08")
    one, below = tmp_path / "one", tmp_path / "below"
    one.mkdir()
    below.mkdir()
    store = ("--store=etcd", f"--etcd-endpoints={own_etcd.endpoint}")
    with (
        ServiceProcess(one, *store, "--central") as central,
        ServiceProcess(below, "--store=relay", f"--upstream={central.address}", "--node=node-a") as relay,
    ):
        async with stub_of(central.address) as stub, stub_of(relay.address) as under:
            await stub.AcquireLease(request_to_proto(make_request("node-a", "172.16.0.1")))

            async def times(asked: bool) -> list[list[int]]:
                answers = [await each.ListLeases(pb.ListLeasesRequest(expiry=asked)) for each in (stub, under)]
                return [sorted(each.expire_time.seconds for each in answer.leases) for answer in answers]

            await eventually(lambda: times(asked=False), lambda seen: [len(found) for found in seen] == [3, 3])
            for never, soon, late in await times(asked=True):
                assert (never, 70_000 < late - soon < 90_000) == (0, True)
            assert [found[:2] for found in await times(asked=False)] == [[0, 0], [0, 0]]
            shown = await listed(one)
    assert "1 h" in shown["10.5.9.0/24"] or "2 h" in shown["10.5.9.0/24"], shown
    assert "never" in shown["10.5.8.0/24"], shown
