"""What only probes find, one row each."""

import sys
from typing import Final

from tests.findings.fault import SilentFault
from tests.paths import ROOT

_CARD: Final = f"{sys.executable} {ROOT}/tests/faults/broken_card.py nic-far eth0"

_FIX: Final = (
    f"{sys.executable} -m flannelette.services.ctl.main --socket-dir={{directory}} doctor dataplane --fix --yes"
)
"""Where there may be no ethtool; it fails while there is a problem."""

_AWAY: Final = "ip link add away type bridge && ip link set away up && "

PROBE_FAULTS: Final = {
    "peer-behind-a-vpn": SilentFault(
        _AWAY + "{ip} route add {public} dev away",
        "underlay-detour",
        "The route `{public} dev away{scope}{metric}` takes these packets. If they are meant to go there, the node "
        "is down, or what is behind away is.",
        "{ip} route del {public} dev away proto boot{scope}{metric}",
        says="part",
        is_told=False,
        and_then="ip link del away",
        is_probed=True,
        what="a VPN's route to a peer's address",
        problem="No answer comes from n2, and packets to there leave by away, not by eth0.",
        evidence="{ip} route get {public} from {local} ipproto udp dport 8472: {public} dev away{scope}{metric}",
    ),
    "peers-behind-a-vpn": SilentFault(
        _AWAY + "{ip} route add {underlay_part} dev away",
        "underlay-detour",
        "The route `{underlay_part} dev away{scope}{metric}` takes these packets. If they are meant to go there, "
        "the node is down, or what is behind away is.",
        "{ip} route del {underlay_part} dev away proto boot{scope}{metric}",
        says="part",
        is_told=False,
        and_then="ip link del away",
        is_probed=True,
        what="a VPN's route to a part of the underlay",
        problem="No answer comes from n2, and packets to there leave by away, not by eth0.",
        evidence="{ip} route get {public} from {local} ipproto udp *: {underlay_part} dev away{scope}{metric}",
    ),
    "peer-in-a-vpns-table": SilentFault(
        _AWAY + "{ip} route add {public} dev away table 51820 && {ip} rule add to {public} priority 100 lookup 51820",
        "underlay-detour",
        "The rule `100: from all to {public} lookup 51820` sends these packets by the route "
        "`{public} dev away table 51820{scope}{metric}`. If they are meant to go there, the node is down, or what is "
        "behind away is.",
        "{ip} route del {public} dev away table 51820 proto boot{scope}{metric}",
        says="part",
        is_told=False,
        and_then="{ip} rule del priority 100 && ip link del away",
        is_probed=True,
        what="a VPN's rule, and a route of its table to a peer's address",
        problem="No answer comes from n2, and packets to there leave by away, not by eth0.",
        evidence="{ip} route get {public} from {local} ipproto udp *: {public} dev away table 51820{scope}{metric}",
    ),
    "all-in-a-vpns-table": SilentFault(
        _AWAY + "{ip} route add default dev away table 51820 && "
        "{ip} rule add to {underlay_network} priority 100 lookup 51820",
        "underlay-detour",
        "The rule `100: from all to {underlay_network} lookup 51820` sends these packets by the route "
        "`default dev away table 51820{scope}{metric}`. If they are meant to go there, the node is down, or what is "
        "behind away is.",
        "{ip} rule add to {public}/{bits} priority 99 table main",
        says="part",
        is_told=False,
        and_then="{ip} rule del priority 99 && {ip} rule del priority 100 && ip link del away",
        is_probed=True,
        what="a VPN's rule for the whole underlay, and the default route of its table",
        problem="No answer comes from n2, and packets to there leave by away, not by eth0.",
        evidence="{ip} route get {public} from {local} ipproto udp *: default dev away table 51820{scope}{metric}",
    ),
    "checksum-not-completed": SilentFault(
        "ip link add nic type veth peer name nic-far && ip link set nic up && ip link set nic-far up && "
        f"({_CARD} >/dev/null 2>&1 & echo $! > {{directory}}/card) && "
        "nft 'add table netdev card; add chain netdev card out "
        "{{ type filter hook egress device eth0 priority 0; }}; add rule netdev card out mark != 1 fwd to nic'",
        "peer-checksum",
        "What sends the packets of {device} (a network card, the host of a virtual machine), or a peer in user "
        "space, does not complete checksums that the kernel leaves to the card (checksum offload).",
        "ethtool -K {device} tx-checksum-ip-generic off",
        says="part",
        versions=(4,),
        is_answered=True,
        and_then="nft delete table netdev card && kill $(cat {directory}/card) && ip link del nic",
        is_probed=True,
        undo=_FIX,
        what="a network card that does not complete checksums inside the tunnel",
        problem="TCP and UDP through the overlay do not reach n2; pings do.",
        evidence="UDP to port 33434: answered with a checksum that the kernel has computed, and not with one that it "
        "leaves to the device, 5 times in a row",
    ),
}
