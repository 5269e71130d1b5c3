"""Rules as anybody may write them, at random, but the same for the same seed: for nft and both kinds of iptables."""

from dataclasses import dataclass
from random import Random
from typing import Final

HOOKS: Final = ("prerouting", "input", "forward", "output", "postrouting")
KINDS: Final = ("nft", "iptables-nft", "iptables-legacy")
_NETWORKS: Final = {
    4: "10.5.0.0/16 10.5.27.0/24 10.5.3.0/24 10.5.27.2 10.5.3.2 192.0.2.0/24 192.0.2.9 192.0.2.1 10.0.0.0/8 "
    "172.16.0.0/12 151.101.0.0/16 198.51.100.7 192.0.2.64/26".split(),
    6: "fd00:10:5::/48 fd00:10:5:1b::/64 fd00:10:5:3::/64 fd00:10:5:1b::2 fd00:10:5:3::2 2001:db8::/64 2001:db8::9 "
    "2001:db8::1 fd00::/8 fc00::/7 2a04:4e42::/32 2001:db8:7::7".split(),
}
_DEVICES: Final = ("pod", "vtep", "eth", "lo", "docker0")
_PORTS: Final = ("8472", "22", "53", "80", "1-1023", "1024-65535", "30000-32767", "8000-9000")
_STATES: Final = ("new", "established,related", "established", "invalid", "related", "untracked", "new,established")


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules that one program restores."""

    kind: str
    version: int
    """Of IP; of a table `inet` it says which addresses are named."""
    heads: tuple[str, ...]
    """What is declared before the rules: chains, sets, policies."""
    rules: tuple[tuple[str, str], ...]
    """Each chain with one of its rules, in order."""

    @property
    def command(self) -> tuple[str, ...]:
        """The command that reads `text`."""
        if self.kind == "nft":
            return ("nft", "-f", "-")
        six = "6" if self.version == 6 else ""
        return (self.kind.replace("iptables", f"ip{six}tables") + "-restore",)

    @property
    def text(self) -> str:
        """The rules in the form of that program."""
        if self.kind == "nft":
            lines = [f"add {head}" for head in self.heads]
            lines += [f"add rule {self.heads[0].removeprefix('table ')} {chain} {rule}" for chain, rule in self.rules]
        else:
            lines = [*self.heads, *(f"-A {chain} {rule}" for chain, rule in self.rules), "COMMIT"]
        return "\n".join([*lines, ""])


def random_rules(seed: int, kind: str) -> Rules:
    """Rules for one program: `kind` is one of KINDS."""
    random = Random(f"{kind} {seed}")  # noqa: S311 - nothing is secret
    return _Nft(random).made() if kind == "nft" else _Iptables(random, kind).made()


class _Nft:
    def __init__(self, random: Random) -> None:
        self.random = random
        self.version = random.choice((4, 4, 6))
        self.ip, self.icmp = {4: ("ip", "icmp"), 6: ("ip6", "icmpv6")}[self.version]
        self.family = random.choice(("inet", "inet", self.ip))

    def made(self) -> Rules:
        some, table = self.random, f"{self.family} t"
        heads = [
            f"table {table}",
            f"set {table} dyn {{ type {'ipv4' if self.version == 4 else 'ipv6'}_addr; size 999; flags dynamic; }}",
            f"limit {table} often {{ rate over 100000/second; }}",
            f"quota {table} much {{ over 900 mbytes; }}",
        ]
        bases = list[tuple[str, str]]()
        for number in range(some.choice((1, 1, 2, 3))):
            hook, policy = some.choice((*HOOKS, "input", "forward")), some.choice(("accept", "accept", "drop"))
            priority = some.choice((-300, -150, 0, 0, 0, 10, 100))
            form = f"{{ type filter hook {hook} priority {priority}; policy {policy}; }}"
            heads.append(f"chain {table} b{number} {form}")
            bases.append((f"b{number}", hook))
        heads += [f"chain {table} c{number}" for number in (1, 2, 3)]
        rules = [(name, self._rule(hook, 3)) for name, hook in bases for _ in range(some.randrange(6))]
        rules += [(f"c{n}", self._rule("", 3 - n)) for n in (1, 2, 3) for _ in range(some.randrange(4))]
        return Rules("nft", self.version, tuple(heads), tuple(rules))

    def _rule(self, hook: str, below: int) -> str:
        some = self.random
        words = [self._match(hook) for _ in range(some.choice((0, 1, 1, 1, 2, 2, 3)))]
        return " ".join([*words, self._verdict(hook, below)])

    def _verdict(self, hook: str, below: int) -> str:
        some = self.random
        chain = f"c{some.randrange(4 - below, 4)}" if below else "accept"
        way = f"{some.choice(('jump', 'jump', 'goto'))} {chain}" if below else "accept"
        kinds = ["accept"] * 4 + ["drop"] * 5 + [way] * 3 + ["return", "counter", "meta mark set 0x1"]
        kinds += ["meta mark set meta mark | 0x4000", "ct mark set 0x1", "log", f"counter {way}"]
        kinds += (
            ["meta l4proto tcp reject with tcp reset", "reject"] if hook in ("input", "forward", "output") else []
        )
        kinds += ["notrack"] if hook in ("prerouting", "output") else []
        a, b = some.choice(("accept", "drop", "continue")), some.choice(("drop", "accept", way, "return"))
        kinds += [
            f"ct state vmap {{ established : {a}, new : {b} }}",
            f"meta l4proto vmap {{ tcp : {a}, udp : {b} }}",
        ]
        kinds += [f'iifname vmap {{ "pod" : {a}, "eth" : {b} }}', f"th dport vmap {{ 8472 : {a}, 0-1023 : {b} }}"]
        kinds += [f"{self.ip} saddr vmap {{ {self._network()} : {b} }}"]
        return some.choice(kinds)

    def _network(self) -> str:
        return self.random.choice(_NETWORKS[self.version])

    def _match(self, hook: str) -> str:
        some, ip = self.random, self.ip
        no, end = some.choice(("", "", "!= ")), some.choice(("saddr", "daddr"))
        networks = ", ".join(dict.fromkeys(self._single() for _ in range(some.randrange(1, 4))))
        device, port = some.choice(_DEVICES), some.choice(_PORTS)
        kinds = [f"{ip} {end} {no}{self._network()}"] * 5 + [f"{ip} {end} {no}{{ {networks} }}"] * 2
        kinds += [f'{some.choice(("iifname", "oifname"))} {no}"{device}"'] * 4
        kinds += [f'iifname {no}{{ "{device}", "wg0" }}', f'oifname {no}"{device[:2]}*"', f'iif {no}"eth"']
        kinds += [f"meta l4proto {no}{some.choice(('tcp', 'udp', self.icmp, '{ tcp, udp }', 'esp'))}"] * 2
        kinds += [f"{some.choice(('tcp', 'udp', 'th'))} {some.choice(('dport', 'dport', 'sport'))} {no}{port}"] * 4
        kinds += [f"udp dport {no}{{ 53, 123, 8472 }}", f"tcp dport {no}{{ 22, 80, 8000-9000 }}", "udp dport >= 1024"]
        kinds += [f"ct state {no}{some.choice(_STATES)}"] * 4
        kinds += [f"meta mark {no}0x1", "meta mark & 0x4000 == 0x4000", "meta mark and 0x1 != 0x0"]
        kinds += [f"{self.icmp} type {no}echo-request", f"{self.icmp} type echo-reply"]
        kinds += [f"meta length {some.choice(('>', '<'))} 1000", f"meta length {no}100-2000", "meta pkttype unicast"]
        kinds += [f"tcp flags {no}syn", "tcp flags & (syn | ack) == syn", "tcp flags & (fin|syn|rst|ack) != syn"]
        kinds += [
            f"{'ip ttl' if self.version == 4 else 'ip6 hoplimit'} {some.choice(('< 5', '> 200', '!= 255', '1'))}"
        ]
        kinds += ["limit rate 100000/second", "limit rate over 100000/second", "meta mark 0x0", "ct mark 0x1"]
        kinds += [f"add @dyn {{ {ip} saddr limit rate over 100000/second }}", f"add @dyn {{ {ip} saddr }}"]
        kinds += ['limit name "often"', 'quota name "much"', "ct count over 9999", "quota over 900 mbytes"]
        kinds += [f"{ip} saddr . th dport {no}{{ {self._single()} . 8472, {self._single()} . 1-1023 }}"]
        kinds += [f"{ip} saddr . {ip} daddr {{ {self._single()} . {self._single()} }}", "ct direction original"]
        kinds += [
            f"meta nfproto {no}{'ipv4' if self.version == 4 else 'ipv6'}",
            "ct status assured",
            "ct status snat",
        ]
        if hook in ("prerouting", "input", "forward"):
            kinds += ["fib daddr type local", "fib daddr type != local", "fib saddr . iif oif missing"]
        if self.version == 4:
            kinds += ["ip frag-off & 0x1fff != 0", "ip protocol udp", f"ip saddr {no}192.0.2.5-192.0.2.20"]
            kinds += ["ip saddr & 255.255.0.0 == 10.5.0.0", f"ip length {no}1-200", "ip dscp cs1"]
        return some.choice(kinds)

    def _single(self) -> str:
        """An address, because intervals of a set may not overlap."""
        return self.random.choice([each for each in _NETWORKS[self.version] if "/" not in each])


class _Iptables:
    def __init__(self, random: Random, kind: str) -> None:
        self.random, self.kind = random, kind
        self.version = random.choice((4, 4, 6))

    def made(self) -> Rules:
        some = self.random
        table = some.choice(("filter", "filter", "filter", "filter", "mangle", "raw"))
        hooks = {
            "filter": ("INPUT", "FORWARD", "FORWARD", "OUTPUT"),
            "mangle": ("PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"),
            "raw": ("PREROUTING", "OUTPUT"),
        }[table]
        heads = [f"*{table}"]
        policies = ("ACCEPT", "ACCEPT", "DROP") if table == "filter" else ("ACCEPT",)
        heads += [f":{hook} {some.choice(policies)} [0:0]" for hook in dict.fromkeys(hooks)]
        heads += [f":C{number} - [0:0]" for number in (1, 2, 3)]
        used = [some.choice(hooks) for _ in range(some.choice((1, 2)))]
        rules = [(hook, self._rule(table, hook, 3)) for hook in used for _ in range(some.randrange(6))]
        rules += [(f"C{n}", self._rule(table, "", 3 - n)) for n in (1, 2, 3) for _ in range(some.randrange(4))]
        return Rules(self.kind, self.version, tuple(heads), tuple(rules))

    def _rule(self, table: str, hook: str, below: int) -> str:
        some = self.random
        protocol = some.choice(("", "", "", "tcp", "udp", "udp", "icmp"))
        words = [self._protocol(protocol)] if protocol else []
        words += [self._match(hook, protocol) for _ in range(some.choice((0, 0, 1, 1, 2)))]
        targets = ["ACCEPT"] * 4 + ["DROP"] * 5 + ["RETURN", "LOG"]
        targets += [f"C{some.randrange(4 - below, 4)}"] * 3 if below else []
        targets += ["REJECT"] * 2 if table == "filter" else []
        targets += ["MARK --set-xmark 0x1/0xffffffff", "MARK --set-xmark 0x4000/0x4000"] if table == "mangle" else []
        targets += ["CT --notrack"] if table == "raw" and hook else []
        target = some.choice(targets)
        goto = some.random() < 0.2 and target.startswith("C") and target[1:].isdigit()
        kept = dict.fromkeys(words)
        taken, chosen = set[str](), list[str]()
        for word in kept:  # each option once
            options = {each for each in word.split() if each.startswith("-") and each != "-m"}
            if not options & taken:
                taken |= options
                chosen.append(word)
        return " ".join([*chosen, f"-{'g' if goto else 'j'} {target}"])

    def _protocol(self, protocol: str) -> str:
        some = self.random
        name = "ipv6-icmp" if protocol == "icmp" and self.version == 6 else protocol
        no = some.choice(("", "", "", "! "))
        port = some.choice(_PORTS).replace("-", ":")
        more = [""] * 2
        if not no and protocol in ("tcp", "udp"):
            negated = some.choice(("", "", "! "))
            more += [f" -m {protocol} {negated}--{some.choice(('dport', 'dport', 'sport'))} {port}"] * 4
            more += [f" -m multiport {negated}--{some.choice(('dports', 'sports', 'ports'))} 22,53,8000:9000,8472"]
            more += [f" -m multiport {negated}--dports 1:1023,8472"]
        if not no and protocol == "tcp":
            more += [f" -m tcp {some.choice(('', '! '))}--syn", " -m tcp --tcp-flags ACK ACK"]
        if not no and protocol == "icmp":
            match, option = ("icmp6", "--icmpv6-type") if self.version == 6 else ("icmp", "--icmp-type")
            more += [f" -m {match} {option} {some.choice(('echo-request', 'echo-reply', 'destination-unreachable'))}"]
        return f"{no}-p {name}{some.choice(more)}"

    def _match(self, hook: str, protocol: str) -> str:
        some = self.random
        no, network = some.choice(("", "", "! ")), some.choice(_NETWORKS[self.version])
        device = some.choice((*_DEVICES, "e+"))
        kinds = [f"{no}-{some.choice('sd')} {network}"] * 5
        kinds += [f"{no}-i {device}"] * 3 if hook not in ("OUTPUT", "POSTROUTING", "") else []
        kinds += [f"{no}-o {device}"] * 3 if hook not in ("INPUT", "PREROUTING", "") else []
        kinds += [f"-m conntrack {no}--ctstate {some.choice(_STATES).upper()}"] * 4
        kinds += [f"-m state --state {some.choice(('NEW', 'RELATED,ESTABLISHED', 'INVALID'))}"]
        kinds += [f"-m mark {no}--mark 0x1", "-m mark --mark 0x4000/0x4000", "-m mark ! --mark 0x0"]
        kinds += [
            f"-m addrtype {no}--{some.choice(('src', 'dst'))}-type {some.choice(('LOCAL', 'UNICAST', 'BROADCAST'))}"
        ]
        kinds += [f"-m length {no}--length {some.choice(('0:200', '1000:65535'))}", "-m limit --limit 10000/s"]
        kinds += [f"-m pkttype {no}--pkt-type {some.choice(('unicast', 'broadcast'))}", "-m comment --comment x"]
        kinds += ["-m connmark --mark 0x1", "-m statistic --mode nth --every 1000000000 --packet 0"]
        kinds += ["-m connlimit --connlimit-above 9999", "-m hashlimit --hashlimit-above 10000/s --hashlimit-name x"]
        kinds += [
            "-m physdev --physdev-is-bridged",
            "-m quota --quota 900000000",
            "-m policy --dir in --pol none",
        ] * (hook in ("FORWARD", "INPUT"))
        kinds += ["-m rpfilter --invert"] if hook == "PREROUTING" else []
        kinds += ["-m mac --mac-source 02:00:00:00:00:99"] if hook in ("PREROUTING", "INPUT", "FORWARD") else []
        ttl = "-m ttl --ttl" if self.version == 4 else "-m hl --hl"
        kinds += [f"{ttl}-lt 5", f"{ttl}-gt 200"]
        if self.version == 4:
            kinds += [
                f"-m iprange {no}--src-range 192.0.2.5-192.0.2.20",
                "-m iprange --dst-range 10.5.0.0-10.5.255.255",
                "-f",
            ]
        return some.choice(kinds)
