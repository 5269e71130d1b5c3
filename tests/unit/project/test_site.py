"""The sources of the site: links of a page lead on in the site."""

from tests.pages.reference.site import BESIDE_DOCS, in_site, pages


def test_a_link_to_a_page_leads_to_the_page_and_one_to_another_file_names_it() -> None:
    text = "[a](docs/hosts.md#install) [b](docs/adr) [c](https://example.com) [d](#e) [rules](deploy/rules.yaml)"
    shown = "[a](hosts.md#install) [b](decisions.md) [c](https://example.com) [d](#e) rules (`deploy/rules.yaml`)"
    assert in_site(text, "README.md", "index.md") == shown


def test_a_link_from_a_folder_of_docs_is_relative_to_it() -> None:
    page = in_site("[a](../hosts.md) [b](../../README.md) [c](0001-x.md)", "docs/adr/0002-y.md", "adr/0002-y.md")
    assert page == "[a](../hosts.md) [b](../index.md) [c](0001-x.md)"


def test_code_stays_as_it_is() -> None:
    code = "```sh\necho '[a](docs/hosts.md)'\n```"
    assert in_site(code, "README.md", "index.md") == code


def test_what_no_test_types_says_so_in_the_site_too() -> None:
    text = "a\n\n  <!-- not typed: it reboots -->\n  ```sh\n  reboot\n  ```\n"
    assert in_site(text, "README.md", "index.md") == (
        "a\n\n  *No test types this: it reboots.*\n\n  ```sh\n  reboot\n  ```\n"
    )


def test_every_page_of_the_tree_is_in_the_site() -> None:
    assert {*BESIDE_DOCS.values(), "decisions.md", "hosts.md", "adr/0001-pull-not-push.md"} <= pages().keys()
