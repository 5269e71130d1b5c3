"""The options of backend ipsec. Pure."""

import re
from dataclasses import dataclass, field
from typing import Final

from services.core.errors import InvalidInput
from services.core.formats.gojson import GoObject

_WHERE: Final = "the network configuration"
_IPSEC_PAGE: Final = "docs/backends.md#ipsec"
_SHORTEST_PSK: Final = 96
_PROPOSAL: Final = re.compile(r"[A-Za-z0-9_]+(-[A-Za-z0-9_]+){0,15}", re.ASCII)
ESP_PROPOSAL: Final = "aes128gcm16-sha256-prfsha256-ecp256"
"""flannel's default."""
_LONGEST_PROPOSAL: Final = 100


@dataclass(frozen=True, slots=True)
class IpsecOptions:
    """flannel's options of the same names."""

    psk: bytes = field(repr=False)
    """The text of the option, as charon gets it."""
    encap: bool
    """ESP in UDP, also where no NAT is between two nodes."""
    proposal: str
    """Of ESP, in strongSwan's words."""


def ipsec_options(options: GoObject) -> IpsecOptions:
    """Raises InvalidInput, naming the option and never its secret."""
    psk = options.secret("PSK")
    if len(psk) < _SHORTEST_PSK:
        found = f"has {len(psk)}" if psk else "is missing"
        raise InvalidInput(
            f"PSK of Backend in {_WHERE} {found}: ipsec needs at least {_SHORTEST_PSK} characters, as `openssl rand "
            f"-hex 48` prints ({_IPSEC_PAGE})"
        )
    proposal = options.text("ESPProposal", ESP_PROPOSAL)
    if (
        not _PROPOSAL.fullmatch(proposal)
        or len(proposal) > _LONGEST_PROPOSAL
        or "null" in proposal.lower().split("-")
    ):
        raise InvalidInput(
            f"ESPProposal of Backend in {_WHERE} must be algorithms of strongSwan with - between them, of which one "
            f"encrypts, such as aes128gcm16-sha256-prfsha256-ecp256 ({_IPSEC_PAGE})"
        )
    return IpsecOptions(psk.encode(), options.flag("UDPEncap"), proposal)
