"""extension: what it makes of options and leases."""

from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest

from flannelette.services.core.errors import InvalidInput
from flannelette.services.core.family import IPV4, IPV6
from flannelette.services.core.formats.gojson import GoObject
from flannelette.services.core.leases.flannel_json import format_value, parse_lease
from flannelette.services.core.leases.lease import Lease, OpaqueData, Subnet
from flannelette.services.dataplane.backends.backend import NodeLinks
from flannelette.services.dataplane.backends.extension import Extension
from flannelette.services.dataplane.netlink.kinds import command, text
from flannelette.services.dataplane.netlink.objects import Hook
from tests.examples.dataplane import UNDERLAY
from tests.examples.leases import network

LINKS = NodeLinks(UNDERLAY, {}, 77)
OWN = (ip_network("10.5.27.0/24"),)
HOST_GW = Extension(
    subnet_add="ip route add $SUBNET via $PUBLIC_IP",
    subnet_remove="ip route del $SUBNET",
    post_startup="up",
    network="10.5.0.0/16",
)
NETWORK = network('{"Network":"10.5.0.0/16","Backend":{"Type":"extension"}}')


class FakePrograms:
    def __init__(self, output: str = "", *, is_allowed: bool = True) -> None:
        self.asked: list[str] = []
        self._output = output
        self._is_allowed = is_allowed

    def require_permission(self, backend: str) -> None:
        if not self._is_allowed:
            raise InvalidInput(backend)

    async def output(self, command: str) -> str:
        self.asked.append(command)
        return self._output


def peer(data: str | None = None) -> Subnet:
    return Subnet(
        ip_network("10.5.53.0/24"), ip_address("10.99.0.12"), OpaqueData(data) if data is not None else None
    )


def test_a_peer_is_a_command_with_flannels_variables() -> None:
    (hook,) = HOST_GW.peer_objects([peer()], OWN, LINKS)
    assert text(hook, {}) == "ip route add 10.5.53.0/24 via 10.99.0.12"
    told = "SUBNET=10.5.53.0/24 PUBLIC_IP=10.99.0.12 IPV6SUBNET='' PUBLIC_IPV6=''"
    assert command("replace", hook, {}) == f"{told} ip route add 10.5.53.0/24 via 10.99.0.12"
    assert command("del", hook, {}) == f"{told} ip route del 10.5.53.0/24"


def test_the_node_is_a_command_too() -> None:
    (hook,) = HOST_GW.node_objects(OWN, LINKS)
    told = "NETWORK=10.5.0.0/16 SUBNET=10.5.27.0/24 PUBLIC_IP=10.99.0.11 IPV6SUBNET='' PUBLIC_IPV6=''"
    assert command("replace", hook, {}) == f"{told} up"
    assert command("del", hook, {}) == ": there is no ShutdownCommand"
    assert HOST_GW.node_objects((), LINKS) == ()


def test_both_families_of_a_peer_are_one_call() -> None:
    parts = [peer('"a"'), Subnet(ip_network("fd00:10:5:35::/64"), ip_address("fd00:99::12"))]
    (hook,) = HOST_GW.peer_objects(parts, OWN, LINKS)
    assert isinstance(hook, Hook)
    assert dict(hook.environment) == {
        "SUBNET": "10.5.53.0/24",
        "PUBLIC_IP": "10.99.0.12",
        "IPV6SUBNET": "fd00:10:5:35::/64",
        "PUBLIC_IPV6": "fd00:99::12",
    }
    assert hook.stdin == "a"


HOSTILE = '"$(id) `id` ; id\\u0000 \\" \' \\n --help"'


def test_hostile_data_are_input_and_nothing_else() -> None:
    (hook,) = HOST_GW.peer_objects([peer(HOSTILE)], OWN, LINKS)
    (plain,) = HOST_GW.peer_objects([peer()], OWN, LINKS)
    assert isinstance(hook, Hook)
    assert hook.stdin == "$(id) `id` ; id\0 \" ' \n --help"
    assert hook._replace(stdin="") == plain
    assert "id" not in command("replace", hook, {}).replace(" ip ", "")


@pytest.mark.parametrize("data", ["1", "{}", '["a"]', "[" * 100_000, '"a'])
def test_data_that_are_no_string_are_refused(data: str) -> None:
    assert HOST_GW.rejection(peer(data), LINKS) == "the lease's BackendData is not a string"


def test_data_may_be_absent_and_an_address_may_not() -> None:
    assert HOST_GW.rejection(peer(), LINKS) == ""
    assert HOST_GW.rejection(replace(peer(), public_address=None), LINKS) == "the lease has no public IPv4 address"


async def test_what_pre_startup_prints_is_the_leases_data_byte_for_byte() -> None:
    programs = FakePrograms('hello <world> & "you"\nsecond')
    backend = await Extension(pre_startup="echo").prepare(NETWORK, programs)
    assert programs.asked == ["echo"]
    data = backend.lease_data(IPV4, None)
    lease = Lease("10.5.27.0-24", "n1", (Subnet(OWN[0], ip_address("10.99.0.11"), data),), "extension")
    value = format_value(lease)
    assert value == (
        '{"PublicIP":"10.99.0.11","PublicIPv6":null,"BackendType":"extension",'
        '"BackendData":"hello \\u003cworld\\u003e \\u0026 \\"you\\"\\nsecond"}'
    )
    read = parse_lease("10.5.27.0-24", value)
    (hook,) = HOST_GW.peer_objects(read.subnets, OWN, LINKS)
    assert isinstance(hook, Hook)
    assert hook.stdin == 'hello <world> & "you"\nsecond'
    assert backend.lease_data(IPV6, None) is None


async def test_without_pre_startup_there_are_no_data() -> None:
    backend = await HOST_GW.prepare(NETWORK, FakePrograms())
    assert backend.lease_data(IPV4, None) is None


async def test_nothing_is_run_where_the_operator_does_not_allow_it() -> None:
    programs = FakePrograms(is_allowed=False)
    with pytest.raises(InvalidInput):
        await HOST_GW.prepare(NETWORK, programs)
    assert await Extension().prepare(NETWORK, programs) == Extension()
    assert programs.asked == []


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ('{"PreStartupCommand":1}', "PreStartupCommand in Backend must be a string"),
        ('{"subnetaddcommand":"a && b"}', "SubnetAddCommand has && outside of single quotes"),
        ('{"ShutdownCommand":"\'"}', "ShutdownCommand has a quote that does not end"),
    ],
)
def test_a_wrong_option_is_named(options: str, reason: str) -> None:
    with pytest.raises(InvalidInput, match=f"^{reason}"):
        Extension.parse(GoObject.parse(options, "Backend"))


def test_options_are_flannels() -> None:
    options = GoObject.parse(
        '{"PreStartupCommand":"a","PostStartupCommand":"b","ShutdownCommand":"c","SubnetAddCommand":"d",'
        '"SubnetRemoveCommand":"e"}',
        "Backend",
    )
    assert Extension.parse(options) == Extension("a", "b", "c", "d", "e")
