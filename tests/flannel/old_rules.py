"""What older flannelds leave in the firewall, for any network: in each family, with and without random ports."""

import re
from collections.abc import Mapping

from flannelette.services.core.family import IPV4, Network, family_of
from tests.hosts.masq import Host, golden

V0_12 = """\
*nat
-A POSTROUTING -s 10.5.0.0/16 -d 10.5.0.0/16 -j RETURN
-A POSTROUTING -s 10.5.0.0/16 ! -d 224.0.0.0/4 -j MASQUERADE --random-fully
-A POSTROUTING ! -s 10.5.0.0/16 -d 10.5.27.0/24 -j RETURN
-A POSTROUTING ! -s 10.5.0.0/16 -d 10.5.0.0/16 -j MASQUERADE --random-fully
COMMIT
*filter
-A FORWARD -s 10.5.0.0/16 -j ACCEPT
-A FORWARD -d 10.5.0.0/16 -j ACCEPT
COMMIT
"""
NFT = """\
table ip flannel-ipv4 {
  chain forward {
    type filter hook forward priority filter; policy accept;
    ip saddr 10.5.0.0/16 accept
    ip daddr 10.5.0.0/16 accept
  }
  chain postrtg {
    type nat hook postrouting priority srcnat; policy accept;
    meta mark 0x4000 return
    ip saddr 10.5.27.0/24 ip daddr 10.5.0.0/16 return
    ip saddr 10.5.0.0/16 ip daddr 10.5.27.0/24 return
    ip saddr != 10.5.27.0/24 ip daddr 10.5.0.0/16 return
    ip saddr 10.5.0.0/16 ip daddr != 224.0.0.0/4 masquerade fully-random
    ip saddr != 10.5.0.0/16 ip daddr 10.5.0.0/16 masquerade fully-random
  }
}
"""
IPTABLES: Mapping[str, str] = {
    "v0.12": V0_12,
    **{
        version: "\n".join(line for line in golden(f"flanneld-{version}") if "KUBE" not in line)
        for version in ("v0.20", "v0.28")
    },
}
"""By version, for iptables-restore."""


def leave(host: Host, firewall: str, version: str, network: Network, subnet: Network, *, random: bool) -> None:
    """Puts the rules of one family where a flanneld of this version would have them.

    `firewall` is `legacy` or `nft`: the iptables of the host then; `nftables`: the flanneld's own tables.
    """
    text = NFT if firewall == "nftables" else IPTABLES[version]
    for before, after in (
        ("10.5.0.0/16", network),
        ("10.5.27.0/24", subnet),
        ("224.0.0.0/4", family_of(network).multicast),
    ):
        text = text.replace(before, str(after))
    if not random:
        text = text.replace(" --random-fully", "").replace(" fully-random", "")
    is_four = family_of(network) is IPV4
    if firewall == "nftables":
        six = text.replace("ip flannel-ipv4", "ip6 flannel-ipv6")
        six = re.sub(r"\bip (saddr|daddr)", r"ip6 \1", six)
        host.run("nft", "-f", "-", stdin=text if is_four else six)
    else:
        program = f"ip{'' if is_four else '6'}tables-{firewall}-restore"
        host.run(program, "--noflush", stdin=re.sub(r"^:(\w+) ACCEPT.*\n", "", text, flags=re.MULTILINE) + "\n")
