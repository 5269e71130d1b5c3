"""A flag that a service does not have: whose it is, or which one is meant.

Regression tests of hole 20.
"""

import dataclasses
import re
import subprocess
import sys

import pytest

from flannelette.services.cloud.settings import CloudSettings
from flannelette.services.core.errors import Misconfigured
from flannelette.services.flanneld.flags import SERVICES, children
from flannelette.services.runtime.process.options import ProcessSettings
from flannelette.services.runtime.process.settings import FLAGS, PURPOSES, parse_settings, usage
from tests.patience import PATIENCE


def flags_of(kind: type[ProcessSettings]) -> set[str]:
    return {f.metadata["flag"] or f.name.replace("_", "-") for f in dataclasses.fields(kind) if f.metadata}


def answer(service: str, argument: str) -> str:
    with pytest.raises(Misconfigured) as refused:
        parse_settings(SERVICES[service], f"flannelette-{service}", [argument], {})
    return str(refused.value)


def test_the_table_of_flags_is_that_of_the_services() -> None:
    shared = flags_of(ProcessSettings)
    assert {name: set(flags.split()) for name, flags in FLAGS.items()} == {
        name: flags_of(kind) - shared for name, kind in {**SERVICES, "cloud": CloudSettings}.items()
    }


@pytest.mark.parametrize("service", SERVICES)
def test_a_flag_of_another_service_is_called_that(service: str) -> None:
    for other in SERVICES.keys() - {service}:
        for flag in flags_of(SERVICES[other]) - flags_of(SERVICES[service]):
            said = answer(service, f"--{flag}=1")
            assert re.fullmatch(rf"there is no flag --{flag} here: it is a flag of .*\bflannelette-{other}\b.*", said)


def test_the_state_of_the_dataplane_and_masq_is_none_of_the_lease_services() -> None:
    assert answer("lease", "--state-dir=/x") == (
        "there is no flag --state-dir here: it is a flag of flannelette-dataplane, flannelette-masq and "
        "flannelette-cloud"
    )


@pytest.mark.parametrize(("service", "kind"), {**SERVICES, "cloud": CloudSettings}.items())
def test_help_says_what_the_program_is_for_and_breaks_no_name(service: str, kind: type) -> None:
    lines = usage(f"flannelette-{service}", kind).splitlines()
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
        children(["--etcd-endpoint=x"], {})
