"""`flannelette docker-opts`: byte for byte what flannel's mk-docker-opts.sh writes."""

import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from flannelette.services.ctl.commands.docker_opts import docker_opts, gateway_to
from tests.kubernetes.manifests import of_flannel

SUBNET = "FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.52.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ={}\n"
SINGLE = 'DOCKER_OPT_BIP="--bip=10.5.52.1/24"\nDOCKER_OPT_IPMASQ="--ip-masq=false"\nDOCKER_OPT_MTU="--mtu=1450"\n'
COMBINED = '" --bip=10.5.52.1/24 --ip-masq=false --mtu=1450"\n'


def run(directory: Path, *words: str, subnet: str = SUBNET.format("true")) -> Result:
    source = directory / "subnet.env"
    source.write_text(subnet)
    return CliRunner().invoke(docker_opts, ["-f", str(source), "-d", str(directory / "docker.env"), *words])


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], f"{SINGLE}DOCKER_OPTS={COMBINED}"),
        (["-i", "-c"], f"{SINGLE}DOCKER_OPTS={COMBINED}"),
        (["-i"], SINGLE),
        (["-c"], f"DOCKER_OPTS={COMBINED}"),
        (["-c", "-k", "OPTIONS"], f"OPTIONS={COMBINED}"),
        (["-c", "-m"], 'DOCKER_OPTS=" --bip=10.5.52.1/24 --mtu=1450"\n'),
    ],
)
def test_the_file_is_that_of_mk_docker_opts(tmp_path: Path, words: list[str], text: str) -> None:
    assert run(tmp_path, *words).exit_code == 0
    assert (tmp_path / "docker.env").read_text() == text
    assert (tmp_path / "docker.env").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("masquerades", ["true", "false", ""])
@pytest.mark.parametrize("words", [[], ["-i"], ["-c"], ["-c", "-k", "OPTIONS"], ["-m"]])
def test_flannels_own_script_writes_the_same(tmp_path: Path, words: list[str], masquerades: str) -> None:
    subnet = SUBNET.format(masquerades)
    assert run(tmp_path, *words, subnet=subnet).exit_code == 0
    theirs = tmp_path / "theirs.env"
    script = [
        "sh",
        str(of_flannel("mk-docker-opts.sh")),
        "-f",
        str(tmp_path / "subnet.env"),
        "-d",
        str(theirs),
        *words,
    ]
    subprocess.run(script, check=True)
    assert (tmp_path / "docker.env").read_text() == theirs.read_text()


def test_docker_masquerades_where_the_overlay_does_not(tmp_path: Path) -> None:
    assert run(tmp_path, "-c", subnet=SUBNET.format("false")).exit_code == 0
    assert "--ip-masq=true" in (tmp_path / "docker.env").read_text()


def test_a_route_to_the_subnet_by_another_host_is_found() -> None:
    table = """\
Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT
eth0 00000000 0100000A 0003 0 0 0 00000000 0 0 0
docker0 0034050A 00000000 0001 0 0 0 00FFFFFF 0 0 0
flannel.1 0035050A 0035050A 0003 0 0 3 00FFFFFF 0 0 0
"""
    assert gateway_to("10.5.52.1/24", table) == ""
    assert gateway_to("10.5.53.1/24", table) == "10.5.53.0"


def test_it_can_be_looked_at_first(tmp_path: Path) -> None:
    assert run(tmp_path, "-i", "-d", "-").output == SINGLE
    assert not (tmp_path / "docker.env").exists()


@pytest.mark.parametrize(
    ("subnet", "words", "sentence"),
    [
        ("FLANNEL_MTU=1450\n", [], "the file has no FLANNEL_SUBNET"),
        ('FLANNEL_SUBNET=10.5.1.1/24" $(reboot)\nFLANNEL_MTU=1450\n', [], "is not an address with a prefix length"),
        ("FLANNEL_SUBNET=10.5.1.1/24\nFLANNEL_MTU=1450;x\n", [], "is not a number of bytes"),
        (SUBNET.format("yes"), [], "FLANNEL_IPMASQ='yes' is neither true nor false"),
        (
            "FLANNEL_SUBNET=10.5.1.1/24\nFLANNEL_MTU=1450\n",
            ["-d", "/nowhere/docker.env"],
            "cannot write /nowhere/docker.env: No such file",
        ),
        ("FLANNEL_SUBNET=10.5.1.1/24\nFLANNEL_MTU=1450\n", ["-k", "A=$(x)"], "is not a valid variable name"),
    ],
)
def test_what_cannot_be_used_is_said_and_the_old_file_stays(
    tmp_path: Path, subnet: str, words: list[str], sentence: str
) -> None:
    (tmp_path / "docker.env").write_text("old")
    result = run(tmp_path, *words, subnet=subnet)
    assert result.exit_code != 0
    assert sentence in result.output
    assert (tmp_path / "docker.env").read_text() == "old"
