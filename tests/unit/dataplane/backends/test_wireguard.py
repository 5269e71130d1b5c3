"""wireguard: options, what a lease publishes, which endpoint is used, and the objects of node and peers."""

from pathlib import Path

import pytest

from flannelette.services.core.errors import InvalidInput
from flannelette.services.core.leases.lease import WireguardData
from tests.examples.backend_nodes import BackendNode, peer, refusal, wireguard_peer

KEY = "QAk/Qd4NbWqQz0DdTSXwY0mbzOeZhyy5K4TtCKkvZDM="
PSK = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
NULL_KEY = "A" * 43 + "="
BOTH = (4, 6)
FOUR = wireguard_peer("10.5.53.0/24", "10.99.0.12", KEY)
SIX = wireguard_peer("fd00:10:5:35::/64", "fd00:99::12", KEY, 51821)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Where a node keeps its key."""
    return tmp_path


def node(
    directory: Path | None = None, options: str = "", families: tuple[int, ...] = BOTH, **more: object
) -> BackendNode:
    return BackendNode("wireguard", options, families=families, directory=directory, **more)  # type: ignore[arg-type]


def own_key(made: BackendNode) -> str:
    data = made.publishes[0]
    assert isinstance(data, WireguardData)
    return data.public_key


def test_a_peer_is_its_key_with_its_subnet_and_a_route(place: Path) -> None:
    assert node(place).objects(FOUR) == [
        f"flannel-wg peer {KEY} endpoint 10.99.0.12:51820 allowed-ips 10.5.53.0/24",
        "10.5.53.0/24 dev flannel-wg proto 77 scope link metric 1334",
    ]


def test_of_both_families_each_device_has_the_peer_with_its_own_subnet(place: Path) -> None:
    assert node(place, f'"PSK":"{PSK}","PersistentKeepaliveInterval":25').objects(FOUR, SIX) == [
        f"flannel-wg peer {KEY} preshared-key (hidden) endpoint 10.99.0.12:51820 persistent-keepalive 25 "
        "allowed-ips 10.5.53.0/24",
        f"flannel-wg-v6 peer {KEY} preshared-key (hidden) endpoint [fd00:99::12]:51821 persistent-keepalive 25 "
        "allowed-ips fd00:10:5:35::/64",
        "10.5.53.0/24 dev flannel-wg proto 77 scope link metric 1334",
        "fd00:10:5:35::/64 dev flannel-wg-v6 proto 77 metric 54",
    ]


@pytest.mark.parametrize(
    ("mode", "four", "six", "own", "endpoint"),
    [
        ("ipv4", "10.99.0.12", "fd00:99::12", "", "10.99.0.12:51820"),
        ("ipv6", "10.99.0.12", "fd00:99::12", "", "[fd00:99::12]:51820"),
        ("auto", "10.99.0.12", "fd00:99::12", "", "10.99.0.12:51820"),
        ("auto", "198.51.100.12", "2001:db8::12", "", "198.51.100.12:51820"),
        ("auto", "10.99.0.12", "2001:db8::12", "", "10.99.0.12:51820"),
        ("auto", "10.99.0.12", "2001:db8::12", "2001:db8::11", "[2001:db8::12]:51820"),
    ],
)
def test_one_device_for_both_families_has_one_peer_with_both_subnets(
    place: Path, mode: str, four: str, six: str, own: str, endpoint: str
) -> None:
    made = node(place, f'"Mode":"{mode}"', public=["10.99.0.11", own] if own else [])
    parts = wireguard_peer("10.5.53.0/24", four, KEY), wireguard_peer("fd00:10:5:35::/64", six, KEY)
    assert made.objects(*parts)[0] == (
        f"flannel-wg peer {KEY} endpoint {endpoint} allowed-ips 10.5.53.0/24,fd00:10:5:35::/64"
    )


@pytest.mark.parametrize(
    ("mode", "cidr", "public", "said", "port"),
    [
        ("separate", "10.5.53.0/24", "10.99.0.12", 0, 1000),
        ("separate", "10.5.53.0/24", "10.99.0.12", 7, 7),
        ("separate", "fd00:10:5:35::/64", "fd00:99::12", 0, 1001),
        # flanneld's single device listens on ListenPort, whatever its lease says
        ("ipv6", "fd00:10:5:35::/64", "fd00:99::12", 1001, 1000),
    ],
)
def test_the_port_is_the_leases_or_that_of_the_configuration(
    place: Path, mode: str, cidr: str, public: str, said: int, port: int
) -> None:
    made = node(place, f'"Mode":"{mode}","ListenPort":1000,"ListenPortV6":1001')
    assert f":{port} " in made.objects(wireguard_peer(cidr, public, KEY, said))[0]


def test_a_lease_publishes_the_key_of_the_nodes_file_and_the_port_that_is_listened_on(place: Path) -> None:
    key = own_key(node(place))
    assert len(key) == len(KEY)
    for mode, six in (("separate", 51821), ("auto", 51820), ("ipv4", 51820), ("ipv6", 51820)):
        made = node(place, f'"Mode":"{mode}"')
        assert made.publishes == [WireguardData(key, 51820), WireguardData(key, six)]
        assert repr(bytes(made.backend.private_key))[2:-1] not in repr(made.backend)


def test_the_node_needs_its_keys_and_a_route_to_the_network_in_flannels_place(place: Path) -> None:
    made = node(place)
    key = own_key(made)
    assert made.own_objects() == [
        f"flannel-wg listen-port 51820 private-key (hidden) public-key {key}",
        f"flannel-wg-v6 listen-port 51821 private-key (hidden) public-key {key}",
        "10.5.0.0/16 dev flannel-wg proto 77 scope link",
        "fd00:10:5::/48 dev flannel-wg-v6 proto 77 metric 1024",
    ]
    assert node(place, '"Mode":"auto"').own_objects() == [
        f"flannel-wg listen-port 51820 private-key (hidden) public-key {key}",
        "10.5.0.0/16 dev flannel-wg proto 77 scope link",
        "fd00:10:5::/48 dev flannel-wg proto 77 metric 1024",
    ]


@pytest.mark.parametrize(
    ("part", "mode", "reason"),
    [
        (peer("10.5.53.0/24", "10.99.0.12"), "separate", "the lease has no public key"),
        (peer("10.5.53.0/24", "", "06:0c:56:6d:fb:b3"), "separate", "the lease has no public key"),
        (wireguard_peer("10.5.53.0/24", "10.99.0.12", "nonsense"), "separate", "invalid public key 'nonsense'"),
        (
            wireguard_peer("10.5.53.0/24", "10.99.0.12", "A" * 43 + "="),
            "separate",
            f"invalid public key '{'A' * 43}='",
        ),
        (wireguard_peer("10.5.53.0/24", "", KEY), "separate", "the lease has no public IPv4 address"),
        (wireguard_peer("10.5.53.0/24", "", KEY), "ipv4", "the lease has no public IPv4 address"),
        (wireguard_peer("10.5.53.0/24", "", KEY), "ipv6", ""),
    ],
)
def test_a_lease_that_cannot_be_carried_says_why(place: Path, part: object, mode: str, reason: str) -> None:
    assert node(place, f'"Mode":"{mode}"').reason(part) == reason  # type: ignore[arg-type]  # a subnet


def test_a_key_that_is_the_nodes_own_is_not_carried_and_its_address_is_as_of_nodes_behind_one_nat(
    place: Path,
) -> None:
    made = node(place, families=(4,))
    key = own_key(made)
    assert made.reason(wireguard_peer("10.5.53.0/24", "10.99.0.12", key)) == f"public key {key} is this node's own"
    objects, reason, _ = made.peer(wireguard_peer("10.5.53.0/24", "10.99.0.11", KEY, 51830), "wireguard")
    assert reason == ""
    assert objects[0].startswith(f"flannel-wg peer {KEY} endpoint 10.99.0.11:51830 ")


def test_the_devices_are_flannels_and_never_deleted_and_made_again(place: Path) -> None:
    made = node(place)
    assert made.creates() == [
        command
        for name, address in (("flannel-wg", "10.5.27.0/32"), ("flannel-wg-v6", "fd00:10:5:1b::/128"))
        for command in (
            f"ip link add {name} mtu 1420 type wireguard",
            f"ip addr add {address} dev {name}",
            f"ip link set {name} up",
        )
    ]
    assert made.describes()[0] == "flannel-wg: wireguard mtu 1420 down"
    assert [spec.name for spec in node(place, '"Mode":"auto"').specs.values()] == ["flannel-wg"] * 2
    assert made.changes({"anything": 1}, mtu=1500) == ["ip link set flannel-wg mtu 1420"]


def test_a_network_with_a_name_has_devices_of_its_own(place: Path) -> None:
    made = node(place, suffix="-blue")
    assert [spec.name for spec in made.specs.values()] == ["fl-wg-blue", "fl-wg6-blue"]
    assert [each.port for each in made.publishes if isinstance(each, WireguardData)] == [51820, 51821]
    assert [spec.name for spec in node(place, '"Mode":"auto"', suffix="-blue").specs.values()] == ["fl-wg-blue"] * 2


@pytest.mark.parametrize(
    ("options", "mtu", "pods"),
    [("", 1500, 1420), ('"MTU":1400', 1500, 1320), ('"MTU":1400', 1300, 1220), ('"MTU":9000', 1500, 1420)],
)
def test_pods_get_what_the_tunnel_leaves_and_an_mtu_above_the_underlays_is_told(
    place: Path, options: str, mtu: int, pods: int
) -> None:
    made = node(place, options, (4,), mtu=mtu)
    assert made.mtu == pods
    told = "the backend's option MTU is 9000, but eth0 has 1500, which counts"
    is_told = "9000" in options or mtu == 1300
    assert bool(made.warnings) is is_told
    assert "9000" not in options or made.warnings[0].startswith(told)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ('"Mode":"Auto"', "Mode 'Auto' of Backend .* does not exist: write separate, auto, ipv4 or ipv6"),
        ('"PSK":"c2hvcnQ="', "PSK of Backend .* must be 32 bytes in base64, as `wg genpsk` prints them"),
        ('"PSK":"no base64!"', "PSK of Backend .* must be 32 bytes in base64"),
        ('"PSK":7', "PSK in Backend .* must be a string"),
        ('"PSK":["c2hvcnQ="]', "PSK in Backend .* must be a string"),
        ('"ListenPort":65536', "ListenPort in Backend .* must be a whole number from 0 to 65535, not 65536"),
        ('"ListenPort":0', "ListenPort of Backend .* must be 1 to 65535"),
        ('"ListenPortV6":"x"', "ListenPortV6 in Backend .* must be a whole number"),
        ('"PersistentKeepaliveInterval":"25s"', "PersistentKeepaliveInterval in Backend .* must be a whole number"),
        (
            '"MTU":1300',
            "MTU 1300 of Backend .* leaves 1220 bytes for packets, and IPv6 needs 1280: write at least 1360",
        ),
        ('"ListenPort":51821', "ListenPort and ListenPortV6 of Backend .* are both 51821"),
    ],
)
def test_a_wrong_option_is_named_with_what_is_allowed(options: str, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason) as refused:
        node(options=options)
    assert "c2hvcnQ" not in str(refused.value)


def test_options_are_flannels_and_a_mode_of_a_family_that_the_network_lacks_is_refused() -> None:
    some = f'"PSK":"{PSK}","ListenPort":1,"listenportv6":2,"PersistentKeepaliveInterval":25'
    made = node(options=f'{some},"Mode":"auto","MTU":1400')
    assert PSK not in repr(made.backend)
    first, second = node(options=f'{some},"Mode":"separate"').own_objects()[:2]
    assert (first.split()[:3], second.split()[2]) == (["flannel-wg", "listen-port", "1"], "2")
    assert refusal("wireguard", '"Mode":"ipv4"') == ""
    assert "the network has IPv4 only: write Mode separate" in refusal("wireguard", '"Mode":"ipv6"')
    assert refusal("wireguard", '"Mode":1').startswith(
        "Mode in Backend in the network configuration must be a string"
    )


def test_an_underlay_that_leaves_too_little_is_refused(place: Path) -> None:
    with pytest.raises(InvalidInput, match=r"eth0 has MTU 1300, of which WireGuard leaves 1220 bytes"):
        node(place, mtu=1300)
