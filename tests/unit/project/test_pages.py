"""Whatever a page tells a reader to type is typed by a test, or the page says why not; commands and links exist.

Before a block that no test types stands `<!-- not typed: WHY -->`, and the site shows it.

The tests named here take every block of their section, and fail when there is one more.
"""

import ast
import re
from pathlib import Path
from typing import Final

import click
import pytest

from flannelette.services.ctl.main import cli
from tests.pages.document import SHELLS, sections, untypable
from tests.pages.reference.site import BESIDE_DOCS
from tests.paths import ROOT

PAGES: Final = sorted(
    {*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").rglob("*.md")}
    | {ROOT / page for page in BESIDE_DOCS}
)

README, COMPOSE = "tests/e2e/test_readme.py", "tests/compose/test_compose_page.py"
HOST = "tests/kernel/pages/test_readme_host.py::test_a_host_joins_the_overlay_and_leaves_it_as_the_pages_say"
BY_SECTION = "tests/contract/kubernetes/test_page.py::test_every_section_with_commands_is_read_here"
TYPED: Final[dict[str, str | dict[str, str]]] = {
    "README.md": {
        "Try it": f"{README}::test_make_lab_is_there_until_ctrl_c "
        f"{COMPOSE}::test_make_compose_lab_is_there_until_ctrl_c_and_what_it_proposes_works",
    },
    "docs/quickstart.md": {
        "A cluster on this machine": f"{README}::test_make_lab_is_there_until_ctrl_c",
        "Look inside": f"{README}::test_a_look_inside_works_as_printed",
        "Break something": f"{README}::test_a_fault_is_found_and_cured",
        "Run it on a host": HOST,
    },
    "docs/central.md": "tests/kernel/pages/test_central_page.py"
    "::test_a_node_joins_by_a_central_lease_service_and_gets_new_certificates",
    "docs/compose.md": {
        "In one command": f"{COMPOSE}::test_make_compose_lab_is_there_until_ctrl_c_and_what_it_proposes_works "
        f"{COMPOSE}::test_the_lab_by_hand",
        "The images": f"{COMPOSE}::test_the_images_by_themselves",
        "A cloud's routes": "tests/compose/test_cloud.py"
        "::test_what_the_page_says_writes_routes_without_a_right_and_leaves_them",
    },
    "docs/grpcurl.md": "tests/e2e/test_grpcurl_document.py::test_the_commands_under_a_heading_print_what_is_shown "
    "tests/compose/test_compose.py::test_the_commands_of_the_page_print_what_it_shows",
    "docs/hosts.md": dict.fromkeys(
        ("Install", "docker", "With flanneld's command line"),
        "tests/kernel/pages/test_hosts_page.py::test_the_page_makes_a_host_one_of_the_overlay",
    ),
    "docs/kubernetes.md": BY_SECTION,
    "docs/migration.md": "tests/kernel/pages/test_migration_page.py::test_the_way_to_us_and_back_is_as_the_page_says",
    "docs/operations.md": {
        "What has happened?": HOST,
        "Reporting a bug": "tests/kernel/cluster/test_sysdump.py"
        "::test_the_archive_has_everything_of_the_node_and_no_secret",
        "Following a packet": "tests/kernel/masq/test_explain.py::test_what_the_page_says_to_type_follows_a_packet",
        "Addresses of pods that are gone": "tests/kernel/dataplane/test_pod_addresses.py"
        "::test_doctor_names_the_addresses_of_killed_pods_and_what_the_page_says_frees_them",
        "Probes": "tests/e2e/test_lab.py::test_a_narrow_path_is_followed_and_tcp_passes_as_the_page_says",
        "Many leases are gone at once": HOST,
        "A network change that would move nodes": "tests/kernel/cluster/test_network_change.py"
        "::test_the_page_says_what_to_type",
        "Taking a node out": HOST,
    },
    "docs/subnets.md": HOST,
    "docs/upgrading.md": {
        "A host": "tests/kernel/pages/test_hosts_page.py::test_the_page_makes_a_host_one_of_the_overlay",
    },
    "docs/uninstall.md": {
        "A host": "tests/kernel/pages/test_hosts_page.py::test_the_page_makes_a_host_one_of_the_overlay",
        "Kubernetes": "tests/kube/test_uninstall.py::test_nothing_is_left_on_nodes_and_in_the_api",
    },
}
"""The tests that type the commands of a page, or of each of its sections."""


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_what_a_page_says_to_type_is_typed_by_a_test_or_marked(page: Path) -> None:
    """A new block: name its test in TYPED, or write `<!-- not typed: WHY -->` into the line before it."""
    where = TYPED.get(name_of(page), {})
    found = [section.title for section in sections(page)]
    assert untypable(page) == [], "only blocks of the language sh can be typed"
    assert found == [] if not where else isinstance(where, str) or list(where) == found


@pytest.mark.parametrize(
    "test",
    sorted({test for where in TYPED.values() for each in ([where] if isinstance(where, str) else where.values())
            for test in each.split()}),
)  # fmt: skip
def test_a_test_that_types_commands_exists(test: str) -> None:
    path, _, name = test.partition("::")
    assert name in {getattr(node, "name", "") for node in ast.walk(ast.parse((ROOT / path).read_text()))}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_of_a_page_are_marked_as_such(page: Path) -> None:
    programs = (
        "make|docker|docker-compose|flannelette|kubectl|helm|systemctl|sudo|pip|python3|grpcurl|etcdctl|apt-get"
    )
    typed_or_shown = re.compile(rf"^```({'|'.join((*SHELLS, 'text', 'json'))})\n.*?^```$", re.M | re.S)
    plain = re.findall(r"^```\w*\n(.*?)^```$", typed_or_shown.sub("", page.read_text()), re.M | re.S)
    assert [line for block in plain for line in block.splitlines() if re.match(rf"(\$ )?({programs})\b", line)] == []


def commands() -> list[tuple[str, str, str]]:
    """Page, command and what follows it, of what is between backticks and in blocks of commands."""
    found = set()
    for page in PAGES:
        text = re.sub(r"^```(text|json)?\n.*?^```$", "", page.read_text(), flags=re.M | re.S)
        for name, rest in re.findall(
            r"(?:^|[`/ ])flannelette (?!flannelette-)([a-z][a-z-]*)((?: [^`#\n]+)?)(?=`|#|$)", text, re.M
        ):
            found.add((name_of(page), name, rest.strip()))
    return sorted(found)


@pytest.mark.parametrize(("page", "name", "words"), commands())
def test_a_command_of_a_page_exists_with_its_options(page: str, name: str, words: str) -> None:
    command = cli.commands[name]
    if isinstance(command, click.Group) and words:
        command = command.commands[words.split()[0]]
    options = {option for parameter in command.params for option in parameter.opts}
    assert set(re.findall(r"(?<= )--[a-z-]+", f" {words}")) <= options | {"--help"}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_target_of_make_that_a_page_names_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    assert set(re.findall(r"(?:`|^|sudo )make ([a-z-]+)", page.read_text(), re.M)) <= targets


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_what_a_page_links_to_exists(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text())
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert missing == []


def test_what_must_be_installed_on_a_host_is_what_the_images_install() -> None:
    """But pip, which a virtual environment brings along."""
    lines = re.findall(
        r"apt-get install --yes --no-install-recommends (.+?)(?: \\)?$",
        (ROOT / "deploy/images/Dockerfile").read_text(),
        re.M,
    )
    build = next(line for line in lines if "gcc" in line).split()
    masq = next(line for line in lines if "libnftables1" in line).split()
    needed = {*build, *masq, "python3-venv"} - {"python3-pip"}
    for page in ("docs/quickstart.md", "docs/hosts.md"):
        (named,) = re.findall(r"`(python3-venv [^`]+)`", " ".join((ROOT / page).read_text().split()))
        assert set(named.split()) == needed
