"""Abstract names of masq in the hands of somebody without rights."""

import signal

from tests.faults.squatter import squatter
from tests.hosts.masq import Host
from tests.services.masq import acquire, lease_service, masq_on


async def test_a_user_who_holds_all_names_keeps_masq_from_no_rule_and_is_named(host: Host) -> None:
    with lease_service(host) as leases, squatter(host.netns):
        await acquire(leases)
        for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGTERM):
            async with masq_on(host, "--ip-masq") as masq:
                status = await masq.until(fits=lambda status: status.rules > 0)
                assert status.rules == status.rules_present
                assert "name-taken" in {each.check for each in status.findings}
                await masq.end(number)


async def test_a_user_keeps_no_iptables_from_its_lock(host: Host, legacy: None) -> None:
    """A kubelet makes the file for everybody to read (FileOrCreate); who may read a file may lock it."""
    host.lock.write_bytes(b"")
    host.lock.chmod(0o644)
    with lease_service(host) as leases:
        await acquire(leases)
        async with masq_on(host, "--ip-masq", "--firewall=iptables") as masq:
            await masq.until(fits=lambda status: status.rules > 0)
            assert host.lock.stat().st_mode & 0o777 == 0o600
            host.iptables("-t filter -L")
