"""xfrm policies, and what charon has loaded, as values; `netlink/objects` says what such values are."""

from collections.abc import Hashable
from typing import ClassVar, Final, NamedTuple

from flannelette.services.core.secret import Secret
from flannelette.services.core.tunnel import IPSEC_MARK

XFRM_POLICY: Final = -6
IKE_KEY: Final = -5
IKE_CONNECTION: Final = -4
"""Their places in the order of work: before rtnetlink's kinds."""

REQID, TUNNEL_PRIORITY = IPSEC_MARK
"""Of our policies with a template; the states that belong to them have the reqid too. Of priorities the lesser number
is asked first; flannel's have 0."""
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

    def __getnewargs__(self) -> tuple[object, ...]:  # for copies and pickles: the kind is no argument
        return self[1:]

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

    def __getnewargs__(self) -> tuple[object, ...]:  # for copies and pickles: the kind is no argument
        return self[1:]

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

    def __getnewargs__(self) -> tuple[object, ...]:  # for copies and pickles: the kind is no argument
        return self[1:]

    @property
    def key(self) -> Hashable:
        """All of it: charon updates no connection, so that another one is loaded before this one is unloaded."""
        return tuple(self)
