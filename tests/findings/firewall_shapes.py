"""Firewalls in the shape in which images, programs and operators have them, one row each: tried between two nodes."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Shape:
    """What is typed on n1, what masq says of it, and what cures it. n1's firewall is our own table of nftables."""

    act: str
    """By a shell; empty lines in it do not count."""
    named: str = ""
    """A part of the cause; empty: there is no finding."""
    cure: str = ""
    """The beginning of the command; empty: there is none."""
    is_broken: bool = True
    """Packets are lost: exactly then the finding is broken, but for a policy."""
    is_policy: bool = False
    """Packets of a pod are lost, because a NetworkPolicy says so."""
    is_of_arp: bool = False
    """Hosts do not find each other: after the cure those are reached that were before the act."""
    is_by_chance: bool = False
    """What else is reached beside the act is chance: after the cure it is no more than before the act."""
    is_part: bool = False
    """It is about a share of the packets, or some pods: masq is ready, because the rest passes."""
    is_seen: bool = False
    """Whether somebody answers is known once packets were sent."""
    stands_in: str = ""
    """What the program of the cure does to the rules, where that program is not here."""


def _restored(program: str, *lines: str, policies: str = "ACCEPT", table: str = "filter") -> str:
    """By PROGRAM-restore, as at boot."""
    chains = "PREROUTING OUTPUT" if table == "raw" else "INPUT FORWARD OUTPUT"
    heads = [f":{chain} {policies if chain == 'INPUT' else 'ACCEPT'} [0:0]" for chain in chains.split()]
    own = [f":{line.split()[1]} - [0:0]" for line in lines if line.startswith("-N ")]
    rules = [line for line in lines if not line.startswith("-N ")]
    text = "\\n".join([f"*{table}", *heads, *own, *rules, "COMMIT", ""])
    return f"printf '{text}' | {program}-restore"


def _nft(text: str) -> str:
    return f"nft '{text}'"


def _input(rules: str, *, more: str = "") -> str:
    """A server's chain of nftables, whose policy drops."""
    base = "ct state established,related accept; iif lo accept; meta l4proto icmp accept;"
    head = "type filter hook input priority 0; policy drop;"
    return _nft(f"table inet f {{ {more} chain i {{ {head} {base} {rules} }}; }}")


_IMAGE: Final = (
    "-A INPUT -m state --state RELATED,ESTABLISHED -j ACCEPT",
    "-A INPUT -p icmp -j ACCEPT",
    "-A INPUT -i lo -j ACCEPT",
    "-A INPUT -p udp -m udp --sport 123 -j ACCEPT",
    "-A INPUT -p tcp -m state --state NEW -m tcp --dport 22 -j ACCEPT",
    "-A INPUT -j REJECT --reject-with icmp-host-prohibited",
)
_PEER: Final = "10.99.0.12"
_ADDED: Final = f"nft add rule inet f i ip saddr {_PEER} udp dport 8472 accept"
_ENGINE: Final = """
for c in KUBE-ROUTER-FORWARD KUBE-POD-FW-A KUBE-NWPLCY-A; do iptables-nft -N $c; done
iptables-nft -I FORWARD -j KUBE-ROUTER-FORWARD
iptables-nft -A KUBE-ROUTER-FORWARD -d 10.5.27.2 -j KUBE-POD-FW-A
iptables-nft -A KUBE-POD-FW-A -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
{rule}
iptables-nft -A KUBE-POD-FW-A -m mark ! --mark 0x10000/0x10000 -j REJECT
iptables-nft -A KUBE-POD-FW-A -j MARK --set-xmark 0x0/0x10000
"""

_MAC: Final = "M=$(ip neigh show 10.5.27.2 dev cni0 | sed 's/.*lladdr //; s/ .*//'); "

SHAPES: Final = {
    **{
        f"the input chain of a cloud image, {kind}": Shape(
            _restored(f"iptables-{kind}", *_IMAGE),
            named="REJECT`, chain INPUT of table filter",
            cure=f"iptables-{kind} -t filter -I INPUT 6 -s {_PEER} -p udp --dport 8472 -j ACCEPT",
        )
        for kind in ("legacy", "nft")
    },
    "ufw that lets nothing out": Shape(
        "iptables-nft -N ufw-user-output; iptables-nft -A OUTPUT -o lo -j ACCEPT; "
        "iptables-nft -A OUTPUT -p icmp -j ACCEPT; iptables-nft -A OUTPUT -j ufw-user-output; "
        "iptables-nft -P OUTPUT DROP",
        named="policy of chain OUTPUT of table filter (iptables-nft) is drop, which ufw has set",
        cure=f"ufw allow out to {_PEER} port 8472 proto udp",
        stands_in=f"iptables-nft -A ufw-user-output -d {_PEER} -p udp --dport 8472 -j ACCEPT; "
        "iptables-nft -A ufw-user-output -o cni0 -s 10.5.27.1 -d 10.5.27.0/24 -j ACCEPT; "
        "iptables-nft -A ufw-user-output -o flannel.1 -s 10.5.27.0 -d 10.5.0.0/16 -j ACCEPT",
    ),
    "the host sends to no pod": Shape(
        "iptables-legacy -P OUTPUT DROP; iptables-legacy -A OUTPUT -o lo -j ACCEPT; "
        "iptables-legacy -A OUTPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT; "
        "iptables-legacy -A OUTPUT -p icmp -j ACCEPT; iptables-legacy -A OUTPUT -o eth0 -j ACCEPT",
        named="TCP and UDP packets between this host and pods are dropped",
        cure="iptables-legacy -t filter -A OUTPUT -s 10.5.27.1 -d 10.5.27.0/24 -o cni0 -j ACCEPT && "
        "iptables-legacy -t filter -A OUTPUT -s 10.5.27.0 -d 10.5.0.0/16 -o flannel.1 -j ACCEPT",
    ),
    "the host takes no answers of pods": Shape(
        "iptables-nft -A INPUT -i eth0 -j ACCEPT; iptables-nft -A INPUT -i lo -j ACCEPT; "
        "iptables-nft -A INPUT -p icmp -j ACCEPT; iptables-nft -A INPUT -j REJECT",
        named="TCP and UDP packets between this host and pods are dropped",
        cure="iptables-nft -t filter -I INPUT 4 -s 10.5.27.0/24 -d 10.5.27.1 -i cni0 "
        "-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
    ),
    "a ban of one pod of a peer": Shape(
        _nft(
            "table ip crowdsec { set bans { type ipv4_addr; flags timeout; elements = { 10.5.53.2 timeout 3h }; }; "
            "chain i { type filter hook input priority filter - 10; ip saddr @bans drop; }; }"
        ),
        named="TCP and UDP packets between this host and 10.5.53.2 are dropped",
        cure="nft insert rule ip crowdsec i handle 3 ip saddr 10.5.53.2 ip daddr 10.5.27.0 iifname flannel.1 "
        "ct state established,related accept",
        is_part=True,
    ),
    "a route rule of ufw after its accept of pings": Shape(
        """iptables-nft -A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
iptables-nft -A FORWARD -p icmp --icmp-type echo-request -j ACCEPT
iptables-nft -A FORWARD -s 10.5.53.0/24 -j DROP""",
        named="TCP and UDP packets of pods of 10.5.53.0/24 are dropped",
        cure="iptables-nft -t filter -I FORWARD 3 -s 10.5.53.0/24 -d 10.5.27.0/24 ",
        is_part=True,
    ),
    "no connections from one node's pods": Shape(
        "iptables-legacy -I FORWARD -s 10.5.53.0/24 -p tcp --syn -j DROP",
        named="TCP packets of pods of 10.5.53.0/24 are dropped",
        cure="iptables-legacy -t filter -I FORWARD 1 -s 10.5.53.0/24 -d 10.5.27.0/24 ",
        is_part=True,
    ),
    "no ssh from one node's pods": Shape(
        "iptables-legacy -I FORWARD -s 10.5.53.0/24 -p tcp --dport 22 -j DROP", is_broken=False
    ),
    "an image that forwards nothing": Shape(
        _restored("iptables-legacy", "-A FORWARD -j REJECT --reject-with icmp-host-prohibited"),
        named="`-A FORWARD -j REJECT`",
        cure="iptables-legacy -t filter -I FORWARD 1 -s 10.5.",
    ),
    "both ports of DHCP in one comparison": Shape(
        _input("udp sport 67 udp dport 68 accept; tcp dport 22 accept;"), named="policy of chain i", cure=_ADDED
    ),
    "administrators in a set": Shape(
        _input(
            "ip saddr @admin accept;",
            more="set admin { type ipv4_addr; flags interval; elements = { 192.168.0.0/16, 172.16.0.0/12 }; };",
        ),
        named="policy of chain i",
        cure=_ADDED,
    ),
    "an address with a port in one set": Shape(
        _input("ip saddr . udp dport { 10.99.0.0/24 . 53, 10.98.0.0/24 . 8472 } accept;"),
        named="policy of chain i",
        cure=_ADDED,
    ),
    "a limit of what is another matter": Shape(
        _input("tcp dport 22 ct state new limit rate 15/minute accept;"), named="policy of chain i", cure=_ADDED
    ),
    "neighbours of another network": Shape(
        _restored(
            "iptables-nft", "-A INPUT -s 192.168.0.0/16 -j ACCEPT", "-A INPUT -p icmp -j ACCEPT", policies="DROP"
        ),
        named="policy of chain INPUT",
        cure=f"iptables-nft -t filter -A INPUT -s {_PEER} -p udp --dport 8472 -j ACCEPT",
    ),
    "a range of addresses": Shape(
        "iptables-legacy -A INPUT -m iprange --src-range 10.99.0.10-10.99.0.20 -p udp -j DROP",
        named="--src-range 10.99.0.10-10.99.0.20",
        cure=f"iptables-legacy -t filter -I INPUT 1 -s {_PEER} -p udp --dport 8472 -j ACCEPT",
    ),
    "all of UDP but some ports": Shape(
        _restored(
            "iptables-legacy",
            "-A PREROUTING -p udp -m multiport ! --dports 53,123,1024:8471,8473:65535 -m addrtype --dst-type LOCAL "
            "-j DROP",
            table="raw",
        ),
        named="-m multiport ! --dports 53,123,1024:8471,8473:65535",
        cure=f"iptables-legacy -t raw -I PREROUTING 1 -s {_PEER} -p udp --dport 8472 -j ACCEPT",
    ),
    "known MAC addresses": Shape(
        "iptables-nft -A INPUT -i eth0 -m mac --mac-source 02:00:00:00:00:99 -j ACCEPT; "
        "iptables-nft -A INPUT -i eth0 -j DROP",
        named="iifname eth0",
        cure=f"iptables-nft -t filter -I INPUT 2 -s {_PEER} -p udp --dport 8472 -j ACCEPT",
    ),
    "known MAC addresses, in a set": Shape(
        _nft(
            "table inet m { set known { type ether_addr; elements = { 02:00:00:00:00:99, 02:00:00:00:00:98 }; }; "
            'chain i { type filter hook input priority 0; iifname "eth0" ether saddr != @known drop; }; }'
        ),
        named="iifname eth0 ether saddr != { ",
        cure=f"nft insert rule inet m i handle 3 ip saddr {_PEER} udp dport 8472 accept",
    ),
    "a group of interfaces": Shape(
        "iptables-legacy -A INPUT -p udp -m devgroup --src-group 0 -j DROP",
        named="-m devgroup --src-group 0x0",
        cure=f"iptables-legacy -t filter -I INPUT 1 -s {_PEER} -p udp --dport 8472 -j ACCEPT",
    ),
    "a kind of interfaces": Shape(
        _nft(
            'table inet k { chain f { type filter hook forward priority 0; meta oifkind "bridge" iifgroup 0 '
            "ct state new tcp flags syn drop; }; }"
        ),
        named="meta oifkind bridge meta iifgroup 0 ",
        cure="nft insert rule inet k f handle 2 ip saddr 10.5.0.0/16 ip daddr 10.5.27.0/24 iifname flannel.1 accept",
    ),
    "interfaces by the beginning of their names": Shape(
        _nft(
            'table inet w { chain f { type filter hook forward priority 0; iifname vmap { "flannel*" : jump no, '
            '"veth*" : accept }; }; chain no { meta l4proto { tcp, udp } th dport != { 22, 443 } drop; }; }'
        ),
        named="TCP and UDP packets of pods are dropped",
        cure="nft insert rule inet w no handle ",
    ),
    "interfaces of other groups and kinds": Shape(
        "iptables-legacy -A INPUT -m devgroup --src-group 9 -j DROP; "
        "iptables-legacy -A FORWARD -m devgroup ! --dst-group 0 -j DROP; "
        + _nft(
            "table inet k { chain f { type filter hook forward priority 0; meta iiftype ppp drop; "
            'meta iifkind "wireguard" drop; oifgroup != 0 drop; }; }'
        ),
        is_broken=False,
    ),
    "the length of datagrams": Shape(
        "iptables-legacy -A INPUT -p udp -m length --length 100:65535 -j DROP",
        named="--length 100:65535",
        cure=f"iptables-legacy -t filter -I INPUT 1 -s {_PEER} -p udp --dport 8472 -j ACCEPT",
    ),
    "a curfew": Shape(
        "iptables-legacy -I FORWARD -m time --timestart 00:00 --timestop 23:59 -j DROP",
        named="-m time",
        cure="iptables-legacy -t filter -I FORWARD 1 -s 10.5.",
    ),
    "a curfew of another year": Shape(
        "iptables-legacy -I FORWARD -m time --datestart 2001-01-01 --datestop 2001-02-01 -j DROP", is_broken=False
    ),
    "private networks in an ipset": Shape(
        "ipset create fire hash:net; ipset add fire 10.0.0.0/8; ipset add fire 172.16.0.0/12; "
        "iptables-nft -I FORWARD -m set --match-set fire src -j DROP",
        named="-m set --match-set fire src",
        cure="iptables-nft -t filter -I FORWARD 1 -s 10.5.",
    ),
    "other networks in an ipset": Shape(
        "ipset create other hash:net; ipset add other 172.16.0.0/12; "
        "iptables-nft -I FORWARD -m set --match-set other src -j DROP",
        is_broken=False,
    ),
    "ports in an ipset": Shape(
        "ipset create bp bitmap:port range 0-65535; ipset add bp 8000-9000; "
        "iptables-legacy -A INPUT -p udp -m set --match-set bp dst -j DROP",
        named="-m set --match-set bp dst",
        cure=f"iptables-legacy -t filter -I INPUT 1 -s {_PEER} -p udp --dport 8472 -j ACCEPT",
    ),
    "a pod in an ipset": Shape(
        "ipset create one hash:ip; ipset add one 10.5.27.2; "
        "iptables-nft -I FORWARD -m set --match-set one dst -j DROP",
        named="Packets of pod 10.5.27.2 are dropped",
        cure="iptables-nft -t filter -I FORWARD 1 -s 10.5.",
        is_part=True,
    ),
    "bogons before all routes": Shape(
        "for n in 224.0.0.0/3 172.16.0.0/12 10.0.0.0/8; do "
        "iptables-legacy -t mangle -A PREROUTING -s $n -j DROP; done",
        named="-s 10.0.0.0/8",
        cure="iptables-legacy -t mangle -I PREROUTING 3 ",
    ),
    "a banned peer": Shape(
        "iptables-nft -N f2b-recidive; iptables-nft -A f2b-recidive -s 10.99.0.12 -j REJECT; "
        "iptables-nft -I INPUT -p udp -j f2b-recidive",
        named="A rule of fail2ban drops them",
        cure="fail2ban-client set recidive unbanip 10.99.0.12",
        stands_in="iptables-nft -D f2b-recidive -s 10.99.0.12 -j REJECT",
    ),
    "a banned peer, in the one chain of all jails": Shape(
        _nft(
            "table inet f2b-table { set addr-set-recidive { type ipv4_addr; flags interval; "
            "elements = { 10.99.0.8/29, 203.0.113.7 }; }; chain f2b-chain { type filter hook input priority -1; "
            "ip saddr @addr-set-recidive drop; }; }"
        ),
        named="A rule of fail2ban drops them",
        cure="fail2ban-client unban 10.99.0.12",
        stands_in="nft delete element inet f2b-table addr-set-recidive '{ 10.99.0.8/29 }'",
    ),
    "a peer in a large set": Shape(
        "nft 'table ip crowdsec { set blacklists { type ipv4_addr; }; chain c { type filter hook input priority -10; "
        "ip saddr @blacklists drop; }; }'; "
        "for i in $(seq 1 250); do printf '203.0.113.%d, ' $i; done | "
        "sed 's/.*/add element ip crowdsec blacklists { & 10.99.0.12 }/' | nft -f -",
        named="A rule of crowdsec drops them: `ip saddr @blacklists drop`",
        cure="cscli decisions delete --ip 10.99.0.12",
        stands_in="nft delete element ip crowdsec blacklists '{ 10.99.0.12 }'",
    ),
    "others in a large set": Shape(
        "nft 'table ip crowdsec { set blacklists { type ipv4_addr; }; chain c { type filter hook input priority -10; "
        "ip saddr @blacklists drop; }; }'; "
        "for i in $(seq 1 250); do printf '203.0.113.%d, ' $i; done | "
        "sed 's/.*/add element ip crowdsec blacklists { & 198.18.0.1 }/' | nft -f -",
        is_broken=False,
    ),
    "the card's own rules": Shape(
        _nft(
            'table netdev early { chain in { type filter hook ingress device "eth0" priority -500; '
            "ip frag-off & 0x1fff != 0 drop; udp dport 8472 drop; }; }"
        ),
        named="chain in of table netdev early (nft)",
        cure="nft insert rule netdev early in handle 3 ip saddr 10.99.0.12 udp dport 8472 accept",
    ),
    "what leaves by a card": Shape(
        _nft(
            'table netdev late { chain out { type filter hook egress device "eth0" priority 0; '
            "udp dport 8472 drop; }; }"
        ),
        named="chain out of table netdev late (nft)",
        cure="nft insert rule netdev late out handle 2 ip daddr 10.99.0.12 udp dport 8472 accept",
    ),
    "what pods send to the outside, at a port": Shape(
        _nft(
            'table netdev e { chain i { type filter hook ingress device "veth0" priority 0; '
            "ip daddr != 10.0.0.0/8 tcp dport < 1024 drop; }; }"
        ),
        named="TCP packets of pods, to the outside or from there, are dropped",
        cure="nft insert rule netdev e i handle 2 ip saddr 10.5.27.0/24 fib daddr type unicast accept",
    ),
    "pods of another node, by ebtables": Shape(
        "ebtables -A INPUT -p IPv4 --ip-proto udp --ip-dport 53 -j ACCEPT; "
        "ebtables -A INPUT -p IPv4 --ip-dst 10.5.53.0/24 -j DROP",
        named="Packets of pods of 10.5.53.0/24 are dropped",
        cure="nft insert rule bridge filter INPUT handle ",
        is_part=True,
    ),
    "other addresses, by ebtables": Shape(
        "ebtables -A INPUT -p IPv4 --ip-src ! 10.0.0.0/8 -j DROP; ebtables -A INPUT -p IPv4 --ip-dst 192.0.2.9 "
        "-j DROP; ebtables -A OUTPUT -p IPv4 --ip-proto tcp --ip-sport 9100 -j DROP; "
        "ebtables -A FORWARD -p IPv6 --ip6-proto udp -j DROP",
        is_broken=False,
    ),
    **{
        f"a bridge that {what}": Shape(
            _nft(f"table bridge f {{ chain c {{ type filter hook {hook} priority 0; {rules} }}; }}"),
            named=named,
            cure=f"nft {verb} arp {end} ip 10.5.27.0/24 accept",
            is_of_arp=True,
        )
        for what, hook, rules, named, verb, end in (
            (
                "takes IP alone",
                "input",
                "policy drop; ether type ip accept; ether type ip6 accept;",
                "Packets of ARP between this host and its pods are dropped: without ARP no packet finds its way. The "
                "policy of chain c of table bridge f (nft) is drop",
                "add rule bridge f c",
                "saddr",
            ),
            (
                "takes what is in a set",
                "prerouting",
                "policy drop; meta protocol { ip, ip6, vlan } accept;",
                "policy of chain c of table bridge f (nft) is drop",
                "add rule bridge f c",
                "saddr",
            ),
            (
                "gives no ARP to pods",
                "output",
                "ether type arp drop;",
                "`ether type arp drop`, chain c of table bridge f (nft)",
                "insert rule bridge f c handle 2",
                "daddr",
            ),
            (
                "forwards no questions",
                "prerouting",
                "ether type 8021q accept; arp operation request drop;",
                "ARP requests between this host and its pods are dropped",
                "insert rule bridge f c handle 3",
                "saddr",
            ),
        )
    },
    **{
        f"what is not of the pod at a port, {how}": Shape(_MAC + act, is_broken=False)
        for how, act in (
            (
                "at the bridge",
                'nft "table bridge f { chain c { type filter hook prerouting priority 0; '
                "iifname veth0 ip saddr != 10.5.27.2 drop; iifname veth0 ether saddr != $M drop; }; "
                'chain o { type filter hook postrouting priority 0; oifname veth0 ip daddr != 10.5.27.2 drop; }; }"',
            ),
            (
                "at the card",
                'nft "table netdev e { chain i { type filter hook ingress device veth0 priority 0; policy drop; '
                "ether saddr != $M drop; ip saddr { 10.5.27.2, 0.0.0.0 } accept; arp saddr ip 10.5.27.2 accept; "
                'ether type ip6 accept; }; }"',
            ),
            (
                "as libvirt has it",
                "ebtables -N libvirt-I-veth0 -P ACCEPT; ebtables -N I-veth0-ipv4-ip -P ACCEPT; "
                "ebtables -A libvirt-I-veth0 -s ! $M -j DROP; "
                "ebtables -A libvirt-I-veth0 -p IPv4 -j I-veth0-ipv4-ip; "
                "ebtables -A I-veth0-ipv4-ip -p IPv4 --ip-src 0.0.0.0 --ip-proto udp -j RETURN; "
                "ebtables -A I-veth0-ipv4-ip -p IPv4 --ip-src 10.5.27.2 -j RETURN; "
                "ebtables -A I-veth0-ipv4-ip -j DROP; "
                "ebtables -t nat -N fwd -P ACCEPT 2>/dev/null; ebtables -A INPUT -i veth0 -j libvirt-I-veth0; "
                "ebtables -A FORWARD -i veth0 -j libvirt-I-veth0",
            ),
        )
    },
    "another pod's address at a port, by ebtables": Shape(
        "ebtables -A INPUT -i veth0 -p IPv4 --ip-src ! 10.5.27.99 -j DROP",
        named="--ip-source",
        cure="nft insert rule bridge filter INPUT handle ",
        stands_in="ebtables -F INPUT",
    ),
    "ARP of other programs' bridges, by ebtables": Shape(
        "ebtables -A INPUT -p ARP -i vnet0 -j DROP; ebtables -A FORWARD -p ARP --arp-ip-src 192.0.2.1 -j DROP; "
        "ebtables -A OUTPUT -p ARP --arp-opcode Reply --arp-mac-src 02:00:00:00:00:01 -j DROP; "
        "ebtables -A INPUT -p ARP --arp-ip-dst ! 10.0.0.0/8 -j DROP",
        is_broken=False,
    ),
    "ARP of pods, by ebtables": Shape(
        "ebtables -A INPUT -p ARP --arp-opcode Request --arp-ip-src 10.5.0.0/16 -j DROP",
        named="ARP requests between this host and its pods are dropped",
        cure="nft insert rule bridge filter INPUT handle ",
        stands_in="ebtables -F INPUT",
        is_of_arp=True,
    ),
    "no ARP, by arptables": Shape(
        "arptables -P INPUT DROP",
        named="Packets of ARP between this host and its pods, and between this host and 10.99.0.1, 10.99.0.12 are "
        "dropped",
        cure="nft add rule arp filter INPUT arp saddr ip ",
        is_of_arp=True,
    ),
    "ARP of others, by arptables": Shape(
        "arptables -A INPUT -i docker0 -j DROP; arptables -A OUTPUT -d 192.0.2.0/24 -j DROP; "
        "arptables -A INPUT -s 10.99.0.99 -j DROP; arptables -A INPUT --source-mac 02:00:00:00:00:01 -j DROP",
        is_broken=False,
    ),
    "a peer that is not asked for": Shape(
        _nft("table arp f { chain o { type filter hook output priority 0; arp daddr ip 10.99.0.12 drop; }; }"),
        named="Packets of ARP between this host and 10.99.0.12 are dropped",
        cure="nft insert rule arp f o handle 2 arp daddr ip 10.99.0.12 oifname eth0 accept",
        is_of_arp=True,
    ),
    "a card without ARP": Shape(
        _nft(
            'table netdev e { chain i { type filter hook ingress device "eth0" priority 0; ether type arp drop; }; }'
        ),
        named="Packets of ARP between this host and 10.99.0.1, 10.99.0.12 are dropped",
        cure="nft insert rule netdev e i handle 2 arp saddr ip '{ 10.99.0.1, 10.99.0.12 }' accept",
        is_of_arp=True,
    ),
    "a port without ARP": Shape(
        _nft(
            'table netdev e { chain o { type filter hook egress device "veth0" priority 0; '
            "meta protocol != ip drop; }; }"
        ),
        named="Packets of ARP between this host and its pods are dropped",
        cure="nft insert rule netdev e o handle 2 arp daddr ip 10.5.27.0/24 accept",
        is_of_arp=True,
    ),
    "many questions": Shape(
        _nft(
            "table bridge f { chain i { type filter hook input priority 0; "
            "ether type arp limit rate over 10000/second drop; }; }"
        ),
        named="may drop them",
        cure="nft insert rule bridge f i handle 2 arp saddr ip 10.5.27.0/24 accept",
        is_broken=False,
    ),
    "forged questions": Shape(
        _nft(
            "table bridge f { chain p { type filter hook prerouting priority -300; "
            'iifname "veth0" ether type arp arp saddr ip != 10.5.27.2 drop; iifname "veth0" ether type arp '
            "arp htype != 1 drop; meta l4proto != tcp ether type arp drop; }; }"
        ),
        is_broken=False,
    ),
    "what leaves for a peer": Shape(
        _nft(
            "table ip guard { chain post { type filter hook postrouting priority 200; "
            'oifname "eth0" ip ttl < 5 drop; oifname "eth0" udp dport 8472 ip daddr 10.99.0.12 drop; }; }'
        ),
        named="chain post of table ip guard (nft)",
        cure="nft insert rule ip guard post handle 3 ip daddr 10.99.0.12 udp dport 8472 accept",
    ),
    "the interface of pods": Shape(
        "iptables-legacy -A FORWARD -i cni0 -j DROP",
        named="`-A FORWARD -i cni0 -j DROP`",
        cure="iptables-legacy -t filter -I FORWARD 1 -s 10.5.27.0/24 ",
    ),
    "no direct access to containers": Shape(
        "iptables-nft -N DOCKER; iptables-nft -A DOCKER ! -i cni0 -o cni0 -j DROP; "
        "iptables-nft -A FORWARD -o cni0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT; "
        "iptables-nft -A FORWARD -o cni0 -j DOCKER",
        named="A rule of docker drops them",
        cure="iptables-nft -t filter -I DOCKER 1 -s 10.5.0.0/16 -d 10.5.27.0/24 -i flannel.1 -j ACCEPT  # docker ",
    ),
    "a chain that refuses": Shape(
        "iptables-nft -N nixos-fw-refuse; iptables-nft -A nixos-fw-refuse -j DROP; iptables-nft -N nixos-fw; "
        "iptables-nft -A nixos-fw -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT; "
        "iptables-nft -A nixos-fw -p tcp --dport 22 -j ACCEPT; iptables-nft -A nixos-fw -j nixos-fw-refuse; "
        "iptables-nft -A INPUT -j nixos-fw",
        named="A rule of NixOS drops them",
        cure=f"iptables-nft -t filter -I nixos-fw-refuse 1 -s {_PEER} -p udp --dport 8472 -j ACCEPT  # NixOS",
    ),
    "a policy that lets no IPv6 in, where pods have none": Shape(
        _nft(
            "table inet f { chain i { type filter hook input priority 0; policy drop; "
            "ct state established,related accept; iif lo accept; ip saddr 10.99.0.0/16 udp dport 8472 accept; "
            "icmp type echo-request accept; }; }"
        ),
        is_broken=False,
    ),
    "a policy of ufw": Shape(
        "iptables-legacy -N ufw-user-input; iptables-legacy -A INPUT -p icmp -j ACCEPT; "
        "iptables-legacy -A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT; "
        "iptables-legacy -A INPUT -j ufw-user-input; iptables-legacy -P INPUT DROP",
        named="which ufw has set",
        cure=f"ufw allow from {_PEER} to any port 8472 proto udp",
        stands_in=f"iptables-legacy -A ufw-user-input -s {_PEER} -p udp --dport 8472 -j ACCEPT",
    ),
    "no connection tracking": Shape(
        _restored("iptables-nft", "-A PREROUTING -j CT --notrack", "-A OUTPUT -j CT --notrack", table="raw"),
        named="keeps connection tracking from them",
        stands_in="iptables-nft -t raw -F PREROUTING; iptables-nft -t raw -F OUTPUT",
    ),
    "another program's SNAT": Shape(
        "iptables-nft -t nat -I POSTROUTING -s 10.5.27.0/24 ! -o cni0 -j MASQUERADE",
        named="changes their source",
        cure="iptables-nft -t nat -I POSTROUTING 1 -s 10.5.27.0/24 -d 10.5.0.0/16 -j ACCEPT",
        is_broken=False,
    ),
    "another program's SNAT to an address that is nobody's": Shape(
        "iptables-nft -t nat -I POSTROUTING -s 10.5.27.0/24 -d 10.5.0.0/16 -j SNAT --to-source 203.0.113.77",
        named="changes their source",
        cure="iptables-nft -t nat -I POSTROUTING 1 -s 10.5.27.0/24 -d 10.5.0.0/16 -j ACCEPT",
    ),
    "one pod's SNAT to an address that is nobody's": Shape(
        _nft(
            "table ip x { chain p { type nat hook postrouting priority 90; "
            "ip saddr 10.5.27.2 ip daddr 10.5.0.0/16 snat to 203.0.113.77; }; }"
        ),
        named="packets of pod 10.5.27.2 under the address 203.0.113.77",
        cure="nft insert rule ip x p handle 2 ip saddr 10.5.27.2 ip daddr 10.5.0.0/16 accept",
        is_part=True,
    ),
    "one pod's SNAT to the node's address": Shape(
        "iptables-legacy -t nat -I POSTROUTING -s 10.5.27.2 ! -o cni0 -j SNAT --to-source 10.99.0.11",
        named="packets of pod 10.5.27.2 under the address 10.99.0.11",
        cure="iptables-legacy -t nat -I POSTROUTING 1 -s 10.5.27.2 -d 10.5.0.0/16 -j ACCEPT",
        is_broken=False,
    ),
    "one pod's SNAT to an address of the node's subnet": Shape(
        "iptables-nft -t nat -I POSTROUTING -s 10.5.27.2 -d 10.5.0.0/16 -j SNAT --to-source 10.5.27.77",
        named="packets of pod 10.5.27.2 under the address 10.5.27.77",
        cure="iptables-nft -t nat -I POSTROUTING 1 -s 10.5.27.2 -d 10.5.0.0/16 -j ACCEPT",
        is_broken=False,
    ),
    "SNAT to addresses that are nobody's": Shape(
        "iptables-nft -t nat -I POSTROUTING -s 10.5.27.0/24 -d 10.5.0.0/16 "
        "-j SNAT --to-source 203.0.113.70-203.0.113.79",
        named="the addresses 203.0.113.70-203.0.113.79, which nobody answers, because they are no addresses of this",
        cure="iptables-nft -t nat -I POSTROUTING 1 -s 10.5.27.0/24 -d 10.5.0.0/16 -j ACCEPT",
    ),
    "SNAT to addresses of which some are the node's": Shape(
        "iptables-legacy -t nat -I POSTROUTING -s 10.5.27.0/24 -d 10.5.0.0/16 "
        "-j SNAT --to-source 10.99.0.11-10.99.0.200",
        named="the addresses 10.99.0.11-10.99.0.200, some of which nobody answers",
        cure="iptables-legacy -t nat -I POSTROUTING 1 -s 10.5.27.0/24 -d 10.5.0.0/16 -j ACCEPT",
    ),
    "SNAT to addresses of the node's subnet": Shape(
        _nft(
            "table ip x { chain p { type nat hook postrouting priority 90; "
            "ip saddr 10.5.27.0/24 ip daddr 10.5.0.0/16 snat to 10.5.27.80-10.5.27.99; }; }"
        ),
        named="Pods of this node see packets of this node itself under the addresses 10.5.27.80-10.5.27.99, which",
        cure="nft insert rule ip x p handle 2 ip saddr 10.5.27.0/24 ip daddr 10.5.0.0/16 accept",
    ),
    "SNAT of what this host sends to its pods": Shape(
        "iptables-nft -t nat -A POSTROUTING -s 10.5.27.1 -o cni0 -j SNAT --to-source 10.5.27.99",
        named="Pods of this node see packets of this node itself under the address 10.5.27.99, which nobody answers",
        cure="iptables-nft -t nat -I POSTROUTING 1 -s 10.5.27.1 -d 10.5.27.0/24 -j ACCEPT",
    ),
    "SNAT of what this host sends to its pods, by whom answers come": Shape(
        "iptables-nft -t nat -A POSTROUTING -s 10.5.27.1 -o cni0 -j SNAT --to-source 192.0.2.9; "
        "iptables-nft -t nat -A POSTROUTING -m addrtype --src-type LOCAL -o flannel.1 -j MASQUERADE",
        is_broken=False,
    ),
    "a redirection of what this host sends": Shape(
        "iptables-legacy -t nat -A OUTPUT -d 10.5.0.0/16 -p tcp -j REDIRECT --to-ports 3999",
        named="TCP packets between this host and pods get another destination",
        cure="iptables-legacy -t nat -I OUTPUT 1 -s 10.5.27.1 -d 10.5.27.0/24 -o cni0 -j ACCEPT && "
        "iptables-legacy -t nat -I OUTPUT 1 -s 10.5.27.0 -d 10.5.0.0/16 -o flannel.1 -j ACCEPT",
    ),
    "SNAT of a subnet to another": Shape(
        _nft(
            "table ip x { chain p { type nat hook postrouting priority 90; "
            "ip daddr 10.5.0.0/16 snat ip prefix to ip saddr map { 10.5.27.0/24 : 192.0.2.0/24 }; }; }"
        ),
        named="the addresses 192.0.2.0-192.0.2.255, which nobody answers",
        cure="nft insert rule ip x p handle ",
    ),
    "NETMAP of what pods send": Shape(
        "iptables-nft -t nat -I POSTROUTING -s 10.5.27.0/24 -d 10.5.0.0/16 -j NETMAP --to 192.0.2.0/24",
        named="the addresses 192.0.2.0-192.0.2.255, which nobody answers",
        cure="iptables-nft -t nat -I POSTROUTING 1 -s 10.5.27.0/24 -d 10.5.0.0/16 -j ACCEPT",
    ),
    "SNAT by a map": Shape(
        _nft(
            "table ip x { chain p { type nat hook postrouting priority 90; ip daddr 10.5.0.0/16 "
            "snat to ip saddr map { 10.5.27.2 : 203.0.113.7, 10.5.27.200 : 10.5.27.200 }; }; }"
        ),
        named="packets of pod 10.5.27.2 under the address 203.0.113.7, which nobody answers",
        cure="nft insert rule ip x p handle ",
        is_part=True,
    ),
    "SNAT by turns": Shape(
        _nft(
            "table ip x { chain p { type nat hook postrouting priority 90; ip daddr 10.5.0.0/16 "
            "snat to numgen inc mod 2 map { 0 : 203.0.113.7, 1 : 203.0.113.9 }; }; }"
        ),
        named="the addresses 203.0.113.7, 203.0.113.9, which nobody answers",
        cure="nft insert rule ip x p handle ",
    ),
    "translations that leave pods their addresses": Shape(
        "iptables-legacy -t nat -I POSTROUTING -s 10.5.0.0/16 -d 10.5.0.0/16 -j NETMAP --to 10.5.0.0/16; "
        "iptables-nft -t nat -I PREROUTING -d 10.5.0.0/16 -j NETMAP --to 10.5.0.0/16; "
        + _nft(
            "table ip x { chain p { type nat hook postrouting priority 90; ip daddr 10.5.0.0/16 "
            "snat to ip saddr map { 192.0.2.9 : 203.0.113.7 }; "
            "ip daddr 10.5.0.0/16 meta l4proto tcp snat to :20000-30000; }; "
            "chain d { type nat hook prerouting priority -90; "
            "udp dport 8472 dnat to 10.99.0.11:8472; }; }"
        ),
        is_broken=False,
    ),
    **{
        f"DNAT of pods to {what}": Shape(
            f"{program} -t nat -A PREROUTING -i cni0 {protocol} -d 10.5.0.0/16 -j DNAT --to-destination {target}",
            named=f", which sends them to {said}",
            cure=f"{program} -t nat -I PREROUTING 1 -s 10.5.27.0/24 -d 10.5.0.0/16 -i cni0 ",
            is_broken=is_broken,
            is_seen=is_seen,
        )
        for what, program, protocol, target, said, is_broken, is_seen in (
            (
                "an address that is nobody's",
                "iptables-nft",
                "",
                "203.0.113.77",
                "203.0.113.77, outside of the network, from where no answer was seen",
                True,
                False,
            ),
            (
                "addresses that are nobody's",
                "iptables-legacy",
                "",
                "203.0.113.70-203.0.113.77",
                "203.0.113.7",
                True,
                False,
            ),
            ("no pod", "iptables-legacy", "", "10.5.27.77", "10.5.27.77, which no pod has on this node", True, False),
            (
                "no node's subnet",
                "iptables-nft",
                "",
                "10.5.200.9",
                "10.5.200.9, in the subnet of no node",
                True,
                False,
            ),
            ("no pod of another node", "iptables-legacy", "", "10.5.53.77", "10.5.53.77, ", True, True),
            ("a host outside", "iptables-nft", "", "198.51.100.9", "198.51.100.9, ", False, True),
            ("a neighbour", "iptables-legacy", "", "10.88.0.2", "10.88.0.2", False, True),
            ("no neighbour", "iptables-nft", "", "10.88.0.9", "10.88.0.9", True, True),
            (
                "a closed port of the node",
                "iptables-nft",
                "-p tcp",
                "10.99.0.11:3129",
                "10.99.0.11, port 3129 of this host, where no program listens",
                True,
                False,
            ),
            ("a port of the node", "iptables-legacy", "-p tcp", "10.99.0.11:80", "10.99.0.11, port 80", False, False),
            ("the loopback", "iptables-legacy", "-p tcp", "127.0.0.1:80", "127.0.0.1, port 80", True, False),
        )
    },
    "NETMAP of what pods send to a node": Shape(
        "iptables-legacy -t nat -A PREROUTING -i cni0 -d 10.5.53.0/24 -j NETMAP --to 192.0.2.0/24",
        named=", which sends them to 192.0.2.",
        cure="iptables-legacy -t nat -I PREROUTING 1 -s 10.5.27.0/24 -d 10.5.0.0/16 -i cni0 ",
        is_part=True,
    ),
    "a transparent proxy that does not run": Shape(
        "iptables-legacy -t mangle -A PREROUTING -i cni0 -p tcp -d 10.0.0.0/8 -j TPROXY --on-port 3131",
        named="which sends them to port 3131 of this host, where no program listens",
        cure="iptables-legacy -t mangle -I PREROUTING 1 -s 10.5.27.0/24 -d 10.5.0.0/16 -i cni0 ",
    ),
    "a transparent proxy that packets pass by": Shape(
        _nft(
            'table ip x { chain p { type filter hook prerouting priority mangle; iifname "cni0" meta l4proto tcp '
            "tproxy to :3131; }; }"
        ),
        is_broken=False,
    ),
    "the tunnel, to another address of the node": Shape(
        "iptables-nft -t nat -A PREROUTING -i eth0 -p udp --dport 8472 -j DNAT --to-destination 10.88.0.1",
        named=", which sends them to 10.88.0.1, port 8472 of this host",
        cure=f"iptables-nft -t nat -I PREROUTING 1 -s {_PEER} -p udp --dport 8472 -j ACCEPT",
        is_broken=False,
    ),
    "a card that hands packets on": Shape(
        _nft(
            'table netdev e { chain i { type filter hook ingress device "eth0" priority 0; '
            'udp dport 8472 fwd to "behind0"; }; }'
        ),
        named="th dport 8472 fwd`",
        cure=f"nft insert rule netdev e i handle 2 ip saddr {_PEER} udp dport 8472 accept",
    ),
    "a card whose packets are copied": Shape(
        _nft(
            'table netdev e { chain i { type filter hook ingress device "eth0" priority 0; '
            'udp dport 8472 dup to "behind0"; }; }'
        ),
        is_broken=False,
    ),
    "packets by chance": Shape(
        "iptables-legacy -N CHAOS; iptables-legacy -A CHAOS -m statistic --mode random --probability 0.8 -j DROP; "
        "iptables-legacy -A FORWARD -j CHAOS",
        named="Packets of pods are in part dropped. A rule of another program drops some of them: `-A CHAOS ",
        cure="iptables-legacy -t filter -I CHAOS 1 -s 10.5.",
        is_by_chance=True,
        is_part=True,
    ),
    "packets by turns": Shape(
        "iptables-nft -A FORWARD -m statistic --mode nth --every 4 --packet 0 -j ACCEPT; "
        "iptables-nft -A FORWARD -j DROP",
        named="Packets of pods are in part dropped.",
        cure="iptables-nft -t filter -I FORWARD 2 -s 10.5.",
        is_by_chance=True,
        is_part=True,
    ),
    "a share of what comes from peers": Shape(
        _nft(
            "table inet x { chain i { type filter hook input priority 0; udp dport 8472 "
            "numgen random mod 10 < 8 drop; }; }"
        ),
        named="Packets between the nodes (UDP port 8472) are in part dropped.",
        cure=f"nft insert rule inet x i handle 2 ip saddr {_PEER} udp dport 8472 accept",
        is_by_chance=True,
        is_part=True,
    ),
    "a share by a random number": Shape(
        _nft(
            "table inet x { chain i { type filter hook input priority 0; udp dport 8472 "
            "meta random < 3435973836 drop; }; }"
        ),
        named="Packets between the nodes (UDP port 8472) are in part dropped.",
        cure=f"nft insert rule inet x i handle 2 ip saddr {_PEER} udp dport 8472 accept",
        is_by_chance=True,
        is_part=True,
    ),
    "shares of other packets": Shape(
        "iptables-legacy -A FORWARD -s 192.0.2.0/24 -m statistic --mode random --probability 0.5 -j DROP; "
        "iptables-nft -A INPUT -p tcp --dport 9999 -m statistic --mode nth --every 2 --packet 0 -j DROP; "
        + _nft(
            "table inet lb { chain i { type filter hook input priority 0; "
            "numgen inc mod 2 vmap { 0 : jump a, 1 : jump b }; "
            "}; chain a { counter; }; chain b { counter; }; }"
        ),
        is_broken=False,
    ),
    "a rate that is not reached": Shape(
        "iptables-legacy -A INPUT -p udp --dport 8472 -m limit --limit 10000/s --limit-burst 10000 -j ACCEPT; "
        "iptables-legacy -A INPUT -p udp --dport 8472 -j DROP",
        named="may drop them",
        cure=f"iptables-legacy -t filter -I INPUT 2 -s {_PEER} -p udp --dport 8472 -j ACCEPT",
        is_broken=False,
    ),
    "a rate that no connection keeps to": Shape(
        "iptables-legacy -A INPUT -p udp --dport 8472 -m limit --limit 1/hour --limit-burst 1 -j ACCEPT; "
        "iptables-legacy -A INPUT -p udp --dport 8472 -j DROP",
        named="drops some of them: `-A INPUT -p udp --dport 8472 -j DROP`",
        cure=f"iptables-legacy -t filter -I INPUT 2 -s {_PEER} -p udp --dport 8472 -j ACCEPT",
        is_part=True,
    ),
    "nothing that another host has routed": Shape(
        _nft("table inet t { chain f { type filter hook forward priority -10; ip ttl < 64 drop; }; }"),
        named="A rule of another program drops them: `ip ttl < 64 drop`",
        cure="nft insert rule inet t f handle 2 ip saddr 10.5.0.0/16 ",
    ),
    "a TTL that no packet has left": Shape(
        _nft(
            "table inet t { chain f { type filter hook forward priority -10; ip ttl > 64 drop; ip ttl < 8 drop; }; }"
        ),
        is_broken=False,
    ),
    "nothing that may be divided": Shape(
        _nft("table ip t { chain f { type filter hook forward priority 0; ip frag-off & 0x4000 == 0 drop; }; }"),
        named="A rule of another program drops them: `ip frag-off & 0x4000 == 0x0 drop`",
        cure="nft insert rule ip t f handle 2 ip saddr 10.5.",
    ),
    "no segments of any size": Shape(
        "iptables-legacy -A FORWARD -p tcp --syn -m tcpmss --mss 1:1460 -j DROP",
        named="-m tcpmss --mss 1:1460 -j DROP",
        cure="iptables-legacy -t filter -I FORWARD 1 -s 10.5.",
    ),
    "no small segments": Shape(
        "iptables-legacy -A FORWARD -p tcp --syn -m tcpmss --mss 1:500 -j DROP; "
        "iptables-legacy -A FORWARD -p tcp --syn -m tcpmss ! --mss 536:65535 -j DROP",
        is_broken=False,
    ),
    "more than no connection": Shape(
        "iptables-legacy -A FORWARD -p tcp --syn -m connlimit --connlimit-above 0 --connlimit-mask 0 -j DROP",
        named="TCP packets of pods are dropped",
        cure="iptables-legacy -t filter -I FORWARD 1 -s 10.5.",
    ),
    "more than no connection, by nft": Shape(
        _nft("table ip t { chain f { type filter hook forward priority 0; tcp flags syn ct count over 0 drop; }; }"),
        named="TCP packets of pods are dropped",
        cure="nft insert rule ip t f handle 2 ip saddr 10.5.0.0/16 ",
    ),
    "only the beginning of connections": Shape(
        "iptables-legacy -A FORWARD -p tcp -m connbytes --connbytes 2000: --connbytes-dir both "
        "--connbytes-mode bytes -j DROP",
        named="TCP packets of pods are in part dropped",
        cure="iptables-legacy -t filter -I FORWARD 1 -s 10.5.",
        is_part=True,
    ),
    "a quota that is used up": Shape(
        "iptables-legacy -A FORWARD -s 10.5.27.0/24 -m quota --quota 500 -j ACCEPT; "
        "iptables-legacy -A FORWARD -s 10.5.27.0/24 -j DROP",
        named="A rule of another program drops them: `-A FORWARD -s 10.5.27.0/24 -j DROP`",
        cure="iptables-legacy -t filter -I FORWARD 2 -s 10.5.27.0/24 ",
    ),
    "a quota that is used up, by nft": Shape(
        _nft(
            "table ip t { chain f { type filter hook forward priority 0; ip saddr 10.5.0.0/16 "
            "quota over 1 kbytes drop; }; }"
        ),
        named="quota ... drop",
        cure="nft insert rule ip t f handle 2 ip saddr 10.5.0.0/16 ",
    ),
    "the mark of a connection": Shape(
        _nft(
            "table inet cm { chain pre { type filter hook prerouting priority mangle; "
            "udp dport 8472 ct mark set 0x9; }; chain in { type filter hook input priority 0; ct mark 0x9 drop; }; }"
        ),
        named="ct mark 9 drop",
        cure=f"nft insert rule inet cm in handle 4 ip saddr {_PEER} udp dport 8472 accept",
    ),
    "the mark of a connection, by iptables": Shape(
        "iptables-legacy -t mangle -A PREROUTING -i eth0 -j CONNMARK --set-mark 5; "
        "iptables-legacy -A INPUT -p udp -m connmark --mark 5 -j DROP",
        named="-m connmark --mark 0x5/0xffffffff",
        cure=f"iptables-legacy -t filter -I INPUT 1 -s {_PEER} -p udp --dport 8472 -j ACCEPT",
    ),
    "a VPN that lets nothing else pass": Shape(
        _nft(
            "table inet mullvad { chain input { type filter hook input priority 0; policy drop; iif lo accept; "
            "ct mark 0xf41 accept; icmp type { echo-request, echo-reply } accept; "
            "ct state established,related accept; tcp dport 22 accept; reject; }; }"
        ),
        named="`reject`, chain input of table inet mullvad (nft)",
        cure="nft insert rule inet mullvad input handle ",
    ),
    "who began a connection": Shape(
        _nft(
            "table inet p { chain i { type filter hook input priority 0; "
            "ct original ip saddr 10.99.0.12 ct direction original udp dport 8472 drop; }; }"
        ),
        named="ct original ip saddr 10.99.0.12/32 ct direction 0 meta l4proto udp th dport 8472 drop",
        cure=f"nft insert rule inet p i handle 2 ip saddr {_PEER} udp dport 8472 accept",
    ),
    "where a connection goes": Shape(
        "iptables-legacy -I INPUT -p udp -m conntrack --ctproto udp --ctorigdstport 8472 -j DROP",
        named="--ctorigdstport 8472",
        cure=f"iptables-legacy -t filter -I INPUT 1 -s {_PEER} -p udp --dport 8472 -j ACCEPT",
    ),
    "packets of no class": Shape(
        _nft("table inet q { chain i { type filter hook input priority 0; udp dport 8472 ip dscp cs0 drop; }; }"),
        named="ip dscp & 0xfc == 0x0",
        cure=f"nft insert rule inet q i handle 2 ip saddr {_PEER} udp dport 8472 accept",
    ),
    "packets of another class": Shape(
        "iptables-legacy -A FORWARD -m dscp --dscp 0x2e -j DROP; "
        "iptables-legacy -A FORWARD -m tos --tos 0x10 -j DROP",
        is_broken=False,
    ),
    "the version of IP": Shape(_input("ip version 6 accept; ip hdrlength 6 accept;"), "policy of chain i", _ADDED),
    "hours of the day": Shape(
        _nft('table inet n { chain f { type filter hook forward priority 0; meta hour "00:00"-"23:59" drop; }; }'),
        named="meta hour",
        cure="nft insert rule inet n f handle 2 ip saddr 10.5.",
    ),
    "a time that is over": Shape(
        _nft('table inet n { chain f { type filter hook forward priority 0; meta time < "2001-01-01" drop; }; }'),
        is_broken=False,
    ),
    "what users of the host may send": Shape(
        _restored(
            "iptables-legacy",
            "-A OUTPUT -o lo -j ACCEPT",
            "-A OUTPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
            "-A OUTPUT -m owner --uid-owner 0 -j ACCEPT",
            "-A OUTPUT -p udp -j REJECT",
        ),
        named="`-A OUTPUT -p udp -j REJECT`",
        cure=f"iptables-legacy -t filter -I OUTPUT 4 -d {_PEER} -p udp --dport 8472 -j ACCEPT",
    ),
    "what some users of the host may send": Shape(
        _nft(
            "table inet p { chain o { type filter hook output priority 0; policy drop; "
            "meta skuid { 0, 1000 } accept; oif lo accept; ct state established,related accept; "
            "icmp type echo-request accept; }; }"
        ),
        named="policy of chain o",
        cure=f"nft add rule inet p o ip daddr {_PEER} udp dport 8472 accept",
    ),
    "the length of a datagram": Shape(
        _nft("table inet p { chain i { type filter hook input priority 0; udp length > 1000 drop; }; }"),
        named="udp length > 1000",
        cure=f"nft insert rule inet p i handle 2 ip saddr {_PEER} udp dport 8472 accept",
    ),
    "an inspection that does not run": Shape(
        "iptables-legacy -I FORWARD -j NFQUEUE --queue-num 0",
        named="`-A FORWARD -j NFQUEUE`",
        cure="iptables-legacy -t filter -I FORWARD 1 -s 10.5.",
    ),
    "an inspection of some ports that does not run": Shape(
        _nft("table inet ips { chain i { type filter hook input priority 10; udp dport 8000-9000 queue num 3; }; }"),
        named="th dport 8000-9000 queue to 3",
        cure=f"nft insert rule inet ips i handle 2 ip saddr {_PEER} udp dport 8472 accept",
    ),
    "an inspection that packets pass by": Shape(
        "iptables-legacy -I FORWARD -j NFQUEUE --queue-num 0 --queue-bypass; "
        "iptables-nft -I INPUT -j NFQUEUE --queue-num 0 --queue-bypass",
        is_broken=False,
    ),
    "a mark, and a table where nothing leads to peers": Shape(
        "ip route add blackhole default table 99; ip rule add fwmark 0x77 table 99; "
        "iptables-legacy -t mangle -A PREROUTING -i cni0 -d 10.0.0.0/8 -j MARK --set-mark 0x77",
        named="Packets of pods to other nodes are dropped. A rule of another program marks them with 0x77: `-A ",
        cure="iptables-legacy -t mangle -I PREROUTING 1 -s 10.5.27.0/24 -d 10.5.0.0/16 -i cni0 ",
    ),
    "a mark, and a VPN's table": Shape(
        "ip route add default dev behind0 table 99; ip rule add fwmark 0x1/0xff priority 100 table 99; "
        + _nft(
            "table inet vpn { chain c { type filter hook prerouting priority mangle; "
            'iifname "cni0" ip daddr != { 127.0.0.0/8, 198.51.100.0/24 } jump m; }; chain m { meta mark set 0x1; }; }'
        ),
        named="Packets of pods to other nodes leave by behind0.",
        cure="nft insert rule inet vpn m handle ",
    ),
    "a mark of a pod in an ipset": Shape(
        "ipset create mesh hash:ip; ipset add mesh 10.5.27.2; ip route add default dev behind0 table 99; "
        "ip rule add fwmark 0x100/0x100 table 99; "
        "iptables-legacy -t mangle -A PREROUTING -p tcp -d 10.5.0.0/16 -m set --match-set mesh src "
        "-j MARK --set-mark 0x100",
        named="Packets of pods to other nodes leave by behind0.",
        cure="iptables-legacy -t mangle -I PREROUTING 1 -s 10.5.27.2 -d 10.5.0.0/16 -i cni0 ",
    ),
    "a mark of what comes from peers": Shape(
        "ip route add blackhole default table 99; ip rule add fwmark 0x77 table 99; "
        "iptables-nft -t mangle -A PREROUTING -i flannel.1 -j MARK --set-mark 0x77",
        named="Packets from other nodes to pods are dropped.",
        cure="iptables-nft -t mangle -I PREROUTING 1 -s 10.5.0.0/16 -d 10.5.27.0/24 -i flannel.1 ",
    ),
    "marks that lead nowhere else": Shape(
        "ip route add default via 10.99.0.1 table 99; ip rule add fwmark 0x77 table 99; "
        "ip rule add fwmark 0x66 priority 90 table main; "
        "iptables-nft -t mangle -A PREROUTING -i cni0 ! -d 10.0.0.0/8 -j MARK --set-mark 0x77; "
        "iptables-nft -t mangle -A FORWARD -o flannel.1 -j MARK --set-mark 0x77; "
        "iptables-legacy -t mangle -A PREROUTING -d 10.5.0.0/16 -j MARK --set-mark 0x66",
        is_broken=False,
    ),
    "all that comes is another host's": Shape(
        "iptables-nft -t nat -A PREROUTING -i eth0 -p udp -j DNAT --to-destination 10.88.0.2",
        named="A rule of another program changes it: `iifname eth0 meta l4proto udp ",
        cure=f"iptables-nft -t nat -I PREROUTING 1 -s {_PEER} -p udp --dport 8472 -j ACCEPT",
    ),
    "a trap for scans": Shape(
        _nft(
            'table ip trap { chain pre { type nat hook prerouting priority dstnat; iifname "eth0" udp dport != 53 '
            "redirect to :9999; }; }"
        ),
        named="which sends them to port 9999 of this host, where no program listens",
        cure=f"nft insert rule ip trap pre handle 2 ip saddr {_PEER} udp dport 8472 accept",
    ),
    "a proxy that does not run": Shape(
        "iptables-nft -t nat -A PREROUTING -i cni0 -p tcp -d 10.0.0.0/8 -j REDIRECT --to-ports 3129",
        named="which sends them to port 3129 of this host, where no program listens",
        cure="iptables-nft -t nat -I PREROUTING 1 -s 10.5.27.0/24 -d 10.5.0.0/16 -i cni0 "
        "-m addrtype --dst-type UNICAST -j ACCEPT",
    ),
    "a proxy of one pod that does not run": Shape(
        "iptables-nft -t nat -A PREROUTING -i cni0 -p tcp -d 10.5.53.2 -j REDIRECT --to-ports 3129",
        named="which sends them to port 3129 of this host, where no program listens",
        cure="iptables-nft -t nat -I PREROUTING 1 -s 10.5.27.0/24 -d 10.5.0.0/16 -i cni0 "
        "-m addrtype --dst-type UNICAST -j ACCEPT",
        is_part=True,
    ),
    "a resolver for pods": Shape(
        "iptables-nft -t nat -A PREROUTING -i cni0 -p udp --dport 53 -j REDIRECT --to-ports 53", is_broken=False
    ),
    "the ports of virtual machines": Shape(
        "iptables-nft -N sg; iptables-nft -A sg -j DROP; "
        "iptables-nft -I FORWARD -m physdev --physdev-out tap12345 --physdev-is-bridged -j sg",
        is_broken=False,
    ),
    "a rate, after which packets go on": Shape(
        "iptables-legacy -N FLOOD; iptables-legacy -A FLOOD -m limit --limit 10000/s --limit-burst 10000 -j RETURN; "
        "iptables-legacy -A FLOOD -j DROP; iptables-legacy -A INPUT -p udp -j FLOOD",
        named="may drop them: `-A FLOOD -j DROP`",
        cure=f"iptables-legacy -t filter -I FLOOD 2 -s {_PEER} -p udp --dport 8472 -j ACCEPT",
        is_broken=False,
    ),
    "no direct access to a container": Shape(
        "iptables-legacy -t raw -A PREROUTING -d 10.5.27.2 ! -i cni0 -j DROP",
        named="`-A PREROUTING -d 10.5.27.2/32 ! -i cni0 -j DROP`",
        cure="iptables-legacy -t raw -I PREROUTING 1 -s 10.5.0.0/16 -d 10.5.27.2 -i flannel.1 -m addrtype "
        "--dst-type UNICAST -j ACCEPT",
        is_part=True,
    ),
    "no direct access to a container, by iptables-nft": Shape(
        "iptables-nft -t raw -A PREROUTING -d 10.5.27.2 ! -i cni0 -j DROP",
        named="ip daddr 10.5.27.2",
        is_part=True,
        cure="iptables-nft -t raw -I PREROUTING 1 -s 10.5.0.0/16 -d 10.5.27.2 -i flannel.1 -m addrtype "
        "--dst-type UNICAST -j ACCEPT",
    ),
    "no direct access to containers of docker's bridge, and to each of ours": Shape(
        "iptables-legacy -t raw -A PREROUTING -d 172.17.0.2 ! -i docker0 -j DROP; "
        "iptables-legacy -t raw -A PREROUTING -d 10.5.27.2 ! -i docker0 -j DROP; "
        "iptables-legacy -t raw -A PREROUTING -d 10.5.27.3 ! -i docker0 -j DROP",
        named="`-A PREROUTING -d 10.5.27.2/32 ! -i docker0 -j DROP`",
        is_part=True,
        cure="iptables-legacy -t raw -I PREROUTING ",
    ),
    "no direct access to a container, at the card": Shape(
        _nft(
            'table netdev e { chain i { type filter hook ingress device "eth0" priority 0; '
            "ip daddr 10.5.27.2 drop; }; }"
        ),
        is_broken=False,
    ),
    "no pod is reached from the underlay": Shape(
        "iptables-legacy -t raw -A PREROUTING -d 10.5.0.0/16 -i eth0 -j DROP; "
        + _nft(
            'table netdev e { chain i { type filter hook ingress device "eth0" priority 0; '
            "ip daddr 10.5.0.0/16 drop; }; }"
        ),
        is_broken=False,
    ),
    "no address of a pod leaves": Shape(
        _nft(
            'table ip p { chain o { type filter hook postrouting priority 200; oifname "eth0" '
            "ip saddr 10.5.0.0/16 drop; }; }"
        )
        + "; "
        + _nft(
            'table netdev e { chain o { type filter hook egress device "eth0" priority 0; '
            "ip saddr 10.5.0.0/16 drop; }; }"
        ),
        is_broken=False,
    ),
    "ports of the node before routing": Shape(
        "iptables-legacy -t mangle -A PREROUTING -i eth0 -d 10.99.0.11 -p tcp --dport 1024: -j DROP",
        named="TCP packets of pods, to the outside or from there, are dropped",
        cure="iptables-legacy -t mangle -I PREROUTING 1 -m conntrack --ctstate RELATED,ESTABLISHED --ctorigsrc "
        "10.5.27.0/24 -j ACCEPT",
    ),
    "ports of the node before routing, in nftables": Shape(
        _nft(
            "table inet p { chain i { type filter hook prerouting priority -150; "
            "fib daddr type local tcp dport >= 1024 drop; }; }"
        ),
        named="TCP packets between pods and the outside, and between pods and this host, are dropped",
        cure="nft insert rule inet p i handle 2 ct state established,related ct original ip saddr "
        "10.5.27.0/24 accept",
    ),
    "what the node sends, after masquerading": Shape(
        _nft(
            'table ip p { chain o { type filter hook postrouting priority 200; oifname "eth0" ip saddr 10.99.0.11 '
            "tcp dport < 1024 drop; }; }"
        ),
        named="TCP packets of pods, to the outside or from there, are dropped",
        cure="nft insert rule ip p o handle 2 ct original ip saddr 10.5.27.0/24 accept",
    ),
    "a table that sleeps": Shape(
        _nft("table inet off { flags dormant; chain c { type filter hook input priority 0; policy drop; }; }"),
        is_broken=False,
    ),
    "a jump to nothing": Shape("iptables-nft -N LEFT; iptables-nft -I INPUT -j LEFT", is_broken=False),
    "reverse paths": Shape(
        _nft(
            "table inet rpf { chain rpfilter { type filter hook prerouting priority mangle + 10; policy drop; "
            "meta nfproto ipv4 udp sport . udp dport { 67 . 68 } accept; "
            "fib saddr . mark . iif oif exists accept; }; }"
        ),
        is_broken=False,
    ),
    "services that are gone": Shape(
        _nft(
            "table ip kube-proxy { map gone { type ipv4_addr . inet_proto . inet_service : verdict; "
            "elements = { 10.43.9.9 . tcp . 80 : goto no }; }; chain no { reject; }; "
            "chain check { type filter hook forward priority -110; "
            "ct state new ip daddr . meta l4proto . th dport vmap @gone; ip daddr 10.43.0.0/16 drop; }; }"
        ),
        is_broken=False,
    ),
    "a policy engine that lets a pod be": Shape(
        _ENGINE.format(rule="iptables-nft -A KUBE-POD-FW-A -j MARK --set-xmark 0x10000/0x10000"), is_broken=False
    ),
    "a policy engine that isolates a pod": Shape(
        _ENGINE.format(rule="iptables-nft -A KUBE-POD-FW-A -s 10.5.99.9 -j MARK --set-xmark 0x10000/0x10000"),
        is_policy=True,
    ),
}

DIRECT: Final = {
    "what a card takes": Shape(
        _nft(
            'table netdev f { chain i { type filter hook ingress device "eth0" priority 0; '
            "ip saddr 10.5.0.0/16 ip daddr 10.5.0.0/16 meta l4proto { tcp, udp } drop; }; }"
        ),
        named="TCP and UDP packets of pods are dropped",
        cure="nft insert rule netdev f i handle 3 ip saddr 10.5.0.0/16 ip daddr 10.5.27.0/24 ",
    ),
    "another card": Shape(
        "iptables-legacy -A FORWARD -i eth1 -j DROP; iptables-legacy -A FORWARD -o eth1 -j DROP; "
        "iptables-legacy -A INPUT -p udp --dport 8472 -j DROP",
        is_broken=False,
    ),
}
"""The same between nodes on one link, whose pods' packets no tunnel carries (host-gw)."""

_UFW: Final = "ufw --force reset >/dev/null; {}; ufw allow 22/tcp; ufw --force enable"
_FIREWALLD: Final = "firewall-cmd --set-default-zone={}"

PROGRAMS: Final = {
    "ufw": {
        "nothing may come, go or pass": Shape(
            _UFW.format("for each in incoming outgoing routed; do ufw default deny $each; done"),
            named="which ufw has set",
            cure=f"ufw allow out to {_PEER} port 8472 proto udp",
        ),
        "an operator's rules": Shape(
            _UFW.format(
                "ufw default allow incoming; ufw default allow routed; ufw deny from 10.99.0.0/16 to any proto udp; "
                f"ufw reject out to {_PEER} proto udp; ufw route deny to 10.5.27.0/24; "
                "ufw route reject from 10.5.27.0/24"
            ),
            named="A rule of ufw drops them",
            cure=f"ufw prepend allow from {_PEER} to any port 8472 proto udp",
        ),
    },
    "firewalld": {
        "the zone that it is installed with": Shape(
            _FIREWALLD.format("public"),
            named="A rule of firewalld drops them",
            cure="firewall-cmd --permanent --zone=public ",
        ),
        "a zone that drops": Shape(
            f"{_FIREWALLD.format('drop')}; firewall-cmd --reload",
            named="A rule of firewalld drops them",
            cure="firewall-cmd --permanent --zone=drop ",
        ),
        "iptables": Shape(
            "sed -i s/^FirewallBackend=.*/FirewallBackend=iptables/ /etc/firewalld/firewalld.conf; "
            "firewall-cmd --complete-reload",
            named="firewalld",
            cure="firewall-cmd --permanent --",
        ),
    },
}
"""By the program of the host's firewall, which is the real one: what is typed there, and what doctor says."""
RELOADS: Final = {"ufw": "ufw reload", "firewalld": "firewall-cmd --complete-reload"}
"""What makes a program's rules anew."""
