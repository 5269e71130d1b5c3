"""Conditions: everything that a service, or the command line, may say is wrong, one row of a table each.

A row has a code, the weight, and the sentences with named arguments. A `Condition` is a code with arguments: its text
is made of the row, once, where somebody reads it; no program reads the text. To say that something else is wrong, add
a row to `ROWS`, and say it with `found("code", argument=value)`; a test compares the arguments of each call with the
names in the row.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from enum import IntEnum
from typing import Final, Protocol, TypeAlias

from flannelette.services.core.cure import lines_of
from flannelette.services.core.frozen import frozen

MOST_REPORTED: Final = 8
"""Conditions of a node that a lease service keeps."""
LONGEST_TEXT: Final = 500
_MOST_ARGUMENTS: Final = 16
_MOST_PEERS: Final = 10

PeerName: TypeAlias = tuple[str, str]
"""Lease and node of a peer; the node may be empty."""


class Weight(IntEnum):
    """How much a condition matters; the gravest is the smallest."""

    BROKEN = 0
    """Packets are lost now."""
    SOON = 1
    """Packets are not lost yet; they will be if nothing is done, or at the next change."""
    WARNING = 2
    """A part of the traffic may be lost, or a thing is odd."""


BROKEN: Final = Weight.BROKEN
SOON: Final = Weight.SOON
WARNING: Final = Weight.WARNING


@frozen
class Row:
    """A row of the registry."""

    code: str
    """The name of the condition for programs: `bridge.down`. It never changes its meaning."""
    check: str
    """The word in the table of docs/operations.md, and the label of the metric flannelette_findings. Several rows may
    share one; empty: the condition is not a result of a check."""
    weight: Weight
    """What is lost, unless the arguments say otherwise: then `found` is given another weight."""
    problem: str
    """What does not work, one sentence, with `{name}` for arguments; `{peers}` stands for the peers it concerns."""
    cause: str = ""
    """One sentence or more, with arguments."""
    after: tuple[str, ...] = ()
    """Codes of conditions whose consequence this one is where they are there too."""
    shows: tuple[str, ...] = ()
    """Codes of conditions by which packets may be lost: where this one is there too, they are, unless another
    cause of it is known.
    """
    is_shared: bool = False
    """The condition is of the whole cluster, as of its store: it is one, whoever says it, and has consequences
    everywhere."""
    lasts: float = 0.0
    """Seconds that it has lasted before it is shown: what passes sooner is nobody's business."""
    event: str = ""
    """The reason of the Kubernetes Event of the Node that it concerns; empty: there is none."""
    sums_up: bool = False
    """The condition says again, for readiness, what another one of the same service says by which packets are
    lost."""


@frozen
class Condition:
    """A thing that is wrong: a code with arguments, the cure and the evidence."""

    code: str
    """A key of ROWS; another one, or an empty one, comes from another release, and then `told` has its text."""
    arguments: tuple[tuple[str, str], ...] = ()
    """Names and values, sorted by name."""
    cure: str = ""
    """The exact command; empty: none, or the cause says what to do. One that `doctor --fix` may carry out is a
    `Cure(Command(CODE, ARGUMENTS))`; plain text is shown and never carried out."""
    evidence: str = ""
    """What was asked, such as of the kernel, and the answer."""
    weight: Weight = WARNING
    peers: tuple[PeerName, ...] = ()
    """The peers it was found with; empty: it concerns the node."""
    is_general: bool = False
    """The condition concerns the whole node, also where it was found with some peers."""
    is_remote: bool = False
    """The cause is another node, and nothing is wrong with this one."""
    is_part: bool = False
    """The condition is about some pods of this node, or a share of the packets: the others pass."""
    peer_count: int = 0
    """Number of these peers, where `peers` has the first only."""
    told: tuple[str, str, str] | None = None
    """Check, problem and cause as another process has written them; None: the row has them."""

    @property
    def check(self) -> str:
        """The word of its check; see Row."""
        return self.told[0] if self.told is not None else ROWS[self.code].check

    @property
    def problem(self) -> str:
        """What does not work, one sentence, with the names of the peers."""
        return self.told[1] if self.told is not None else self._text(ROWS[self.code].problem)

    @property
    def cause(self) -> str:
        """Why, one sentence or more; empty where the problem says it."""
        return self.told[2] if self.told is not None else self._text(ROWS[self.code].cause)

    @property
    def is_broken(self) -> bool:
        """Whether packets are lost for certain."""
        return self.weight is BROKEN

    @property
    def is_soon(self) -> bool:
        """Whether nothing is lost yet, and will be if nothing is done."""
        return self.weight is SOON

    @property
    def breaks_node(self) -> bool:
        """Whether forwarding of the whole node is broken."""
        return self.is_broken and not self.is_part and (self.is_general or not self.peers)

    def bounded(self) -> "Condition":
        """Returns it with texts of LONGEST_TEXT at most, and a cure that nobody carries out: nodes may be hostile."""
        check, problem, cause = (each[:LONGEST_TEXT] for each in (self.check, self.problem, self.cause))
        return replace(
            self,
            code=self.code[:LONGEST_TEXT],
            arguments=_bounded(self.arguments, _MOST_ARGUMENTS),
            cure=self.cure[:LONGEST_TEXT],
            evidence=self.evidence[:LONGEST_TEXT],
            peers=_bounded(self.peers, _MOST_PEERS),
            told=(check, problem, cause),
        )

    def _text(self, sentence: str) -> str:
        return sentence.format_map({**dict(self.arguments), "peers": self._peers()}) if "{" in sentence else sentence

    def _peers(self) -> str:
        if self.is_general:
            return "any peer"
        more = f" and {len(self.peers) - 3} more" if len(self.peers) > 3 else ""
        return ", ".join(node or lease for lease, node in self.peers[:3]) + more


def found(
    code: str,
    /,
    *,
    cure: str = "",
    evidence: str = "",
    weight: Weight | None = None,
    peers: tuple[PeerName, ...] = (),
    is_general: bool = False,
    is_remote: bool = False,
    is_part: bool = False,
    **arguments: object,
) -> Condition:
    """Returns the condition of this code; `weight` if it is not that of the row."""
    given = tuple(sorted((name, str(value)) for name, value in arguments.items()))
    weighs = ROWS[code].weight if weight is None else weight
    return Condition(code, given, cure, evidence, weighs, peers, is_general, is_remote, is_part)


def is_due(condition: Condition, seconds: float) -> bool:
    """Returns whether a condition that has lasted so long is shown."""
    return seconds > ROWS[condition.code].lasts


def unready(name: str, reason: str) -> Condition:
    """Returns the condition that a service is not ready, because of this requirement of its readiness."""
    code = f"unready.{name.lower().replace(' ', '-')}"
    return found(code if code in ROWS else "unready.service", reason=reason)


def is_unready(code: str) -> bool:
    """Returns whether a condition of this code says why a service is not ready."""
    return code.partition(".")[0] == "unready"


class ConditionLike(Protocol):
    """A condition that somebody tells, as far as folding looks at it."""

    @property
    def code(self) -> str: ...  # noqa: D102 - see Condition, also below
    @property
    def weight(self) -> Weight: ...  # noqa: D102
    @property
    def cure(self) -> str: ...  # noqa: D102
    @property
    def service(self) -> str: ...  # noqa: D102 - the service that tells it


def causes_of(told: Sequence[tuple[ConditionLike, Collection[str]]]) -> list[int | None]:
    """Returns for each condition the place of the one whose consequence it is; None: it is no consequence.

    `told` has the conditions of several services, each with the names of its nodes. A consequence is on the nodes of
    its cause, or anywhere if the cause is shared. A condition whose cure is part of the cure of a graver one is the
    consequence of that, as the silence of a peer is of the rule that a trace has found. No cause that is returned is
    a consequence itself.
    """
    causes = [_cause_of(place, told) for place in range(len(told))]
    return [_first(place, causes) if cause is not None else None for place, cause in enumerate(causes)]


def _cause_of(place: int, told: Sequence[tuple[ConditionLike, Collection[str]]]) -> int | None:
    each, nodes = told[place]
    row = ROWS.get(each.code)
    if row is None:
        return None
    has_certain_cause = any(
        cause.code in row.shows and cause.weight is BROKEN and {*nodes} <= {*places} for cause, places in told
    )
    for other, (cause, places) in enumerate(told):
        known = ROWS.get(cause.code)
        is_here = (known is not None and known.is_shared) or {*nodes} <= {*places}
        is_same = cause.code == each.code and row.is_shared and other < place
        is_said = row.sums_up and cause.service == each.service and cause.weight is BROKEN
        is_said = is_said and not (known is not None and known.sums_up)
        is_shown = cause.code in row.shows and cause.weight is WARNING and not has_certain_cause
        is_shown = is_shown and each.cure in ("", cause.cure)
        is_cured = bool(each.cure) and lines_of(each.cure) <= lines_of(cause.cure) and cause.weight < each.weight
        if other != place and is_here and (cause.code in row.after or is_same or is_said or is_cured or is_shown):
            return other
    return None


def _first(place: int, causes: Sequence[int | None]) -> int | None:
    """The cause at the end of the chain that begins here; None: the chain ends where it began."""
    seen = {place}
    while (cause := causes[place]) is not None:
        if cause in seen:
            return None
        seen.add(cause)
        place = cause
    return place


def _bounded(pairs: tuple[tuple[str, str], ...], most: int) -> tuple[tuple[str, str], ...]:
    return tuple((a[:LONGEST_TEXT], b[:LONGEST_TEXT]) for a, b in pairs[:most])


def _rows(*rows: Row) -> Mapping[str, Row]:
    by_code = {row.code: row for row in rows}
    if len(by_code) != len(rows):
        raise ValueError("two rows have one code")
    return by_code


def gravest(found: Iterable[Condition]) -> list[Condition]:
    """Returns the conditions, the gravest first; those of one weight in the order in which they were found."""
    return sorted(found, key=lambda each: each.weight)


_NO_PODS: Final = "Pods of this node can neither send nor receive packets."
_MISSED: Final = "This host does not accept packets to its own address {address}, so nothing from any peer arrives."
_SUMS: Final = frozenset(("forwarding", "kernel", "own-lease"))
_ELECTION: Final = 5.0
"""Seconds: an election of etcd, and a restart of a member, take less."""
_NO_STORE: Final = ("store.quorum", "store.away")
_NO_NEIGHBOURS: Final = ("firewall.rule-arp", "firewall.policy-arp", "firewall.rule-nd", "firewall.policy-nd")
_OF_TUNNEL: Final = ("firewall.rule-tunnel", "firewall.policy-tunnel", "firewall.dnat-tunnel")
_NO_HAIRPIN: Final = "Pods of one node do not reach each other through a service's address."
_BLOCKED: Final = "The IPsec policy `{policy}` blocks these packets{why}."

ROWS: Final[Mapping[str, Row]] = _rows(
    # the pods' bridge, and pods
    Row("bridge.down", "bridge-down", BROKEN, _NO_PODS, "The bridge {bridge} is down."),
    Row(
        "bridge.gone",
        "bridge-gone",
        BROKEN,
        "{pods} can neither send nor receive packets.",
        "The bridge {bridge}, of which their interfaces were ports, is gone.",
    ),
    Row(
        "bridge.address-outside",
        "bridge-address",
        BROKEN,
        "Pods of this node are not in subnet {subnet}, so packets from peers do not reach them.",
        "The bridge {bridge} has {addresses}; recreate the pods whose addresses lie outside {subnet}.",
    ),
    Row(
        "bridge.address-lost",
        "bridge-address",
        BROKEN,
        "Pods of this node can neither send nor receive {family} packets.",
        "The bridge {bridge} has lost its address {address}.",
    ),
    Row(
        "bridge.gateway-lost",
        "bridge-address",
        BROKEN,
        "{family} packets of the pods of this node {get} no further than {bridge}{since}.",
        "The bridge {bridge} has {addresses}, and not {gateway}, to which pods send.",
    ),
    Row(
        "bridge.route",
        "bridge-route",
        BROKEN,
        "Packets to the pods of this node ({subnet}) do not go to {bridge}.",
        "{why}",
    ),
    Row(
        "bridge.arp",
        "bridge-arp",
        BROKEN,
        "Packets to the pods of this node are not delivered.",
        "ARP and NDP are off on {bridge}, so this host does not know the MACs of pods.",
    ),
    Row(
        "bridge.vlan",
        "bridge-vlan",
        BROKEN,
        "{pods} can neither send nor receive packets.",
        "{bridge} filters VLANs, and does not have {ports} in its own VLAN.{manager}",
    ),
    Row("pod.port", "pod-port", BROKEN, "{pods} {lost}.", "{ports} {state}.{manager}"),
    Row(
        "pod.port-isolated",
        "pod-port",
        BROKEN,
        "Pods of this node do not reach each other.",
        "{ports} are isolated ports of {bridge}.{manager}",
    ),
    Row(
        "pod.port-hairpin",
        "pod-port",
        WARNING,
        "{pods} may not reach {themselves} by a service's address.",
        "{ports} lost the hairpin mode that the CNI configuration asks for.",
    ),
    Row(
        "pod.port-alone",
        "pod-port",
        WARNING,
        "What is at the other end of {ports} can neither send nor receive packets.",
        "No bridge has {ports} as a port, and there is no address or route: perhaps the interface of a pod that has "
        "left {bridge}.{manager}",
    ),
    Row(
        "pod.silent",
        "pod-silent",
        BROKEN,
        "Packets to the {pods} of this node are lost.",
        "No reply to {asked} on {bridge}: the pod has lost its address, or its interface is down, or a filter drops "
        "frames at the bridge. Recreate the pod if it is broken.",
        after=_NO_NEIGHBOURS,
    ),
    Row(
        "pod.neighbour",
        "pod-entry",
        BROKEN,
        "Packets to the pod {pod} of this node go to a MAC that the kernel does not verify.",
        "A permanent neighbour entry of {pod} on {bridge} has the MAC {mac}{right}.",
    ),
    Row(
        "pod.entry",
        "pod-entry",
        BROKEN,
        "Packets to the pod {pod} of this node go to {port}.",
        "A program has set the MAC {mac} of the pod at {port}; the pod is at {right}.",
    ),
    Row(
        "pod.addresses-leaked",
        "pod-addresses",
        WARNING,
        "{addresses} of {subnet} {are} reserved for pods that are gone, and given to no new one: {names}.",
        "The CNI plugin host-local keeps them since a crash, or since the container runtime lost its state; {free} "
        "are free.",
    ),
    # settings and routes of the host
    Row("host.forwarding-off", "forwarding-off", BROKEN, "The kernel forwards no {family} packets.", "{key} is 0."),
    Row(
        "host.forwarding-off-on",
        "forwarding-off",
        BROKEN,
        "This host does not forward {family} packets that arrive on {device}.",
        "{key} is 0.",
    ),
    Row(
        "host.own-return",
        "own-return",
        BROKEN,
        "Pods of this node get no answer from its address {address}.",
        "{why}",
    ),
    Row(
        "host.own-part",
        "own-part",
        BROKEN,
        "Packets to {part}, a part of the subnet of this node, do not reach its pods.",
        "{why}",
    ),
    Row(
        "host.port-taken",
        "port-taken",
        BROKEN,
        "The overlay's device {devices} cannot be used, so nothing goes to any peer.",
        "UDP port {port} is taken by {owner}.",
    ),
    Row(
        "host.ike-port-taken",
        "port-taken",
        BROKEN,
        "IPsec has no tunnel with some peers, and charon does not have the port that it needs.",
        "UDP port {port} is taken by {owner}.",
    ),
    Row(
        "host.peer-address-here",
        "peer-address-here",
        WARNING,
        "{address} is a pod address of {peers} ({subnet}), but this host keeps its packets.",
        "{device} of this host has {held}.",
    ),
    Row(
        "host.flanneld",
        "flanneld",
        WARNING,
        "Two programs write the routes, the device and the subnet.env of this node.",
        "A flanneld runs beside this dataplane: {process}.",
    ),
    Row(
        "host.cni-configuration",
        "cni-configuration",
        WARNING,
        "New pods of this node are not in its subnet, and reach no pod of another node.",
        "The container runtime takes {first}{owner}, which comes before {ours} by name.",
    ),
    Row(
        "host.cni-broken",
        "cni-configuration",
        WARNING,
        "No new pod starts on this node.",
        "containerd cannot read {file}, and then reads no other CNI configuration: {why}.{advice}",
    ),
    Row(
        "host.cni-directory",
        "cni-configuration",
        WARNING,
        "New pods of this node are not in its subnet, or do not start.",
        "The container runtime takes CNI configurations from {directory}, as {source} says, and flannel's is {ours}. "
        "Install it there (--cni-install-path, in the chart flannel.cniConfDir).",
    ),
    Row(
        "host.cni-leftover-file",
        "cni-leftover",
        WARNING,
        "New pods are in the network of {owner} while {ours} is not there, as after a boot of a node of Kubernetes.",
        "{file} is left of {owner}.",
    ),
    Row(
        "host.cni-leftover-device",
        "cni-leftover",
        WARNING,
        "What {owner} has left on this host may take packets of pods.",
        "{devices} {are} there, and no configuration of {owner} is in force.",
    ),
    Row(
        "host.cni-plugin",
        "cni-plugin",
        WARNING,
        "No new pod starts on this node.",
        "The CNI plugin {plugin}, which {caller} calls, is not in {directories}; {where}.",
    ),
    *(
        Row(
            f"host.xfrm-block-{what}",
            "xfrm-block",
            BROKEN,
            problem,
            _BLOCKED,
        )
        for what, problem in (
            ("pods", "Packets between pods of this node and {peers} are dropped."),
            ("own", "Packets between this host and its own pods are dropped."),
            ("nodes", "Packets between this node and {peers} are dropped."),
            ("single", "Packets of single pods of this node are dropped."),
        )
    ),
    # the way to peers
    Row("peer.route", "peer-route", BROKEN, "Packets from pods do not reach {peers}.", "{why}"),
    Row("peer.route-host", "peer-route", BROKEN, "Packets from this node do not reach {peers}.", "{why}"),
    Row("peer.return", "peer-return", BROKEN, "Packets from {peers} do not reach the pods of this node.", "{why}"),
    Row("pod.rule-away", "pod-rule", BROKEN, "Packets from {pods} do not reach other nodes.", "{why}"),
    Row("pod.rule-back", "pod-rule", BROKEN, "Packets from other nodes do not reach {pods}.", "{why}"),
    Row(
        "peer.route-taken",
        "peer-route",
        BROKEN,
        "Packets to {subnet} of {peers} do not reach that node.",
        "{why}",
    ),
    Row(
        "peer.address-behind",
        "peer-address-here",
        BROKEN,
        "Packets to {subnet} of {peers} do not reach that node.",
        "{why}",
    ),
    Row(
        "peer.part",
        "part-of-a-peer",
        WARNING,
        "Packets to {part}, a part of the subnet {subnet} of {peers}, do not reach that node.",
        "{why}",
    ),
    Row(
        "peer.objects",
        "peer-objects",
        BROKEN,
        "Packets to {peers} are lost, because what carries them could not be made.",
        "The kernel refuses `{object}`: {reason}.",
        after=("host.port-taken",),
    ),
    Row(
        "peer.objects-direct",
        "peer-objects",
        BROKEN,
        "Packets to {peers} are lost, because what carries them could not be made.",
        "The kernel refuses `{object}`: {reason}. Backend host-gw needs all nodes in one layer-2 network, and the "
        "address of this one is not directly connected: use vxlan, with DirectRouting for nodes that are.",
    ),
    Row(
        "peer.refused",
        "peer-refused",
        BROKEN,
        "{peers} gets no packets, because this node refuses its lease.{away}",
        "The lease {lease}: {reason}.",
    ),
    Row(
        "peer.claim",
        "claim",
        BROKEN,
        "{who} claims a subnet, MAC, key or address {whose}, and gets no packets.{away}",
        "The lease {lease}: {reason}.",
    ),
    Row(
        "peer.tunnel",
        "peer-tunnel",
        WARNING,
        "No answer comes through the overlay from {peers}; in the underlay there is one.",
        "Something {where} drops {carrier}, or ICMP of the overlay (a firewall, traffic control), or the overlay of "
        "the peer is not set up. `flannelette doctor` names what drops packets on its node: run it there too; if it "
        "names nothing on both, what lies between them drops them.",
        shows=_OF_TUNNEL,
    ),
    Row(
        "peer.down",
        "peer-down",
        WARNING,
        "No answer comes from {peers}, neither through the overlay nor in the underlay.",
        "The node is down, or the network between the nodes is, or drops ICMP.",
        after=_NO_NEIGHBOURS,
        shows=("firewall.dnat-tunnel",),
    ),
    Row(
        "peer.loss",
        "peer-loss",
        WARNING,
        "Some packets to and from {peers} are lost in the overlay; in the underlay they are not.",
        "Something on either node or between them drops some of {carrier}, or of what it carries: a rate limit, a "
        "queue that is full. `flannelette doctor` names what drops packets on its node: run it there too.",
        shows=_OF_TUNNEL,
    ),
    Row(
        "peer.echo",
        "peer-echo",
        WARNING,
        "Pings through the overlay are not answered by {peers}; other packets pass.",
        "Its kernel ignores them (net.ipv4.icmp_echo_ignore_all, net.ipv6.icmp.echo_ignore_all), or a firewall drops "
        "them, on either node. Nothing else is lost; without pings, losses, round-trip times and the MTU of the path "
        "are not known.",
    ),
    Row(
        "peer.checksum",
        "peer-checksum",
        WARNING,
        "TCP and UDP through the overlay do not reach {peers}; pings do.",
        "What sends the packets of {devices} (a network card, the host of a virtual machine), or a peer in user "
        "space, does not complete checksums that the kernel leaves to the card (checksum offload).{remark}",
    ),
    # the underlay
    Row("underlay.route", "underlay-route", BROKEN, "The tunnel to {peers} has no usable route.", "{why}"),
    Row(
        "underlay.detour",
        "underlay-detour",
        BROKEN,
        "No answer comes from {peers}, and packets to there leave by {device}, not by {underlay}.",
        "{why} If they are meant to go there, the node is down, or what is behind {device} is.",
    ),
    Row(
        "underlay.network",
        "underlay-network",
        BROKEN,
        "Packets to {peers} take a detour or are lost, although {network} is directly connected on {device}.",
        "The route to {network} by {device} is missing.",
    ),
    Row(
        "underlay.return",
        "underlay-return",
        WARNING,
        "Packets of the tunnel from {peers} are dropped.",
        "{why}",
    ),
    Row(
        "underlay.neighbour-permanent",
        "underlay-neighbour",
        WARNING,
        "Packets to {peers} go to a MAC for {address} that the kernel does not verify.",
        "A permanent neighbour entry of {address} on {device} has the MAC {mac}, which may be wrong.",
    ),
    Row(
        "underlay.neighbour-silent",
        "underlay-neighbour",
        WARNING,
        "Packets to {peers} are not sent, because no host on {device} answers for {gateway}.",
        "No reply to {asked} for {gateway}: the gateway is down, or has another address, or {device} is in another "
        "network (VLAN, cable).",
    ),
    Row(
        "underlay.mac-duplicate",
        "underlay-duplicate",
        WARNING,
        "{address}, the way to {peers}, has the MAC of this host: a switch delivers packets to one of the two.",
        "{device} of this host and {address} both have the MAC {mac}, as cloned machines do: give one of the two "
        "another MAC.",
    ),
    Row(
        "underlay.address-duplicate",
        "underlay-duplicate",
        BROKEN,
        "This host does not use its address {address}, so nothing from any peer arrives.",
        "Another host on {device} has {address} too, as the kernel's check for duplicates has found: give one of the "
        "two another address, then delete and add this one.",
    ),
    Row(
        "underlay.address-lost",
        "underlay-address",
        BROKEN,
        "This host has lost its address {address}, so nothing from any peer arrives.",
        "No interface has the address {address} any more; {device} had it.",
    ),
    Row("underlay.address-hidden", "underlay-address", BROKEN, _MISSED, "{why}"),
    Row("underlay.address-local", "underlay-address", BROKEN, _MISSED, "The local route of {address} is missing."),
    Row(
        "underlay.mtu",
        "underlay-mtu",
        WARNING,
        "Packets of pods to {peers} of more than {largest} bytes do not pass; pods send up to {mtu}.",
        "The route `{route}` has a smaller MTU than {device} ({device_mtu}). If that is right, set the option MTU of "
        "the backend.",
    ),
    Row(
        "underlay.family",
        "underlay-family",
        WARNING,
        "This node carries no {family}, because {device} has no {family} address; the rest runs.",
        "{why}. {family} comes by itself then.",
    ),
    # the firewalls and traffic control of the host
    *(
        Row(f"firewall.{by}-{what}", f"firewall-{what}", WARNING, f"{{packets}} {{are}} dropped{why}.", cause)
        for what, why in (
            ("pods", ""),
            ("tunnel", ""),
            ("arp", ": without ARP no packet finds its way"),
            ("nd", ": without neighbour discovery no packet of IPv6 finds its way"),
        )
        for by, cause in (
            ("rule", "A rule of {owner} {drops} them: `{rule}`, {place}.{keep}"),
            ("policy", "The policy of {place} is {policy}{setter}, and {certain}.{keep}"),
        )
    ),
    Row(
        "firewall.snat",
        "firewall-snat",
        WARNING,
        "{who} see packets of {pods} under {address}{lost}.",
        "A rule of {owner} changes their source: `{rule}`, {place}.",
    ),
    *(
        Row(
            code,
            "firewall-dnat",
            WARNING,
            "{packets} get another destination.",
            "A rule of {owner} changes it: `{rule}`, {place}{target}.",
        )
        for code in ("firewall.dnat", "firewall.dnat-tunnel")
    ),
    Row(
        "firewall.mark",
        "firewall-mark",
        BROKEN,
        "Packets {packets} {there}.",
        "A rule of {owner} marks them with {mark}: `{rule}`, {place}. The rule `{routing}` of policy routing "
        "sends what has this mark another way.",
    ),
    Row(
        "firewall.notrack",
        "firewall-notrack",
        BROKEN,
        "Packets of pods to the outside are not masqueraded, so no answer comes back.",
        "A rule of another program keeps connection tracking from them: `{rule}`, {place}. Masquerading needs it, "
        "for what pods send ({source}) and for what answers this node: have that rule name what it is for.",
    ),
    Row("firewall.stale", "stale-rules", WARNING, "{what}."),
    Row(
        "firewall.two",
        "two-firewalls",
        WARNING,
        "There are rules in the legacy tables and in those of iptables-nft: both decide about every packet.",
        "Programs of this host use both kinds of iptables, and neither shows the rules of the other. What drops "
        "packets is named by itself; to have one kind, have all programs use {kind} (`update-alternatives --config "
        "iptables`).",
    ),
    Row(
        "guard.absent",
        "fabric-guard",
        WARNING,
        "The fabric guard is not in place: packets of the overlay are believed, whoever has sent them.",
        "{reason}.",
    ),
    Row(
        "guard.strangers",
        "fabric-guard",
        WARNING,
        "Packets for the tunnel come from addresses that are no peer's, and {verb}: {addresses}.",
        "Either somebody forges packets of pods, or a node sends from another address than the public one of its "
        "lease: then name that address with --fabric-guard-source.",
    ),
    Row(
        "guard.sender",
        "fabric-guard",
        WARNING,
        "Packets of pods of {node} come to the tunnel from {sender}, not from the public address of its lease "
        "({public}), and {verb}.",
        "{node} is behind NAT or sends from another address of its own: then masq of every other node needs {flag}, "
        "and a restart, which loses no packet. If {sender} is no node's, somebody there forges packets of pods.",
    ),
    Row(
        "guard.outsiders",
        "fabric-guard",
        WARNING,
        "Packets come out of the overlay whose sources are no pods of a peer, and {verb}: {addresses}.",
        "Either a node or somebody in its name forges packets, or a node sends other hosts' packets into the overlay "
        "as they are: then name their network with --ip-masq-exclude at masq of every node.",
    ),
    Row(
        "pods.unguarded",
        "pod-guard",
        WARNING,
        "The pod guard is not in place: pods may send under any address.",
        "{reason}.",
    ),
    Row(
        "pods.forging",
        "pod-guard",
        WARNING,
        "Packets of pods are dropped, because their source is not the pod's: {ports}.",
        "Either somebody in the pod forges addresses, or the pod has one that CNI does not know, as of a VIP or of "
        "direct return: then masq of this node needs --pod-guard=subnet, or off if the address is in no network of "
        "the node's pods.",
    ),
    Row(
        "masq.source-absent",
        "ip-masq-source",
        WARNING,
        "What pods send to the outside under {address} {get}.",
        "{address} of --ip-masq-source is no address of this node: answers come back only where the underlay routes "
        "them to it.",
    ),
    Row("firewall.bridge-calls", "bridge-calls", WARNING, _NO_HAIRPIN, "{key} is {value}."),
    Row(
        "firewall.bridge-calls-absent",
        "bridge-calls",
        WARNING,
        _NO_HAIRPIN,
        "The module br_netfilter is not loaded.",
    ),
    Row(
        "firewall.source-ports",
        "source-ports",
        WARNING,
        "Connections were lost because SNAT gave two of them one source port.",
        "masq was started with --ip-masq-fully-random-disable.",
    ),
    Row(
        "traffic.queue",
        "queue-drops",
        WARNING,
        "Packets of the overlay that leave by {device} {are} dropped.",
        "The queueing discipline {kind} of {device} has dropped {count} packets since it was made: {why}.{advice}",
    ),
    Row(
        "traffic.filter",
        "tc-filter",
        WARNING,
        "{packets} {are} lost at {device}.",
        "The filter `{filter}` of traffic control on {device} {drops} {place}.{advice}",
    ),
    # the node's own lease, its clock, and the service itself
    Row(
        "node.own-claim",
        "own-claim",
        BROKEN,
        "Other nodes send no packets here: our lease loses to that of {winner}.",
        "The own lease {lease}: {reason}.",
    ),
    Row(
        "node.own-key",
        "own-key",
        WARNING,
        "The key of {node} ({lease}) was overwritten or deleted {count} times in the last minute.",
        "Another program writes it: a script, a flanneld on this host, or a second node called {node}.",
    ),
    Row(
        "node.own-lease",
        "own-lease",
        SOON,
        "The lease {lease} of this node {runs} out at {time}: it is not renewed.",
        "The last renewals have failed: {reason}.",
        after=_NO_STORE,
    ),
    Row(
        "node.clock",
        "clock",
        WARNING,
        "The clock of this host is {seconds} s {where} that of the lease service.",
        "One of the two is not set by NTP: `timedatectl` on both hosts says which.",
    ),
    Row("service.own-checks", "own-checks", WARNING, "The service cannot check itself.", "{error}."),
    Row(
        "service.state-file",
        "state-file",
        SOON,
        "{reason}.",
        "The disk is full, or read-only: after a restart, the service does not know what it knows now.",
    ),
    Row(
        "service.name-taken",
        "name-taken",
        WARNING,
        "A process without CAP_NET_ADMIN holds @{name}, a name of this service.",
        "Any user, and any pod in the host's network, can bind such a name. It is held in vain: only names whose "
        "holder may change the network count. As root, `ss -xap` shows the process: end it.",
    ),
    Row(
        "service.certificate-refused",
        "certificate",
        SOON,
        "The TLS files on disk cannot be used: {reason}.",
        "Those that were read before stay in force, and a restart would fail. Replace the files; no restart is "
        "needed.",
    ),
    Row(
        "service.certificate-expiry",
        "certificate",
        SOON,
        "The certificate in {file} {runs} out on {date}.",
        "Nothing has replaced it. Replace the file; no restart is needed.",
    ),
    # the store, and imports of other clusters
    Row(
        "store.away",
        "store-away",
        SOON,
        "etcd does not answer: no node gets or renews a lease, and no node follows changes.",
        "{complaint}.",
        after=("store.quorum",),
        is_shared=True,
        lasts=_ELECTION,
    ),
    Row(
        "store.quorum",
        "store-quorum",
        SOON,
        "etcd has no leader: no node gets or renews a lease, and no node follows changes.",
        "{complaint}.",
        is_shared=True,
        lasts=_ELECTION,
    ),
    Row(
        "store.member",
        "store-member",
        WARNING,
        "{failing} of {all} endpoints of etcd {fail}; the others are used.",
        "{complaint}.",
        after=_NO_STORE,
        is_shared=True,
        lasts=_ELECTION,
    ),
    Row(
        "store.slow",
        "store-slow",
        WARNING,
        "etcd is slow: half of the last {calls} calls took more than {seconds} s.",
        "A slow disk, a slow network between its members, or too much load: see etcd_disk_wal_fsync_duration_seconds "
        "of its metrics.",
    ),
    Row("import.away", "import", SOON, "The lease service of cluster {cluster} is away: {effect}.", "{error}."),
    Row(
        "import.refused",
        "import-refused",
        BROKEN,
        "{lease} of cluster {cluster} is not imported{more}: its pods cannot be reached.",
        "{reason}.",
    ),
    Row(
        "import.backend",
        "import-backend",
        BROKEN,
        "Nodes of cluster {cluster} cannot be peers of these nodes: {reason}.",
        "Two clusters reach each other by one backend with the same settings: change one of the networks.",
    ),
    # leases of nodes
    Row(
        "lease.flapping",
        "flapping",
        WARNING,
        "node {node}{more} changes its MAC or public address too often: its peers keep the last value.",
        "{count} changes had to wait, or were refused. A program on the node changes its interface or address again "
        "and again, or something else has the node's name and right to publish.",
        is_shared=True,
    ),
    Row(
        "lease.no-pod-cidr",
        "",
        SOON,
        "node {node} has no {which} yet: waiting for Kubernetes to assign it (kube-controller-manager with "
        "--allocate-node-cidrs and --cluster-cidr)",
        event="NoPodCIDR",
    ),
    Row("lease.claimed-twice", "", BROKEN, "{reason}", event="AddressClaimedTwice"),
    Row("lease.refused", "", BROKEN, "{reason}", event="LeaseRefused"),
    Row("lease.change-pending", "", WARNING, "{move}", event="NetworkChangePending"),
    # why a service is not ready
    *(
        Row(
            f"unready.{name}",
            "",
            weight,
            "{reason}",
            after=after,
            sums_up=name in _SUMS,
        )
        for name, weight, after in (
            ("kernel", BROKEN, ()),
            ("snapshot", BROKEN, ("unready.lease-service", "unready.store", "unready.leases", *_NO_STORE)),
            ("forwarding", BROKEN, ()),
            ("lease-service", SOON, _NO_STORE),
            ("store", SOON, (*_NO_STORE, "unready.own-store")),
            ("leases", BROKEN, ("unready.lease-service", "unready.store", *_NO_STORE)),
            ("network", BROKEN, ()),
            ("inputs", BROKEN, ("unready.lease-service", "unready.store", *_NO_STORE)),
            ("own-lease", BROKEN, ("unready.lease-service", "unready.store", "node.own-claim", *_NO_STORE)),
            ("backend", BROKEN, ()),
            ("subnet-file", BROKEN, ()),
            ("cni-configuration", BROKEN, ()),
            ("firewall", BROKEN, ()),
            ("memory", SOON, ("unready.lease-service", "unready.store", *_NO_STORE)),
            ("lease", BROKEN, ("unready.own-lease", "unready.lease-service", "unready.store", *_NO_STORE)),
            ("certificate", SOON, ()),
            ("configuration", SOON, _NO_STORE),
            ("cloud", SOON, ()),
            ("service", SOON, ()),
            ("stopping", SOON, ()),
        )
    ),
    Row("unready.own-store", "", SOON, "{reason}", after=_NO_STORE, is_shared=True),
    # what the command line sees in the answers of services, or in that there is none
    Row("ctl.configuration", "", WARNING, "the stored network configuration is not in force: {error}"),
    Row("ctl.quarantine", "", WARNING, "{count} of the store refused: `flannelette quarantine` says why"),
    Row("ctl.held", "", WARNING, "{reason} (`flannelette confirm-removal`)"),
    Row("ctl.moves", "", WARNING, "network change pending for {count}, which keep their subnets{advice}"),
    Row("ctl.move", "", WARNING, "{pending}{advice}"),
    Row("ctl.leases-kept", "", SOON, "no connection to the lease service: the leases are the last ones known"),
    Row(
        "ctl.store-lost",
        "",
        SOON,
        "the lease service has lost its store: the leases are the last ones known",
        after=(*_NO_STORE, "unready.own-store"),
    ),
    Row(
        "ctl.rules-kept",
        "",
        SOON,
        "no connection to the lease service: the network and the lease are the last ones known",
    ),
    Row("ctl.unreached", "", BROKEN, "{count} of {total} peers cannot be reached: `flannelette peers` says why"),
    Row(
        "ctl.masquerade-twice",
        "",
        WARNING,
        "--ip-masq is true here and false on the dataplane, so the CNI plugin masquerades too",
    ),
    Row(
        "ctl.masquerade-nowhere",
        "",
        BROKEN,
        "--ip-masq is false here and true on the dataplane, so no rule masquerades what pods send to the outside",
    ),
    Row(
        "ctl.elsewhere",
        "",
        WARNING,
        "the dataplane is connected to a lease service elsewhere; name it with --lease to see it",
    ),
    Row("ctl.central", "", WARNING, "the lease service is central; this is not one of its nodes"),
    Row(
        "ctl.unconnected",
        "",
        SOON,
        "if the lease service is elsewhere, the dataplane cannot reach it (its --lease-address)",
        after=("ctl.away",),
    ),
    Row("ctl.away", "", SOON, "{failure}"),
    Row("ctl.silent", "", SOON, "No service answers.", "{failures}"),
    Row(
        "ctl.not-connected",
        "",
        SOON,
        "The node is not connected.",
        "Its dataplane does not run, or does not reach the lease service.",
        after=(*_NO_STORE, "unready.own-store"),
    ),
    Row("ctl.failed-leases", "", BROKEN, "{count} could not be programmed.", "{first}"),
    Row("ctl.cloud", "", SOON, "The cloud's routes are not kept.", "{reason}"),
    Row(
        "ctl.version",
        "version",
        WARNING,
        "The {who} have different versions.",
        "An update is under way or has left something out; neighbouring releases work together.",
    ),
    # routes of a cloud
    Row(
        "cloud.route",
        "cloud-route",
        BROKEN,
        "Packets to the pods of {node} ({destination}) are lost: table {table}.",
        "{reason}",
    ),
    Row(
        "cloud.route-unneeded",
        "cloud-route",
        WARNING,
        "Table {table} has a route to {destination} that no node needs.",
        "{reason}",
    ),
    Row(
        "cloud.limit",
        "cloud-limit",
        SOON,
        "Table {table} needs {needed} routes, and takes {most}.",
        "Each node needs one in each table: have the provider raise the quota, then set --cloud-routes-limit.",
    ),
    Row("cloud.limit-refused", "cloud-limit", BROKEN, "A table takes no more routes.", "{reason}"),
    Row(
        "cloud.credentials",
        "cloud-credentials",
        SOON,
        "The cloud's routes cannot be read or written.",
        "{reason}",
    ),
    Row(
        "peer.mtu-unknown",
        "peer-mtu",
        BROKEN,
        "Packets of {mtu} bytes, the largest that pods send, do not reach {peers}; small ones do.",
        "A link between the nodes has a smaller MTU than the underlay's interface, or a firewall drops large "
        "packets.",
    ),
    Row(
        "peer.mtu",
        "peer-mtu",
        BROKEN,
        "Packets of more than {largest} bytes do not reach {peers}; pods send up to {mtu}.",
        "A link between the nodes has a smaller MTU than the underlay's interface: lower that by {less}, or the "
        "option MTU of the backend{until_then}.",
    ),
    Row(
        "peer.mtu-underlay",
        "peer-mtu",
        WARNING,
        "Packets of this node of more than {largest} bytes do not reach {peers}; pods are told to send smaller ones.",
        "A link between the nodes has a smaller MTU than {device} ({mtu}): lower that to {largest}.",
    ),
)
"""Every condition, by its code."""
