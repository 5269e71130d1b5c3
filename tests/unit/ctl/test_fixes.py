"""What `doctor --fix` may carry out: commands that it makes itself, of known codes and arguments of their types."""

import copy

import pytest

from flannelette.dataplane.v1 import dataplane_pb2
from flannelette.lease.v1 import lease_pb2
from flannelette.masq.v1 import masq_pb2
from flannelette.services.core.conditions import found
from flannelette.services.core.cure import COMMANDS, Command, Cure, commands_of, read_cure
from flannelette.services.ctl.commands.doctor import FACTS, fixes_of
from flannelette.services.ctl.connect.dial import Dialer
from flannelette.services.ctl.connect.targets import Target
from flannelette.services.ctl.host import obstacle_to
from flannelette.services.ctl.problems import problem_of, reported
from flannelette.services.runtime.conditions import condition_from_proto, condition_to_proto, older_condition

KNOWN = [
    (Command("sysctl", "net.ipv4.ip_forward=1"), "sysctl -w net.ipv4.ip_forward=1"),
    (Command("sysctl", "net.ipv6.conf.all.forwarding=1"), "sysctl -w net.ipv6.conf.all.forwarding=1"),
    (Command("sysctl", "net.ipv4.conf.cni0.forwarding=1"), "sysctl -w net.ipv4.conf.cni0.forwarding=1"),
    (Command("sysctl", "net/ipv4/conf/eth0.7/forwarding=1"), "sysctl -w net/ipv4/conf/eth0.7/forwarding=1"),
    (Command("sysctl", "net.ipv4.conf.eth0.rp_filter=2"), "sysctl -w net.ipv4.conf.eth0.rp_filter=2"),
    (Command("link-up", "cni0"), "ip link set cni0 up"),
    (Command("bridge-address", "10.5.27.1/24", "cni0"), "ip addr add 10.5.27.1/24 dev cni0"),
    (Command("bridge-address", "fd00:10:5:34::1/64", "cni0"), "ip addr add fd00:10:5:34::1/64 dev cni0"),
    (
        Command("bridge-route", "10.5.27.0/24", "cni0", "10.5.27.1"),
        "ip route add 10.5.27.0/24 dev cni0 proto kernel scope link src 10.5.27.1",
    ),
    (
        Command("bridge-route-v6", "fd00:10:5:34::/64", "cni0"),
        "ip -6 route add fd00:10:5:34::/64 dev cni0 proto kernel metric 256",
    ),
    (
        Command("offload-off", "fl-wg6-storage", "tx-checksum-ip-generic"),
        "ethtool -K fl-wg6-storage tx-checksum-ip-generic off",
    ),
]
HOSTILE = [
    Command("sysctl", "net.ipv4.ip_forward=0"),
    Command("sysctl", "kernel.core_pattern=1"),
    Command("sysctl", "net/ipv4/conf/../../../kernel/sysrq/forwarding=1"),
    Command("sysctl", "net/ipv4/conf/../forwarding=1"),
    Command("sysctl", "net.ipv4.ip_forward=1; reboot"),
    Command("sysctl", "net.ipv4.ip_forward=1\nreboot"),
    Command("link-up", "-all"),
    Command("link-up", "cni0 down"),
    Command("link-up", "cni0", "down"),
    Command("link-up", "/etc/passwd"),
    Command("link-up", "\u202e0inc"),
    Command("link-up"),
    Command("bridge-address", "10.5.27.1", "cni0"),
    Command("bridge-address", "10.5.27.1/24 dev eth0", "cni0"),
    Command("bridge-route", "10.5.27.1/24", "cni0", "10.5.27.1"),
    Command("bridge-route", "default", "cni0", "10.5.27.1"),
    Command("bridge-route", "10.5.27.0/24", "cni0", "10.5.27.1 table local"),
    Command("offload-off", "flannel.1", "rx"),
    Command("reboot"),
    Command("ip route del default"),
]


@pytest.mark.parametrize(("command", "text"), KNOWN)
def test_a_command_is_made_of_its_code_and_arguments(command: Command, text: str) -> None:
    assert command.is_valid
    assert str(command) == text
    assert list(command.words) == text.split()


@pytest.mark.parametrize("command", HOSTILE)
def test_an_argument_of_another_type_or_an_unknown_code_makes_no_command(command: Command) -> None:
    assert not command.is_valid
    assert commands_of(read_cure("as a service says", [command])) == ()
    assert commands_of(read_cure("as a service says", [KNOWN[0][0], command])) == ()


def test_what_a_service_says_beside_its_commands_is_not_shown_as_the_cure() -> None:
    command = dataplane_pb2.CureCommand(code="link-up", arguments=["cni0"])
    problem = problem_of("dataplane", older_condition(dataplane_pb2.Finding(cure="reboot", commands=[command])))
    assert problem.cure == "ip link set cni0 up"
    assert fixes_of(problem) == (Command("link-up", "cni0"),)


@pytest.mark.parametrize("text", [text for _, text in KNOWN])
def test_text_alone_is_advice_whoever_says_it(text: str) -> None:
    assert not fixes_of(problem_of("dataplane", older_condition(dataplane_pb2.Finding(cure=text))))
    assert not fixes_of(problem_of("masq", older_condition(masq_pb2.Finding(cure=text))))
    assert not fixes_of(problem_of("lease", older_condition(lease_pb2.Finding(cure=text))))


@pytest.mark.parametrize("command", [command for command, _ in KNOWN])
def test_nothing_is_carried_out_of_what_a_lease_service_or_a_node_tells_it(command: Command) -> None:
    message = condition_to_proto(found("host.own-part", part="10.5.1.0/25", why="A route.", cure=Cure(command)))
    condition = condition_from_proto(message)
    assert fixes_of(problem_of("dataplane", condition)) == (command,)
    assert not fixes_of(problem_of("lease", condition))
    assert not fixes_of(problem_of("cloud", condition))
    ((_, (problem,)),) = reported([lease_pb2.Node(name="n1", conditions=[message])])
    assert (problem.cure, fixes_of(problem)) == (str(command), ())


def test_every_command_has_its_facts() -> None:
    assert FACTS.keys() == COMMANDS.keys()


def test_a_copy_of_a_cure_has_its_commands() -> None:
    cure = Cure(Command("link-up", "a"), Command("link-up", "b"))
    copied = copy.deepcopy(cure)
    assert (copied, commands_of(copied)) == ("ip link set a up && ip link set b up", cure.commands)


def test_a_service_over_tcp_may_be_anywhere() -> None:
    assert "another host" in obstacle_to(Target("masq", "127.0.0.1:9473"))
    dialer = Dialer(("ssh", "h2"), (), "masq")  # its socket is a socket of this very process
    assert "another host" in obstacle_to(Target("masq", f"unix:{dialer.path}", dialer=dialer))
