"""What only probes find, one row each."""

import sys
from typing import Final

from tests.findings.fault import SilentFault
from tests.paths import ROOT

_CARD: Final = f"{sys.executable} {ROOT}/tests/faults/broken_card.py nic-far eth0"

_FIX: Final = f"{sys.executable} -m services.ctl.main --socket-dir={{directory}} doctor dataplane --fix --yes"
"""Where there may be no ethtool; it fails while there is a problem."""

PROBE_FAULTS: Final = {
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
