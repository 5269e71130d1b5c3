"""Settings, privileges and missing libraries: one clear sentence each."""

import re

import pytest

from flannelette.services.core.errors import Misconfigured
from flannelette.services.masq.firewalls.iptables_legacy.worker import missing_capabilities, why_import_failed
from flannelette.services.masq.rules import RuleSettings
from flannelette.services.masq.settings import MasqSettings
from flannelette.services.runtime.process.settings import parse_settings


def settings(*arguments: str, **environment: str) -> MasqSettings:
    return parse_settings(MasqSettings, "flannelette-masq", arguments, environment)


def test_the_defaults_are_flannels() -> None:
    assert settings().rules == RuleSettings(masquerade=False, forward=True, fully_random=True)
    assert settings().iptables_resync == 5
    assert settings().node_network.lease_address == "unix:/run/flannelette/lease.sock"


def test_flannels_flags_and_variables_choose_the_rules() -> None:
    chosen = settings("--ip-masq", "-iptables-forward-rules=false", FLANNELD_IP_MASQ_FULLY_RANDOM_DISABLE="true")
    assert chosen.rules == RuleSettings(masquerade=True, forward=False, fully_random=False)
    assert settings("--socket-dir=/x").node_network.lease_address == "unix:/x/lease.sock"
    assert settings("--lease-address", "127.0.0.1:7").node_network.lease_address == "127.0.0.1:7"


def test_a_resync_without_a_pause_is_refused() -> None:
    with pytest.raises(Misconfigured, match=r"--iptables-resync is 0: use at least 1 second"):
        settings("--iptables-resync=0")


@pytest.mark.parametrize(
    ("text", "pools"),
    [
        ("", ()),
        ("192.0.2.5", ("192.0.2.5",)),
        ("2001:db8::5,192.0.2.5-192.0.2.8", ("2001:db8::5", "192.0.2.5-192.0.2.8")),
        ("192.0.2.5-192.0.2.5", ("192.0.2.5",)),
    ],
)
def test_sources_are_an_address_or_a_range_of_each_family(text: str, pools: tuple[str, ...]) -> None:
    assert tuple(map(str, settings(f"--ip-masq-source={text}").rules.pools)) == pools


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("eth0", "'eth0' does not appear to be an IPv4 or IPv6 address"),
        ("192.0.2.0/24", "'192.0.2.0/24' does not appear"),
        ("192.0.2.8-192.0.2.5", "192.0.2.8-192.0.2.5 does not go from one address up to another"),
        ("192.0.2.8-2001:db8::5", "does not go from one address up to another"),
        ("192.0.2.5,192.0.2.6", "192.0.2.5,192.0.2.6 has two of one address family"),
        ("::", "no host answers to ::"),
        ("ff02::1", "no host answers to ff02::1"),
    ],
)
def test_a_source_that_no_host_has_is_refused(text: str, said: str) -> None:
    with pytest.raises(Misconfigured, match=re.escape(said)) as error:
        settings(f"--ip-masq-source={text}")
    assert "write it like 192.0.2.5, 192.0.2.5-192.0.2.8 or 192.0.2.5,2001:db8::5" in str(error.value)


@pytest.mark.parametrize(
    ("effective", "missing"),
    [
        ("000001ffffffffff", []),
        ("0000000000003000", []),
        ("0000000000001000", ["CAP_NET_RAW"]),
        ("0000000000002000", ["CAP_NET_ADMIN"]),
        ("0000000000000000", ["CAP_NET_ADMIN", "CAP_NET_RAW"]),
    ],
)
def test_missing_capabilities_are_named(effective: str, missing: list[str]) -> None:
    assert missing_capabilities(f"Name:\tx\nCapPrm:\t0\nCapEff:\t{effective}\n") == missing


@pytest.mark.parametrize(
    ("error", "libraries", "has_ldconfig", "cure"),
    [
        (ModuleNotFoundError("No module named 'iptc'"), [], True, "pip install 'flannelette[masq]'"),
        (AttributeError("'NoneType'"), ["ip4tc"], True, "apt-get install iptables libip4tc2"),
        (AttributeError("'NoneType'"), ["xtables", "ip6tc"], True, "apt-get install iptables libxtables12 libip6tc2"),
        (FileNotFoundError("/sbin/ldconfig"), ["xtables"], False, "apt-get install libc-bin"),
        (OSError("libip4tc.so.2: file too short"), [], True, "file too short"),
    ],
)
def test_what_is_missing_for_python_iptables_is_named_with_its_package(
    error: Exception, libraries: list[str], has_ldconfig: bool, cure: str
) -> None:
    reason = why_import_failed(error, libraries, has_ldconfig=has_ldconfig)
    assert cure in reason
    assert "install" in reason
    assert "\n" not in reason
