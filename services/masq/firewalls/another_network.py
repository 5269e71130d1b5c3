"""Rules that the flanneld of another network has in the chains that all flannelds of a host share. Pure.

They are known by flannel's comment and by their addresses, of which none touches a network of ours.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from ipaddress import ip_network
from typing import Final

from services.core.family import FAMILIES, Network
from services.masq.firewalls.messages import ChainForm, Form
from services.masq.firewalls.repair import FoundChain, FoundJump

_ADDRESS: Final = re.compile(r"(?:^| )(?:-[sd]|[sd]addr(?: !=)?) (\S+)")
_MULTICAST: Final = frozenset(family.multicast for family in FAMILIES)


def apart(wanted: ChainForm, found: FoundChain) -> FoundChain:
    """What was found, with the rules of other networks set apart from ours."""
    if wanted.networks is None or found.rules is None:
        return found
    ours = [ip_network(text) for text in wanted.networks]
    rules = list(enumerate(found.rules))
    others = {place for place, rule in rules if rule.form and _is_anothers(rule.form, wanted, ours)}
    return replace(
        found,
        rules=tuple(rule for place, rule in rules if place not in others),
        places=tuple(place for place, _ in rules if place not in others),
        others=tuple(FoundJump(wanted.name, place, rule) for place, rule in rules if place in others),
    )


def is_apart(networks: Sequence[Network], ours: Iterable[Network]) -> bool:
    """Whether these are addresses of another network: there are some, beside multicast, and none touches ours."""
    named = [network for network in networks if network not in _MULTICAST and network.prefixlen > 0]
    return bool(named) and not any(a.version == b.version and a.overlaps(b) for a in named for b in ours)


def rule_text(chain: str, form: Form) -> str:
    """As iptables-save has it, of a rule that `apart` has found."""
    if "text" in form:
        return str(form["text"])
    words = [f"-A {chain}"]
    for key, option in (("src", "-s"), ("dst", "-d")):
        if value := form.get(key, ""):
            words.append(f"{'! ' if value.startswith('!') else ''}{option} {value.lstrip('!')}")
    target = form.get("target", "")
    name, parameters = next(iter(target.items())) if isinstance(target, dict) else (target, {})
    comment = f'-m comment --comment "{form["comment"]["comment"]}"'
    return " ".join([*words, comment, f"-j {name}", *(f"--{parameter}" for parameter in parameters)])


def networks_in(texts: Iterable[str]) -> list[str]:
    """The largest networks that rules name, as text, sorted."""
    found = {network for text in texts for network in _networks(_ADDRESS.findall(text))} - _MULTICAST
    largest = (n for n in found if not any(n != o and n.version == o.version and n.subnet_of(o) for o in found))  # type: ignore[arg-type]  # of one version
    return sorted(map(str, largest))


def _is_anothers(form: Form, wanted: ChainForm, ours: Sequence[Network]) -> bool:
    if "text" in form:
        has_comment = f'--comment "{wanted.comment}"' in form["text"]
        texts = _ADDRESS.findall(form["text"])
    else:
        has_comment = form.get("comment", {}).get("comment") == wanted.comment
        texts = [form[key].lstrip("!") for key in ("src", "dst") if key in form]
    return has_comment and is_apart(_networks(texts), ours)


def _networks(texts: Iterable[str]) -> list[Network]:
    found = []
    for text in texts:
        try:
            found.append(ip_network(text))
        except ValueError:
            return []
    return found
