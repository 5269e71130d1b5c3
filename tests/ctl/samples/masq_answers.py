"""What masq answers."""

from flannelette.masq.v1 import masq_pb2 as masq
from tests.ctl.samples.moment import at


def masq_status() -> masq.GetStatusResponse:
    status = masq.Status(
        ready=True,
        node="h1",
        version="0.1.0",
        firewall="iptables",
        firewall_reason="the legacy tables have rules, nftables has none",
        masquerade=True,
        forward=True,
        networks=["10.5.0.0/16"],
        subnets=["10.5.1.0/24"],
        rules=10,
        rules_present=10,
        last_check_time=at(seconds=-1),
        start_time=at(hours=-2, minutes=-3),
        lease_service_connected=True,
    )
    return masq.GetStatusResponse(status=status)


def rules() -> masq.ListRulesResponse:
    def rule(table: str, chain: str, text: str, reason: str, packets: int = 0) -> masq.Rule:
        return masq.Rule(
            family="IPv4",
            table=table,
            chain=chain,
            text=f"-A {chain} {text}",
            reason=reason,
            present=True,
            packets=packets,
            bytes=84 * packets,
        )

    return masq.ListRulesResponse(
        rules=[
            rule(
                "filter", "FORWARD", '-m comment --comment "flanneld forward" -j FLANNEL-FWD', "our chain comes first"
            ),
            rule("filter", "FLANNEL-FWD", "-s 10.5.0.0/16 -j ACCEPT", "pods may send", 12),
            rule(
                "nat",
                "FLANNEL-POSTRTG",
                '-s 10.5.0.0/16 ! -d 224.0.0.0/4 -m comment --comment "flanneld masq" -j MASQUERADE --random-fully',
                "what pods send to the outside carries the node's address",
                1,
            ),
        ]
    )


def explanation() -> masq.ExplainResponse:
    return masq.ExplainResponse(
        masqueraded=True,
        rules=rules().rules[2:],
        explanation="10.5.2.2 to 198.51.100.9: leaves under the address of the interface it leaves by.",
    )
