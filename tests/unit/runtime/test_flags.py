"""A flag that a service does not have: whose it is, or which one is meant.

Regression tests of hole 20.
"""

import re
import subprocess
import sys

import pytest

from flannelette.services.core.errors import Misconfigured
from flannelette.services.runtime.process.settings import FLAGS, PURPOSES
from tests.patience import PATIENCE
from tests.services.command_lines import ON_A_NODE, SERVICES, children_of, flags_of, help_of, parsed


def answer(service: str, argument: str) -> str:
    with pytest.raises(Misconfigured) as refused:
        parsed(service, [argument])
    return str(refused.value)


def test_the_table_of_flags_is_that_of_the_services() -> None:
    shared = flags_of().keys()
    assert {name: set(flags.split()) for name, flags in FLAGS.items()} == {
        service: flags_of(service).keys() - shared for service in SERVICES
    }


@pytest.mark.parametrize("service", ON_A_NODE)
def test_a_flag_of_another_service_is_called_that(service: str) -> None:
    for other in set(ON_A_NODE) - {service}:
        for flag in flags_of(other).keys() - flags_of(service).keys():
            said = answer(service, f"--{flag}=1")
            assert re.fullmatch(rf"there is no flag --{flag} here: it is a flag of .*\bflannelette-{other}\b.*", said)


def test_the_state_of_the_dataplane_and_masq_is_none_of_the_lease_services() -> None:
    assert answer("lease", "--state-dir=/x") == (
        "there is no flag --state-dir here: it is a flag of flannelette-dataplane, flannelette-masq and "
        "flannelette-cloud"
    )


@pytest.mark.parametrize("service", SERVICES)
def test_help_says_what_the_program_is_for_and_breaks_no_name(service: str) -> None:
    lines = help_of(service).splitlines()
    assert " ".join(" ".join(lines[2:5]).split()).startswith(PURPOSES[service])
    assert [line for line in lines if len(line) > 80 or line.endswith("-")] == []


def test_the_probe_has_a_help_and_takes_no_flag_for_a_service() -> None:
    for argument, code in (("--help", 0), ("-h", 0), ("--nonsense", 2)):
        command = [sys.executable, "-m", "flannelette.services.runtime.probe", argument]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
        assert done.returncode == code
        assert (done.stdout or done.stderr).startswith("Usage: flannelette-probe lease|dataplane|masq|")


def test_a_slip_of_the_pen_is_told_from_what_is_not_there() -> None:
    assert answer("dataplane", "--ifac=eth0") == "there is no flag --ifac: did you mean --iface? (--help lists them)"
    assert answer("masq", "-ipmasq") == "there is no flag --ipmasq: did you mean --ip-masq? (--help lists them)"
    assert answer("lease", "--nonsense") == "there is no flag --nonsense (--help lists them)"
    with pytest.raises(Misconfigured, match="did you mean --etcd-endpoints"):
        children_of(["--etcd-endpoint=x"])
