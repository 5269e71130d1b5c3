"""The table that keeps TCP of pods within the MTUs of routes: there with the network, put back, and gone when asked.

That TCP passes is shown in tests/kernel/dataplane/test_path_mtu.py.
"""

import pytest

from flannelette.masq.v1 import masq_pb2 as pb
from tests.hosts.masq import Host
from tests.services.masq import acquire, lease_service, masq_on
from tests.waiting import contains, eventually, lacks

TABLE = "table inet flannelette_mss"


@pytest.mark.usefixtures("legacy")
async def test_it_is_there_whichever_firewall_has_the_other_rules_and_goes_when_asked(host: Host) -> None:
    def tables() -> list[str]:
        return host.run("nft", "list", "tables").splitlines()

    with lease_service(host) as leases:
        async with masq_on(host, "--clamp-mss") as masq:
            await acquire(leases)
            assert (await masq.until()).firewall == "iptables-legacy"
            await eventually(tables, contains(TABLE))
            host.run("nft", "delete", *TABLE.split())
            await eventually(tables, contains(TABLE))
            listed = (await masq.stub.ListRules(pb.ListRulesRequest())).rules
            (rule,) = (each for each in listed if each.table == "flannelette_mss")
            assert (rule.present, rule.packets) == (True, 0)
            assert rule.text.startswith("ip saddr 10.5.0.0/16 ip daddr 10.5.0.0/16 tcp flags")
            torn = await masq.stub.TeardownRules(pb.TeardownRulesRequest(dry_run=True))
            assert "nft delete table inet flannelette_mss" in torn.commands
            assert TABLE in tables()
            await masq.stub.TeardownRules(pb.TeardownRulesRequest())
            assert TABLE not in tables()
            await masq.stub.ResyncRules(pb.ResyncRulesRequest())
            assert TABLE in tables()
        assert TABLE in tables(), "the end of masq leaves the kernel alone"
        async with masq_on(host) as masq:
            await masq.until()
            await eventually(tables, lacks(TABLE))
