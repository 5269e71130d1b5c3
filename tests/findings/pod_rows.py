"""What somebody may do to the interfaces of pods and their bridge so that packets are lost, one row each."""

from typing import Final

from tests.findings.fault import SilentFault

_LOST = "A pod of this node can neither send nor receive packets."


def _port(
    act: str, cause: str, cure: str, evidence: str, *, and_then: str = "true", what: str = "", is_lost: bool = True
) -> SilentFault:
    return SilentFault(
        act,
        "pod-port",
        cause,
        cure,
        says="own part",
        versions=(4,),
        is_answered=not is_lost,
        problem=_LOST if is_lost else "A pod of this node may not receive packets.",
        evidence=f"ip -d link show veth0: {evidence}",
        and_then=and_then,
        what=what,
    )


def _at_another_port(kind: str) -> SilentFault:
    return SilentFault(
        "ip link add port address fe:ff:00:00:00:01 type veth peer name port-far && ip link set port-far up && "
        "ip link set port master cni0 up && "
        "bridge fdb replace $(ip neigh show {own_pod} dev cni0 | sed 's/.*lladdr //; s/ .*//') dev port master "
        f"{kind}",
        "pod-entry",
        "A program has set the MAC * of the pod at port; the pod is at veth0.",
        "bridge fdb del * dev port master",
        says="own part",
        versions=(4,),
        is_told=False,
        and_then="ip link del port",
        problem="Packets to the pod {own_pod} of this node go to port.",
        evidence="bridge fdb show: * dev port master cni0",
        what=f"`bridge fdb replace MAC dev PORT master {kind}`, with a pod's MAC, and not its port",
    )


POD_FAULTS: Final = {
    "pod-left-its-bridge": _port(
        "ip link set veth0 nomaster",
        "veth0 has left the bridge cni0.",
        "ip link set veth0 master cni0",
        "no master",
    ),
    "pod-at-another-bridge": _port(
        "ip link add br1 type bridge && ip link set br1 up && ip link set veth0 master br1",
        "veth0 is a port of br1, and not of cni0.",
        "ip link set veth0 master cni0",
        "master br1",
        and_then="ip link del br1",
    ),
    "pods-interface-down": _port(
        "ip link set veth0 down",
        "veth0 is down.",
        "ip link set veth0 up",
        "state DOWN",
    ),
    "pods-port-blocked": _port(
        "bridge link set dev veth0 state 0",
        "veth0 is kept in the state disabled at cni0.",
        "bridge link set dev veth0 state 3",
        "state disabled",
    ),
    "pods-port-locked": _port(
        "bridge link set dev veth0 locked on",
        "veth0 is locked at cni0: frames of a MAC that the bridge does not know are dropped.",
        "bridge link set dev veth0 locked off",
        "locked on",
        is_lost=False,
    ),
    "bridge-knows-no-pod": _port(
        "bridge link set dev veth0 learning off flood off; "
        "bridge fdb del $(ip neigh show 10.5.27.2 dev cni0 | sed 's/.*lladdr //; s/ .*//') dev veth0 master",
        "veth0 is at cni0 with neither learning nor flooding, so that the bridge does not know where the pod is.",
        "bridge link set dev veth0 learning on flood on",
        "learning off flood off",
        what="`bridge link set dev veth0 learning off flood off`",
    ),
    "neighbour-of-a-pod-pinned": SilentFault(
        "ip neigh replace {own_pod} lladdr 02:00:00:00:00:99 dev cni0 nud permanent",
        "pod-entry",
        "A permanent neighbour entry of {own_pod} on cni0 has the MAC 02:00:00:00:00:99, and the pod answers with *.",
        "ip neigh del {own_pod} dev cni0",
        says="own part",
        versions=(4,),
        is_told=False,
        problem="Packets to the pod {own_pod} of this node go to a MAC that the kernel does not verify.",
        evidence="neigh {own_pod} dev cni0 lladdr 02:00:00:00:00:99 PERMANENT",
    ),
    "mac-of-a-pod-at-another-port": _at_another_port("permanent"),
    "mac-of-a-pod-stuck-at-another-port": _at_another_port("sticky static"),
    "pod-behind-another-interface": SilentFault(
        "ip link add other type bridge && ip link set other up && {ip} route add {own_pod} dev other",
        "own-part",
        "The route `{own_pod} dev other{scope}{metric}` takes these packets.",
        "{ip} route del {own_pod} dev other proto boot{scope}{metric}",
        says="own part",
        versions=(4,),
        is_told=False,
        and_then="ip link del other",
        problem="Packets to {own_pod}, a part of the subnet of this node, do not reach its pods.",
        evidence="{own_pod} dev other{scope}{metric}",
    ),
    "bridge-without-arp": SilentFault(
        "ip link set cni0 arp off",
        "bridge-arp",
        "ARP and NDP are off on cni0, so this host does not know the MACs of pods.",
        "ip link set cni0 arp on",
        problem="Packets to the pods of this node are not delivered.",
        evidence="cni0: NOARP",
    ),
    "bridge-deleted": SilentFault(
        "ip link del cni0",
        "bridge-gone",
        "The bridge cni0, of which their interfaces were ports, is gone.",
        "ip link add cni0 type bridge && ip link set cni0 up && ip addr add {gateway} dev cni0 && "
        "ip link set veth0 master cni0",
        versions=(4, 6),
        problem=_LOST,
        evidence="ip link show cni0: does not exist",
    ),
    "bridge-with-another-address": SilentFault(
        "ip addr del {gateway} dev cni0 && ip addr add {second} dev cni0",
        "bridge-address",
        "The bridge cni0 has {second}, and not {first}, to which pods send.",
        "ip addr add {gateway} dev cni0",
        says="own part",
        is_answered=True,  # as long as pods remember the MAC
        problem="{family} packets of the pods of this node get no further than cni0, "
        "once they have forgotten its MAC.",
        evidence="cni0: {second}",
        and_then="ip addr del {second} dev cni0; ip addr replace {gateway} dev cni0",
    ),
}
