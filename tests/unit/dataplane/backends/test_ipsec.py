"""ipsec: options, the objects of node and peers, and what no text shows."""

import re
from collections.abc import Iterable
from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest

from flannelette.services.core.backend_types import IpsecOptions
from flannelette.services.core.errors import InvalidInput
from flannelette.services.core.family import IPV4
from flannelette.services.core.formats.gojson import GoObject
from flannelette.services.core.leases.lease import Lease, Subnet
from flannelette.services.dataplane.backends.backend import NodeIdentity, NodeLinks
from flannelette.services.dataplane.backends.ipsec import Ipsec
from flannelette.services.dataplane.ike import connection_section, key_section
from flannelette.services.dataplane.kernel.reconciler import OwnershipRules, classify, flannel_shape
from flannelette.services.dataplane.links.interfaces import Device, as_created, link_changes
from flannelette.services.dataplane.netlink.kinds import command, text
from flannelette.services.dataplane.netlink.objects import (
    IkeConnection,
    IkeKey,
    KernelObject,
    Plan,
    XfrmPolicy,
    steps,
)
from tests.examples.dataplane import UNDERLAY
from tests.examples.leases import network

PSK = "0123456789abcdef" * 6
NETWORK = '{"Network":"10.5.0.0/16","Backend":{"Type":"ipsec"%s}}'
LINKS = NodeLinks(
    UNDERLAY, {IPV4: Device("flannel.ipsec", 7, "", 1423, "")}, 77, networks=(ip_network("10.5.0.0/16"),)
)
OWN = (ip_network("10.5.27.0/24"),)
PEER = Subnet(ip_network("10.5.53.0/24"), ip_address("10.99.0.12"))
NAMES = {2: "eth0", 7: "flannel.ipsec"}


def options(words: str = f'"PSK":"{PSK}"') -> Ipsec:
    return Ipsec.of(network(NETWORK % (words and f",{words}")).options)


def words(objects: Iterable[KernelObject]) -> list[str]:
    return [text(item, NAMES) for item in sorted(objects)]


def test_a_peer_is_three_policies_a_connection_its_key_and_a_route_with_an_own_source() -> None:
    tunnel = "proto esp reqid 11 mode tunnel"
    assert words(options().peer_objects([PEER], OWN, LINKS)) == [
        "src 10.5.53.0/24 dst 10.5.27.0/24 dir in priority 26220 tmpl src 10.99.0.12 dst 10.99.0.11 " + tunnel,
        "src 10.5.27.0/24 dst 10.5.53.0/24 dir out priority 26220 tmpl src 10.99.0.11 dst 10.99.0.12 " + tunnel,
        "src 10.5.53.0/24 dst 10.5.27.0/24 dir fwd priority 26220 tmpl src 10.99.0.12 dst 10.99.0.11 " + tunnel,
        "shared flannelette-10.99.0.12 type IKE owners 10.99.0.12 data (hidden)",
        "conn 10.99.0.11 10.5.27.0/24 === 10.99.0.12 10.5.53.0/24 esp aes128gcm16-sha256-prfsha256-ecp256",
        "10.5.53.0/24 via 10.99.0.12 dev eth0 proto 77 src 10.5.27.0 metric 1334 onlink",
    ]


def test_the_node_has_its_key_and_drops_what_has_no_peer_but_not_its_own_pods() -> None:
    assert words(options().node_objects(OWN, LINKS)) == [
        "src 10.5.0.0/16 dst 10.5.27.0/24 dir in action block priority 1718378863",
        "src 10.5.27.0/24 dst 10.5.27.0/24 dir in priority 1718378862",
        "src 10.5.27.0/24 dst 10.5.0.0/16 dir out action block priority 1718378863",
        "src 10.5.27.0/24 dst 10.5.27.0/24 dir out priority 1718378862",
        "src 10.5.0.0/16 dst 10.5.27.0/24 dir fwd action block priority 1718378863",
        "src 10.5.27.0/24 dst 10.5.27.0/24 dir fwd priority 1718378862",
        "shared flannelette-10.99.0.11 type IKE owners 10.99.0.11 data (hidden)",
    ]


def test_without_an_own_subnet_nothing_is_needed() -> None:
    assert list(options().node_objects((), LINKS)) == list(options().peer_objects([PEER], (), LINKS)) == []


def test_a_network_that_covers_the_underlay_blocks_nothing() -> None:
    wide = replace(LINKS, networks=(ip_network("10.0.0.0/8"),))
    assert words(options().node_objects(OWN, wide)) == [
        "shared flannelette-10.99.0.11 type IKE owners 10.99.0.11 data (hidden)"
    ]


def test_behind_nat_the_tunnel_ends_at_the_interfaces_address_and_the_identity_is_the_public_one() -> None:
    behind = replace(LINKS, underlay=replace(UNDERLAY, public_addresses=(ip_address("198.51.100.7"),)))
    backend = options(f'"PSK":"{PSK}","UDPEncap":true')
    found = words(backend.peer_objects([PEER], OWN, behind))
    assert "tmpl src 10.99.0.11 dst 10.99.0.12" in found[1]
    assert found[4] == (
        "conn 10.99.0.11 id 198.51.100.7 10.5.27.0/24 === 10.99.0.12 10.5.53.0/24 encap "
        "esp aes128gcm16-sha256-prfsha256-ecp256"
    )
    assert words(backend.node_objects(OWN, behind))[-1].startswith("shared flannelette-198.51.100.7 ")


def test_commands_are_those_of_ip_and_vici() -> None:
    backend = options()
    objects = frozenset([*backend.peer_objects([PEER], OWN, LINKS)])
    todo = Plan(frozenset(), objects)
    found = [command(verb, item, NAMES) for verb, items in steps(todo) for item in items]
    name = "flannelette,10.99.0.11,10.99.0.11,10.5.27.0/24,10.99.0.12,10.5.53.0/24,plain"
    assert found[0].startswith("ip route del 10.5.53.0/24 via 10.99.0.12 dev eth0 proto 77 src 10.5.27.0 metric")
    assert found[1:3] == [
        f"vici unload-conn {name},aes128gcm16-sha256-prfsha256-ecp256",
        "vici unload-shared flannelette-10.99.0.12",
    ]
    assert "ip xfrm policy del src 10.5.27.0/24 dst 10.5.53.0/24 dir out" in found
    put = [command("replace", item, NAMES) for item in sorted(objects)]
    assert put[0].startswith("ip xfrm policy update src 10.5.53.0/24 dst 10.5.27.0/24 dir in priority 26220 tmpl ")
    assert put[3].startswith("vici load-shared flannelette-10.99.0.12 ")
    assert put[4].startswith("vici load-conn 10.99.0.11 ")


def test_charons_sections_are_flannels_but_for_names_mobike_uniqueness_and_what_the_peer_asks_for() -> None:
    (connection,) = (o for o in options().peer_objects([PEER], OWN, LINKS) if isinstance(o, IkeConnection))
    ((name, section),) = connection_section(connection).items()
    assert name == (
        "flannelette,10.99.0.11,10.99.0.11,10.5.27.0/24,10.99.0.12,10.5.53.0/24,plain,"
        "aes128gcm16-sha256-prfsha256-ecp256"
    )
    tunnel = {
        "mode": "tunnel",
        "local_ts": ["10.5.27.0/24"],
        "remote_ts": ["10.5.53.0/24"],
        "esp_proposals": ["aes128gcm16-sha256-prfsha256-ecp256"],
        "reqid": "11",
        "policies": "no",
        "rekey_time": "1h",
    }
    assert section == {
        "version": "2",
        "mobike": "no",
        "unique": "never",
        "keyingtries": "0",
        "proposals": ["aes256-sha256-modp4096"],
        "encap": "no",
        "local_addrs": ["10.99.0.11"],
        "remote_addrs": ["10.99.0.12"],
        "local": {"auth": "psk", "id": "10.99.0.11"},
        "remote": {"auth": "psk", "id": "10.99.0.12"},
        "children": {
            "answered": tunnel | {"start_action": "none", "mark_out": "0x666c"},
            "10.5.27.0/24-10.5.53.0/24": tunnel
            | {"start_action": "start", "close_action": "trap", "dpd_action": "restart"},
        },
    }
    assert next(iter(section["children"])) == "answered", "charon answers with the first that fits"
    (key,) = (o for o in options().peer_objects([PEER], OWN, LINKS) if isinstance(o, IkeKey))
    assert key_section(key) == {
        "id": "flannelette-10.99.0.12",
        "type": "IKE",
        "data": PSK.encode(),
        "owners": ["10.99.0.12"],
    }


def test_the_device_has_the_address_that_the_node_sends_from_and_mtu_is_flannels() -> None:
    own = Lease("10.5.27.0-24", "n1", (replace(PEER, cidr=OWN[0]),))
    spec = options().link(IPV4, UNDERLAY, NodeIdentity("n1", own))
    assert spec is not None
    created = as_created(spec)
    assert [change.command for change in (*link_changes(None, spec), *link_changes(created, spec))] == [
        "ip link add flannel.ipsec mtu 1423 type dummy",
        "ip addr add 10.5.27.0/32 dev flannel.ipsec",
        "ip link set flannel.ipsec up",
    ]
    assert options(f'"PSK":"{PSK}","UDPEncap":true').mtu(UNDERLAY) == 1415
    with pytest.raises(InvalidInput, match=r"eth0 has MTU 140, of which IPsec leaves 63 bytes for packets"):
        options().link(IPV4, replace(UNDERLAY, mtu=140), NodeIdentity("n1", own))


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("", r"PSK of Backend .* is missing: ipsec needs at least 96 characters, as `openssl rand -hex 48`"),
        ('"PSK":"s3cret"', r"PSK of Backend .* has 6: ipsec needs at least 96 characters, .*docs/backends.md#ipsec"),
        ('"PSK":5318008', "PSK in Backend in the network configuration must be a string \\(docs/backends.md#ipsec"),
        (f'"PSK":"{PSK}","UDPEncap":"yes"', "UDPEncap in Backend .* must be true or false"),
        (
            f'"PSK":"{PSK}","ESPProposal":"aes128 sha256"',
            "ESPProposal of Backend .* must be algorithms of strongSwan",
        ),
        (f'"PSK":"{PSK}","ESPProposal":"null-sha256"', "ESPProposal of Backend .* of which one encrypts"),
        (f'"PSK":"{PSK}","ESPProposal":""', "ESPProposal of Backend"),
    ],
)
def test_a_wrong_option_is_named_with_what_is_allowed_and_no_secret_is_shown(words: str, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason) as refused:
        options(words)
    assert not re.search(r"s3cret|5318008|0123456789abcdef", str(refused.value))


def test_a_network_of_ipv6_alone_is_refused_and_of_both_is_carried_in_part() -> None:
    backend = f'"Backend":{{"Type":"ipsec","PSK":"{PSK}"}}'
    with pytest.raises(InvalidInput, match="backend ipsec carries IPv4 only"):
        network(f'{{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00:10:5::/48",{backend}}}')
    both = network(f'{{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:10:5::/48",{backend}}}')
    assert [n.family for n in both.families] == [IPV4]
    assert "the network's IPv6 is left out" in both.warnings[0]


def test_no_text_has_the_key() -> None:
    backend = options()
    objects = [*backend.peer_objects([PEER], OWN, LINKS), *backend.node_objects(OWN, LINKS)]
    shown = [repr(backend), str(backend), *map(repr, objects), *words(objects)]
    shown += [command(verb, item, NAMES) for verb in ("replace", "del") for item in objects]
    shown.append(repr(IpsecOptions.parse(GoObject.parse(f'{{"psk":"{PSK}"}}', "Backend"))))
    assert not [line for line in shown if PSK in line]


def test_policies_of_a_flanneld_inside_the_network_are_adopted_and_others_stay() -> None:
    desired = frozenset(options().peer_objects([PEER], OWN, LINKS))
    flannels = [o._replace(priority=0) for o in desired if isinstance(o, XfrmPolicy)]
    gone = flannels[0]._replace(src=bytes((10, 5, 99, 0)), dst=bytes((10, 5, 27, 0)))
    users = flannels[0]._replace(src=bytes((10, 6, 99, 0)))
    rules = OwnershipRules((ip_network("10.5.0.0/16"),), OWN, {7}, 77)
    state = classify((), [*flannels, gone, users], desired, rules)
    assert state.ours == {*flannels, gone}


def test_handed_over_are_the_policies_alone() -> None:
    backend = options()
    objects = [*backend.peer_objects([PEER], OWN, LINKS), *backend.node_objects(OWN, LINKS)]
    shapes = flannel_shape(objects)
    assert {type(item) for item in shapes} == {XfrmPolicy}
    assert len(shapes) == 3
    assert {item.priority for item in shapes if isinstance(item, XfrmPolicy)} == {0}
