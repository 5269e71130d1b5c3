"""xfrm policies as `ip xfrm policy` takes them, and what charon has loaded, in the words of its interface vici."""

from collections.abc import Mapping
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

from flannelette.services.dataplane.netlink.ipsec.values import BLOCK, IkeConnection, IkeKey, XfrmPolicy

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
