"""The list of commands in the help, by what they are for."""

from collections.abc import Mapping, Sequence
from typing import Final

import click

SECTIONS: Final[Mapping[str, Sequence[str]]] = {
    "How it is": ("status", "doctor", "leases", "nodes", "peers", "rules", "quarantine", "reservations"),
    "Why it is so": ("diff", "events", "explain"),
    "What comes": ("watch", "wait"),
    "To change the kernel": ("resync", "handover", "teardown", "masq"),
    "To change who has which subnet": ("reserve", "unreserve", "release", "reclaim", "renumber", "confirm-removal"),
    "On a host": ("flanneld", "docker-opts", "certs", "version"),
}


class Sections(click.Group):
    """A group whose help lists its commands by SECTIONS, each in one line."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See click."""
        room = formatter.width - 6 - max(map(len, self.commands))
        for title, names in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, self.commands[name].get_short_help_str(room)) for name in names])
