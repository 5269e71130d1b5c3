"""The command line shows leases, peers, rules and packets, as text and as JSON."""

import json

import grpc

from flannelette.dataplane.v1 import dataplane_pb2
from tests.ctl import samples as samples
from tests.ctl.fakes import FakeNode
from tests.ctl.process import run


async def test_lists_are_printed_and_the_unwell_ones_have_exit_code_1(node: FakeNode) -> None:
    ran = await run(node.directory, "leases")
    assert ran.code == 0
    assert [line.split()[0] for line in ran.out.splitlines()] == [
        "SUBNET",
        "10.5.2.0/24",
        "10.5.9.0/24",
        "10.5.10.0/24",
    ]
    ran = await run(node.directory, "peers")
    assert (ran.code, len(ran.out.splitlines())) == (1, 4)
    ran = await run(node.directory, "rules")
    assert (ran.code, len(ran.out.splitlines())) == (0, 4)
    node.lease.replies.by_method["ListLeases"] = samples.varied_leases()
    ran = await run(node.directory, "leases")
    assert ran.code == 1
    assert "the store (etcd) is away: no leader for 12 s" in ran.err


async def test_an_empty_list_is_well_only_if_the_service_is_ready(node: FakeNode) -> None:
    node.dataplane.replies.by_method["ListPeers"] = dataplane_pb2.ListPeersResponse()
    assert (await run(node.directory, "peers")).code == 0
    status = samples.dataplane_status()
    status.status.ready = False
    status.status.reasons.append("the first complete snapshot is not programmed yet")
    node.dataplane.replies.by_method["GetStatus"] = status
    ran = await run(node.directory, "peers", "-o", "json")
    assert (ran.code, ran.json["peers"]) == (1, [])
    assert ran.err == "flannelette: the first complete snapshot is not programmed yet\n"


async def test_what_is_missing_on_purpose_is_told_with_its_reason(node: FakeNode) -> None:
    status = samples.dataplane_status()
    status.status.ready = False
    status.status.reasons.append("torn down by an operator")
    node.dataplane.replies.by_method["GetStatus"] = status
    for words in (("peers",), ("peers", "h3")):
        ran = await run(node.directory, *words)
        assert (ran.code, ran.err) == (1, "flannelette: torn down by an operator\n")


async def test_no_list_shows_a_key_of_the_network_configuration(node: FakeNode) -> None:
    leases = samples.leases()
    leases.network.json = '{"Network":"10.5.0.0/16","Backend":{"Type":"wireguard","PSK":"c2VjcmV0"}}'
    node.lease.replies.by_method["ListLeases"] = leases
    ran = await run(node.directory, "-o", "json", "leases")
    assert json.loads(ran.json["network"]["json"])["Backend"] == {"Type": "wireguard", "PSK": "(hidden)"}


async def test_lists_as_json_are_the_responses(node: FakeNode) -> None:
    assert (await run(node.directory, "-o", "json", "leases")).json["leases"][0]["backend_type"] == "vxlan"
    assert (await run(node.directory, "peers", "-o", "json")).json["peers"][2]["state"] == "FAILED"
    assert (await run(node.directory, "rules", "-o", "json")).json["rules"][1]["packets"] == 12


async def test_a_packet_is_explained(node: FakeNode) -> None:
    ran = await run(node.directory, "explain", "pod", "198.51.100.9", "--mark", "0x4000")
    asked = node.masq.replies.asked[-1][1]
    assert (asked.source, asked.destination, asked.mark) == ("", "198.51.100.9", 0x4000)
    assert ran.code == 0
    assert ran.out.splitlines()[0] == samples.explanation().explanation
    assert "-j MASQUERADE --random-fully" in ran.out
    ran = await run(node.directory, "explain", "10.5.2.2", "198.51.100.9", "-o", "json")
    assert node.masq.replies.asked[-1][1].source == "10.5.2.2"
    assert ran.json["masqueraded"] is True
    ran = await run(node.directory, "explain", "pod", "198.51.100.9", "--mark", "kube")
    assert ran.code == 2
    assert "'kube' is not a number" in ran.err


async def test_one_peer_is_shown_with_its_kernel_objects(node: FakeNode) -> None:
    ran = await run(node.directory, "peers", "h3")
    asked = node.dataplane.replies.asked[0][1]
    assert (asked.name, asked.look) == ("h3", True)
    assert "missing    route 10.5.3.0/24 via 10.5.3.0 dev flannel.1" in ran.out


async def test_an_error_of_the_service_is_printed_as_it_is(node: FakeNode) -> None:
    node.dataplane.replies.by_method["ListPeers"] = (grpc.StatusCode.NOT_FOUND, "no lease has the name h7")
    node.masq.replies.by_method["ListRules"] = (grpc.StatusCode.UNAVAILABLE, "the firewall could not be read")
    ran = await run(node.directory, "peers", "h7")
    assert (ran.code, ran.err) == (1, "flannelette: no lease has the name h7\n")
    ran = await run(node.directory, "rules")
    assert (ran.code, ran.err) == (1, "flannelette: the firewall could not be read\n")
