"""What --import and --export say, and which leases of other clusters are in force."""

import asyncio
import errno
import os
from base64 import b64encode
from collections.abc import Iterable, Sequence
from dataclasses import replace
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest

from flannelette.services.core.errors import Misconfigured
from flannelette.services.core.leases.conflicts import losses
from flannelette.services.core.leases.lease import Lease, Subnet, VxlanData
from flannelette.services.core.leases.table import Removed, Upserted
from flannelette.services.lease.admission import AT_ONCE, SECONDS_A_CHANGE
from flannelette.services.lease.imports.cluster import ImportedCluster, exported
from flannelette.services.lease.imports.policy import (
    ClusterLeases,
    Export,
    Foreign,
    mismatch,
    parse_export,
    parse_imports,
)
from flannelette.services.lease.settings import LeaseSettings
from flannelette.services.lease.stores.store import Changed, Snapshot
from flannelette.services.lease.watch import Broker
from flannelette.services.runtime import state
from flannelette.services.runtime.lease.wire import network_from_proto, network_to_proto
from flannelette.services.runtime.rpc.transport import PLAIN
from tests.examples.leases import SMALL, address, by_name, mac, network
from tests.virtual_time import run_virtually

WEST = "west=192.0.2.7:7070,allow=10.6.0.0/16"


def lease(name: str, *cidrs: str, number: int = 1, cluster: str = "") -> Lease:
    subnets = tuple(Subnet(ip_network(cidr), address(number), VxlanData(1, mac(number))) for cidr in cidrs)
    return Lease(name, f"node-{name}", subnets, "vxlan", cluster=cluster)


def test_an_import_is_a_name_an_address_and_ranges_and_perhaps_files() -> None:
    files = "cert=/a.crt,key=/a.key,ca=/ca.crt,server-name=lease"
    (one, two) = parse_imports([f"{WEST},allow=fd00:10:6::/48 north=unix:/n.sock,allow=10.7.0.0/16,{files}"])
    assert (one.name, one.address, list(map(str, one.allow))) == (
        "west",
        "192.0.2.7:7070",
        ["10.6.0.0/16", "fd00:10:6::/48"],
    )
    assert (two.files, two.server_name) == (("/a.crt", "/a.key", "/ca.crt"), "lease")


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["west"], "write NAME=ADDRESS"),
        (["we/st=h:1,allow=10.6.0.0/16"], "write NAME=ADDRESS"),
        (["west=h:1"], "lacks allow=CIDR"),
        (["west=,allow=10.6.0.0/16"], "lacks the address"),
        (["west=h:1,allow=10.6.0.1/16"], "has bits after its prefix length: use a network such as"),
        (["west=h:1,allow=0.0.0.0/0"], "which is every address: use a network such as"),
        (["west=h:1,allow=10.6.0.0/16,color=red"], "'color=red' is no option"),
        (["west=h:1,allow=10.6.0.0/16,ca="], "west: ca= has no value"),
        (["west=h:1,allow=10.6.0.0/16,ca=a,ca=b"], "west: ca= is given twice"),
        (["west=h:1,allow=10.6.0.0/16,cert=a"], "give all three or none"),
        ([WEST, WEST], "west is given twice"),
        ([WEST, "north=h:1,allow=10.0.0.0/8"], "10.0.0.0/8, which overlaps 10.6.0.0/16 of --import west"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_what_to_write(texts: list[str], words: str) -> None:
    with pytest.raises(Misconfigured, match="--import") as caught:
        parse_imports(texts)
    assert words in str(caught.value)


def test_a_relay_has_no_imports_of_its_own_and_nobody_imports_from_himself() -> None:
    with pytest.raises(Misconfigured, match="the lease service above"):
        LeaseSettings(store="relay", upstream="unix:/a", import_=(WEST,))
    with pytest.raises(Misconfigured, match="this lease service itself"):
        LeaseSettings(listen="192.0.2.7:7070", import_=(WEST,))


def test_an_export_shows_own_leases_in_its_ranges_and_no_reservation_that_nobody_uses() -> None:
    inside, outside = lease("a", "10.5.1.0/24"), lease("b", "10.5.200.0/24")
    idle = replace(inside, reserved=True, subnets=(Subnet(inside.cidrs[0]),))
    assert [Export().shows(each) for each in (inside, outside, idle)] == [True, True, False]
    some = parse_export(["10.5.0.0/17,10.9.0.0/16"])
    assert [some.shows(each) for each in (inside, outside)] == [True, False]
    assert not parse_export(["none"]).shows(inside)
    assert not Export().shows(replace(inside, cluster="north"))
    with pytest.raises(Misconfigured, match="--export"):
        parse_export(["10.5.0.0"])


def of_west(*leases: Lease, allow: str = "10.6.0.0/16") -> tuple[Foreign, ClusterLeases]:
    cluster = ClusterLeases(parse_imports([f"west=h:1,allow={allow}"])[0], by_name(*leases))
    return Foreign([cluster]), cluster


def test_each_lease_is_judged_for_itself_and_again_when_the_own_network_changes() -> None:
    good = lease("a", "10.6.1.0/24")
    both = lease("b", "10.6.2.0/24", "fd00:10:6::/64")
    third = lease("c", "10.6.3.0/24", cluster="north")
    foreign, west = of_west(good, both, third)
    assert foreign.judge(west) == ()  # not before the own network is known
    merged = foreign.merged(Snapshot({}, SMALL), {})
    assert isinstance(merged, Snapshot)
    assert merged.leases.keys() == {"west/a"}
    assert merged.network is not None
    assert merged.network.imported == (ip_network("10.6.0.0/16"),)
    assert west.refused.keys() == {"west/b", "west/c"}
    wider = foreign.merged(Changed(network=network('{"Network":"10.4.0.0/14","Backend":{"Type":"vxlan"}}')), {})
    assert isinstance(wider, Changed)
    assert len(wider.changes) == 1
    assert foreign.leases == {}
    assert foreign.claimed == (ip_network("10.6.0.0/16"),)
    assert west.refused.keys() == {"10.6.0.0/16", "west/a", "west/b", "west/c"}
    foreign.merged(Changed(network=SMALL), {})
    assert foreign.leases.keys() == {"west/a"}


def full_broker(own: int, shown: Sequence[int], most: int = 6) -> tuple[Broker, ClusterLeases]:
    """A table of at most 6 leases."""
    foreign, west = of_west(*(lease(f"w{n}", f"10.6.{n}.0/24") for n in shown))
    broker = Broker("fake", epoch="e")
    broker.foreign = Foreign(foreign.clusters, most=most)
    broker.take(Snapshot(by_name(*(lease(f"o{n}", f"10.5.{n}.0/24") for n in range(own))), SMALL))
    return broker, west


@pytest.mark.parametrize("shown", [(1, 2, 3, 4, 5), (5, 3, 1, 4, 2)])
def test_the_first_leases_by_name_are_imported_where_there_is_no_room_for_all(shown: Sequence[int]) -> None:
    broker, west = full_broker(4, shown)
    assert west.in_force.keys() == {"west/w1", "west/w2"}
    assert west.refused.keys() == {"west/w3", "west/w4", "west/w5"}
    assert "the import is full" in west.refused["west/w3"]
    assert len(broker.table.leases) == 6


def test_leases_that_were_refused_for_want_of_room_come_when_there_is_some() -> None:
    broker, west = full_broker(4, range(1, 6))
    broker.take(Changed((Removed("o1"),)))
    assert west.in_force.keys() == {"west/w1", "west/w2", "west/w3"} == broker.table.leases.keys() - broker.own.keys()
    del west.shown["w1"]
    broker.take(Changed(broker.foreign.judge(west, ["w1"])))
    assert west.in_force.keys() == {"west/w2", "west/w3", "west/w4"}
    assert west.refused.keys() == {"west/w5"} == {f"west/{name}" for name in west.crowded_out}
    assert broker.table.leases.keys() - broker.own.keys() == west.in_force.keys()


def test_imported_leases_make_room_for_own_ones_that_another_program_has_written() -> None:
    broker, west = full_broker(4, range(1, 6))
    ours = [Upserted(lease(f"o{n}", f"10.5.{n}.0/24")) for n in (3, 4)]  # o3 is known
    broker.take(Changed(tuple(ours)))
    assert west.in_force.keys() == {"west/w1"} == broker.table.leases.keys() - broker.own.keys()
    broker.take(Snapshot(by_name(*(lease(f"o{n}", f"10.5.{n}.0/24") for n in range(8))), SMALL))
    assert (west.in_force, len(broker.table.leases)) == ({}, 8)
    broker.take(Snapshot(by_name(*(lease(f"o{n}", f"10.5.{n}.0/24") for n in range(2))), SMALL))
    assert west.in_force.keys() == {"west/w1", "west/w2", "west/w3"}
    assert len(broker.table.leases) == 5


def test_an_imported_lease_that_covers_the_underlay_of_the_own_nodes_loses() -> None:
    """Where `allow` is wide; so does one whose public address lies behind another imported one."""
    config = replace(SMALL, imported=(ip_network("172.16.0.0/12"),))
    ours = lease("z", "10.5.1.0/24")
    assert ours.subnets[0].public_address in ip_network("172.16.0.0/24")
    covering = replace(lease("west/a", "172.16.0.0/24", number=2), cluster="west")
    plain = replace(lease("west/b", "172.20.1.0/24", number=3), cluster="west")
    inside = Subnet(ip_network("172.20.2.0/24"), ip_address("172.20.1.9"), VxlanData(1, mac(4)))
    nested = Lease("west/c", "west/c", (inside,), "vxlan", cluster="west")
    found = losses(config, [(each, each.subnets[0]) for each in (covering, ours, plain, nested)])
    assert {name: loss.kind for (name, _), loss in found.items()} == {
        "west/a": "peer-address",
        "west/c": "inner-address",
    }


def test_of_two_leases_with_one_mac_the_imported_one_loses_however_old() -> None:
    foreign, _ = of_west(replace(lease("a", "10.6.1.0/24"), claim_order=1))
    foreign.merged(Snapshot({}, SMALL), {})
    ours, theirs = lease("z", "10.5.1.0/24"), foreign.leases["west/a"]
    found = losses(SMALL, [(each, each.subnets[0]) for each in (theirs, ours)])
    assert [(name, loss.winner.name) for (name, _), loss in found.items()] == [("west/a", "z")]
    assert "which is of this cluster" in next(iter(found.values())).reason


@pytest.mark.parametrize(
    ("backend", "reason"),
    [
        ('{"Type":"vxlan"}', ""),
        ('{"Type":"vxlan","VNI":1,"Port":8472}', ""),
        ('{"Type":"vxlan","Port":4789}', "its vxlan has Port 4789, and here it is 8472"),
        ('{"Type":"vxlan","Port":0}', ""),
        ('{"Type":"vxlan","VNI":0}', "its vxlan has VNI 0, and here it is 1"),
        ('{"Type":"host-gw"}', "its backend is host-gw, and here it is vxlan"),
    ],
)
def test_clusters_with_other_backends_cannot_be_peers(backend: str, reason: str) -> None:
    assert mismatch(SMALL, network(f'{{"Network":"10.6.0.0/16","Backend":{backend}}}')) == reason


def test_an_option_of_another_backend_may_be_anything_where_two_clusters_are_compared() -> None:
    theirs = network('{"Network":"10.6.0.0/16","Backend":{"Type":"vxlan","PSK":5}}')
    assert mismatch(SMALL, theirs) == ""


PSK = "ab" * 48
WG_PSK, OTHER_WG_PSK = b64encode(b"k" * 32).decode(), b64encode(b"o" * 32).decode()


@pytest.mark.parametrize(
    ("here", "there", "reason"),
    [
        ('{"Type":"wireguard"}', '{"Type":"wireguard","ListenPort":51899}', ""),  # a lease says its port
        ('{"Type":"wireguard"}', '{"Type":"wireguard","Mode":"auto"}', "its wireguard has Mode auto, and here it is"),
        (f'{{"Type":"wireguard","PSK":"{WG_PSK}"}}', f'{{"Type":"wireguard","PSK":"{WG_PSK}"}}', ""),
        (f'{{"Type":"wireguard","PSK":"{WG_PSK}"}}', f'{{"Type":"wireguard","PSK":"{OTHER_WG_PSK}"}}', "another PSK"),
        ('{"Type":"wireguard"}', f'{{"Type":"wireguard","PSK":"{WG_PSK}"}}', "another PSK"),
        (f'{{"Type":"wireguard","PSK":"{WG_PSK}"}}', '{"Type":"wireguard"}', "another PSK"),
        ('{"Type":"vxlan"}', '{"Type":"vxlan","VNI":0}', "its vxlan has VNI 0"),
        (f'{{"Type":"ipsec","PSK":"{PSK}"}}', f'{{"Type":"ipsec","PSK":"{PSK}","UDPEncap":true}}', ""),
        (f'{{"Type":"ipsec","PSK":"{PSK}"}}', f'{{"Type":"ipsec","PSK":"0{PSK}"}}', "its ipsec has another PSK"),
        (
            f'{{"Type":"ipsec","PSK":"{PSK}"}}',
            f'{{"Type":"ipsec","PSK":"{PSK}","ESPProposal":"aes256-sha256"}}',
            "its ipsec has ESPProposal aes256-sha256",
        ),
    ],
)
def test_what_two_clusters_must_have_alike_is_compared_without_their_keys(here: str, there: str, reason: str) -> None:
    own, theirs = (network(f'{{"Network":"10.6.0.0/16","Backend":{each}}}') for each in (here, there))
    message = network_to_proto(exported(theirs))
    assert all(key not in message.json for key in (PSK, WG_PSK, OTHER_WG_PSK))
    found = mismatch(own, network_from_proto(message))
    assert found.startswith(reason) if reason.startswith("its") else (reason in found and bool(found) == bool(reason))


def test_imports_that_a_full_disk_has_not_taken_are_written_once_it_does_and_not_every_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leases = by_name(
        *(lease(f"10.6.{number}.0-24", f"10.6.{number}.0/24", number=number) for number in range(1, 201))
    )
    writes = list[bool]()

    async def life() -> None:
        cluster, is_full = imported(tmp_path / "file"), True

        def replace_bytes(path: Path, parts: Iterable[bytes], *_: object, **__: object) -> None:
            writes.append(not is_full)
            if is_full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            path.write_bytes(b"".join(parts))

        monkeypatch.setattr(state, "replace_bytes", replace_bytes)
        keeping = asyncio.create_task(cluster.keep())
        cluster.take(Snapshot(leases, SMALL), 0.0)
        await asyncio.sleep(300)
        assert cluster.file.problem
        is_full = False
        await asyncio.sleep(20)
        assert not cluster.file.problem
        assert imported(tmp_path / "file")._remembered == leases
        assert 20 <= len(writes) <= 31, "without another change, and not without pause"
        writes.clear()
        for number in range(60):
            cluster.take(Changed((Upserted(replace(leases["10.6.1.0-24"], expires_at=float(number + 1))),)), 0.0)
            await asyncio.sleep(1)
        assert 20 <= len(writes) <= 31, "the more leases, the longer the pause"
        keeping.cancel()

    run_virtually(life())


def imported(file: Path) -> ImportedCluster:
    (policy,) = parse_imports([f"west=unix:{file}.sock,allow=10.6.0.0/16"])
    return ImportedCluster(policy, PLAIN, Broker("fake", epoch="epoch"), file, 0.5, 30.0, 1000)


def test_a_node_of_another_cluster_that_changes_all_the_time_is_held_and_named_too(tmp_path: Path) -> None:
    async def life() -> None:
        cluster, name = imported(tmp_path / "import"), "10.6.1.0-24"
        clock = asyncio.get_running_loop().time
        others = by_name(lease("10.6.2.0-24", "10.6.2.0/24", number=200))
        cluster.take(Snapshot({name: lease(name, "10.6.1.0/24"), **others}, SMALL), clock())
        looking = asyncio.create_task(cluster._look_after())
        seen = set()
        for number in range(2, 162):
            cluster.take(Changed((Upserted(lease(name, "10.6.1.0/24", number=number)),)), clock())
            seen.add(cluster.leases.shown[name])
            await asyncio.sleep(1 / 80)
        assert len(seen) <= AT_ONCE + 1
        (found,) = [each for each in cluster.findings() if each.code == "lease.flapping"]
        assert "node west/" in found.problem
        await asyncio.sleep(2 * SECONDS_A_CHANGE)
        assert cluster.leases.shown[name] == lease(name, "10.6.1.0/24", number=161)
        looking.cancel()

    run_virtually(life())
