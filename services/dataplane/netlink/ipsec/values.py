"""xfrm policies, and what charon has loaded, as values and in the words of `ip xfrm policy` and of vici.

`netlink/objects` says what such values are.
"""

from collections.abc import Hashable, Mapping
from ipaddress import ip_address
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

from flannelette.services.core.backend_types import IPSEC_MARK, Secret

XFRM_POLICY: Final = -6
IKE_KEY: Final = -5
IKE_CONNECTION: Final = -4
"""Numbers of the kinds, which are their places in the order of work: before rtnetlink's kinds."""

REQID, TUNNEL_PRIORITY = IPSEC_MARK
"""Reqid and priority of our policies with a template; the states that belong to them have the reqid too. Of
priorities the lesser number is asked first; flannel's have 0."""
ALLOW_PRIORITY: Final = 0x666C616E
BLOCK_PRIORITY: Final = ALLOW_PRIORITY + 1
"""Mark our policies without a template: after every other policy."""

DIR_IN: Final = 0
DIR_OUT: Final = 1
DIR_FWD: Final = 2
ALLOW: Final = 0
BLOCK: Final = 1


class _PolicyFields(NamedTuple):
    kind: int
    direction: int
    src: bytes
    src_length: int
    dst: bytes
    dst_length: int
    action: int
    priority: int
    tunnel_src: bytes
    tunnel_dst: bytes
    reqid: int
    is_optional: bool
    rest: bytes


class XfrmPolicy(_PolicyFields):
    """What the kernel does with packets from `src` to `dst`: an ESP tunnel, nothing (allow), or drops them (block).

    * `tunnel_src` and `tunnel_dst` are the ends of the tunnel; empty, with `reqid` 0: there is none.
    * `is_optional`: packets that did not come by the tunnel are let in, too.
    * `rest` is whatever else the kernel has of it, as limits. Empty on all of ours.
    """

    __slots__ = ()
    ifindex: ClassVar[int] = 0

    def __new__(
        cls,
        direction: int,
        src: bytes,
        src_length: int,
        dst: bytes,
        dst_length: int,
        action: int = ALLOW,
        priority: int = 0,
        tunnel_src: bytes = b"",
        tunnel_dst: bytes = b"",
        reqid: int = 0,
        is_optional: bool = False,
        rest: bytes = b"",
    ) -> "XfrmPolicy":
        """The fields in their order, without the kind."""
        more = (action, priority, tunnel_src, tunnel_dst, reqid, is_optional, rest)
        return tuple.__new__(cls, (XFRM_POLICY, direction, src, src_length, dst, dst_length, *more))

    @property
    def key(self) -> Hashable:
        """Direction and selector: an update of the same replaces this one, whatever its priority."""
        return self[:6]

    @property
    def is_marked(self) -> bool:
        """Whether it is ours."""
        if self.tunnel_src:
            return (self.reqid, self.priority) == (REQID, TUNNEL_PRIORITY)
        return self.priority in (ALLOW_PRIORITY, BLOCK_PRIORITY)

    @property
    def is_like_flannels(self) -> bool:
        """Whether a flanneld may have made it."""
        return bool(self.tunnel_src) and (self.reqid, self.priority) == (REQID, 0)


class _KeyFields(NamedTuple):
    kind: int
    owner: str
    psk: Secret


class IkeKey(_KeyFields):
    """The pre-shared key by which charon authenticates this address, its own or a peer's.

    charon does not tell a key: `psk` is empty where another process has loaded it.
    """

    __slots__ = ()
    ifindex: ClassVar[int] = 0

    def __new__(cls, owner: str, psk: Secret) -> "IkeKey":
        """The fields in their order, without the kind."""
        return tuple.__new__(cls, (IKE_KEY, owner, psk))

    @property
    def key(self) -> Hashable:
        """The identity of the key in charon: the address of its owner."""
        return IKE_KEY, self.owner


class _ConnectionFields(NamedTuple):
    kind: int
    local: str
    local_id: str
    own_subnet: str
    remote: str
    peer_subnet: str
    encap: bool
    proposal: str


class IkeConnection(_ConnectionFields):
    """A connection of charon: which tunnel to which peer is negotiated, and kept.

    Addresses and subnets are texts, as vici has them; `local` is the underlay's address, `local_id` what peers know.
    """

    __slots__ = ()
    ifindex: ClassVar[int] = 0

    def __new__(
        cls,
        local: str,
        local_id: str,
        own_subnet: str,
        remote: str,
        peer_subnet: str,
        encap: bool,
        proposal: str,
    ) -> "IkeConnection":
        """The fields in their order, without the kind."""
        more = (own_subnet, remote, peer_subnet, encap, proposal)
        return tuple.__new__(cls, (IKE_CONNECTION, local, local_id, *more))

    @property
    def key(self) -> Hashable:
        """All of it: charon updates no connection, so that another one is loaded before this one is unloaded."""
        return tuple(self)


if TYPE_CHECKING:
    from flannelette.services.dataplane.netlink.objects import Verb

DIRECTIONS: Final = ("in", "out", "fwd")
MARK: Final = "flannelette"
"""Begins the names of what is ours in charon."""


def policy(item: XfrmPolicy, names: Mapping[int, str]) -> str:
    """`src 10.5.1.0/24 dst 10.5.2.0/24 dir out priority 0 tmpl src ... proto esp reqid 11 mode tunnel`."""
    words = [_selector(item)]
    if item.action == BLOCK:
        words.append("action block")
    words.append(f"priority {item.priority}")
    if item.tunnel_src:
        ends = f"src {ip_address(item.tunnel_src)} dst {ip_address(item.tunnel_dst)}"
        words.append(f"tmpl {ends} proto esp reqid {item.reqid} mode tunnel" + " level use" * item.is_optional)
    return " ".join(words) + (" and more" if item.rest else "")


def policy_command(verb: "Verb", item: XfrmPolicy, names: Mapping[int, str]) -> str:
    """`ip xfrm policy update ...`."""
    if verb == "del":
        return f"ip xfrm policy del {_selector(item)}"
    return f"ip xfrm policy update {policy(item, names)}"


def key(item: IkeKey, names: Mapping[int, str]) -> str:
    """`shared flannelette-10.99.0.12 type IKE owners 10.99.0.12 data (hidden)`."""
    return f"shared {key_id(item)} type IKE owners {item.owner} data {item.psk}"


def key_command(verb: "Verb", item: IkeKey, names: Mapping[int, str]) -> str:
    """The command of vici."""
    return f"vici unload-shared {key_id(item)}" if verb == "del" else f"vici load-{key(item, names)}"


def connection(item: IkeConnection, names: Mapping[int, str]) -> str:
    """`conn 10.99.0.11 10.5.27.0/24 === 10.99.0.12 10.5.53.0/24 esp aes128...`."""
    encap = " encap" if item.encap else ""
    known = f" id {item.local_id}" if item.local_id != item.local else ""
    return (
        f"conn {item.local}{known} {item.own_subnet} === {item.remote} {item.peer_subnet}{encap} esp {item.proposal}"
    )


def connection_command(verb: "Verb", item: IkeConnection, names: Mapping[int, str]) -> str:
    """The command of vici."""
    if verb == "del":
        return f"vici unload-conn {connection_name(item)}"
    return f"vici load-{connection(item, names)}"


def key_id(item: IkeKey) -> str:
    """Returns the id by which charon knows the key."""
    return f"{MARK}-{item.owner}"


def connection_name(item: IkeConnection) -> str:
    """Says everything of it, as charon tells of a connection not much more than its name."""
    encap = "encap" if item.encap else "plain"
    parts = (MARK, item.local, item.local_id, item.own_subnet, item.remote, item.peer_subnet, encap, item.proposal)
    return ",".join(parts)


def connection_of(name: str) -> IkeConnection | None:
    """The connection that has this name; None: it is not ours."""
    match name.split(","):
        case [mark, local, local_id, own, remote, theirs, ("encap" | "plain") as encap, proposal] if mark == MARK:
            return IkeConnection(local, local_id, own, remote, theirs, encap == "encap", proposal)
    return None


def _selector(item: XfrmPolicy) -> str:
    ends = f"src {ip_address(item.src)}/{item.src_length} dst {ip_address(item.dst)}/{item.dst_length}"
    return f"{ends} dir {DIRECTIONS[item.direction]}"
