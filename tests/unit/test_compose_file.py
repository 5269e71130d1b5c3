"""deploy/compose/docker-compose.yml is what its generator prints."""

import subprocess
from pathlib import Path

COMPOSE = Path(__file__).parents[2] / "deploy" / "compose"


def generated(hosts: str) -> str:
    command = ["sh", str(COMPOSE / "generate.sh"), hosts]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_the_file_in_the_repository_is_the_generated_one() -> None:
    assert (COMPOSE / "docker-compose.yml").read_text() == generated("3")


def test_every_host_has_its_containers_its_address_and_its_volumes() -> None:
    text = generated("12")
    for number in range(1, 13):
        for service in (f"h{number}", f"h{number}-lease", f"h{number}-dataplane", f"h{number}-masq", f"pod{number}"):
            assert f"\n  {service}:\n" in text
        assert f'ipv4_address: "${{UNDERLAY:-10.99.0}}.{10 + number}"' in text
        assert f"\n  h{number}-run: *volume\n" in text
        assert text.count(f'"h{number}-state:/var/lib/flannelette"') == 2  # dataplane and masq
