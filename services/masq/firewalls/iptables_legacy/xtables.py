"""The legacy tables through python-iptables: carries out actions, and commits them. Worker process only.

libxtables may end its process when it dislikes something, and cannot have MASQUERADE of both families in one.
The only file that imports iptc.
"""

import ctypes
import re
from collections.abc import Sequence
from typing import Any, Final

import iptc
import iptc.xtables

from flannelette.services.core.errors import Unavailable
from flannelette.services.core.family import Family
from flannelette.services.masq.firewalls.iptables import (
    Action,
    Append,
    DeleteRule,
    EmptyChain,
    Form,
    Insert,
    MakeChain,
    RemoveChain,
)

_CLASSES: Final = {4: (iptc.Table, iptc.Rule), 6: (iptc.Table6, iptc.Rule6)}
_CURES: Final = {
    "Permission denied": "run the service as root with CAP_NET_ADMIN and CAP_NET_RAW",
    "Table does not exist": "load it with `modprobe {module}`, or start the kernel with legacy iptables",
    "No chain/target/match": "the kernel lacks a module: `modprobe -a xt_comment xt_mark xt_MASQUERADE`",
}


class TableChanged(Exception):
    """Another program changed the table between our read and our commit; nothing was committed."""


class LegacyTable:
    """One table as it is at `refresh`, and changes to it that `commit` makes real, all at once."""

    def __init__(self, family: Family, name: str) -> None:
        self.name = name
        self._family = family
        self._class, self._rule = _CLASSES[family.version]
        self._table: Any = None

    def refresh(self) -> None:
        """Looks at the kernel. Makes the table if this namespace had none yet. Raises Unavailable."""
        # iptc asks every table that it believes to exist whether a target is one of its chains, and asking makes
        # the table: let it believe in this one only.
        self._class.existing_table_names = {name: name == self.name for name in self._class.ALL}
        try:
            if self._table is None:
                self._table = self._class(self.name, autocommit=False)
            else:
                self._table.refresh()
        except iptc.IPTCError as error:
            raise self._unavailable(error) from None

    def carry_out(self, actions: Sequence[Action]) -> None:
        """Changes our copy of the table. Raises Unavailable: this iptables cannot express a rule."""
        try:
            for action in actions:
                self._do(action)
        except (iptc.IPTCError, iptc.XTablesError) as error:
            raise self._unavailable(error) from None

    def commit(self) -> None:
        """Replaces the kernel's table by our copy, in one step. Raises TableChanged, Unavailable."""
        try:
            self._table.commit()
        except iptc.IPTCError as error:
            if "temporarily unavailable" in str(error):
                raise TableChanged from None
            raise self._unavailable(error) from None

    def _do(self, action: Action) -> None:
        match action:
            case MakeChain(chain):
                self._table.create_chain(chain)
            case EmptyChain(chain):
                self._table.flush_entries(chain)
            case RemoveChain(chain):
                self._table.delete_chain(chain)
            case Append(chain, rule):
                iptc.Chain(self._table, chain).append_rule(self._encode(rule.form))
            case Insert(chain, position, rule):
                iptc.Chain(self._table, chain).insert_rule(self._encode(rule.form), position)
            case DeleteRule(chain, position):
                # By place: iptc's own delete compares rules, which it cannot do reliably.
                library, handle = self._table._iptc, self._table._handle
                if library.iptc_delete_num_entry(chain.encode(), position, handle) != 1:
                    raise iptc.IPTCError(f"cannot delete rule {position + 1} of {chain}")

    def _decode(self, rule: Any) -> Form:
        form: Form = iptc.easy.decode_iptc_rule(rule, ipv6=self._family.version == 6)
        del form["counters"]
        return form

    def _encode(self, form: Form) -> Any:
        """The rule of a dictionary, which says exactly that: `iptc.easy` leaves out what fails."""
        rule = self._rule()
        for name, value in form.items():
            if name in ("src", "dst"):
                setattr(rule, name, value)
            elif name == "target":
                target, parameters = next(iter(value.items())) if isinstance(value, dict) else (value, {})
                _set_parameters(rule.create_target(target), parameters)
            else:
                _set_parameters(rule.create_match(name), value)
        if self._decode(rule) != form:
            raise iptc.XTablesError(f"iptables understands {form} as {self._decode(rule)}")
        return rule

    def _unavailable(self, error: Exception) -> Unavailable:
        text = re.sub(r"""b(['"])(.*?)\1""", r"\2", str(error))
        module = f"ip{'6' if self._family.version == 6 else ''}table_{self.name}"
        cure = next((cure for sign, cure in _CURES.items() if sign in text), "see the kernel's log (dmesg)")
        return Unavailable(f"{self._family} table {self.name}: {text}; {cure.format(module=module)}")


def masquerade_knows_fully_random(family: Family) -> bool:
    """Whether the installed extension has `--random-fully` (iptables 1.6.2 and later).

    Raises Unavailable: an extension that we need is not installed.
    """
    _, make_rule = _CLASSES[family.version]
    rule = make_rule()
    try:
        for match in ("comment", "mark"):
            rule.create_match(match)
        rule.create_target("ACCEPT")
        target = rule.create_target("MASQUERADE")
    except iptc.XTablesError as error:
        raise Unavailable(f"an extension of iptables is missing ({error}): apt-get install iptables") from None
    _fit_options(target._module.x6_options)
    try:
        target.set_parameter("random-fully")
    except (iptc.XTablesError, AttributeError):
        return False
    return True


def _fit_options(entries: Any) -> None:
    """Has iptc find every option of an extension, with the length that this libxtables gives an entry.

    iptables 1.8.11 has one field more (`base`, with padding, both zero here), and the same soname: in its lists iptc
    saw the first option alone. `entries` has more than one.
    """
    entry = iptc.xtables.xt_option_entry
    length = ctypes.sizeof(entry)
    first = ctypes.addressof(entries.contents)
    if ctypes.c_uint64.from_address(first + length).value:  # where the name of the second one would be
        return

    def lookup(_: Any, options: Any, name: bytes) -> Any:
        address = ctypes.addressof(options.contents)
        while (found := entry.from_address(address)).name:
            if found.name == name:
                return found
            address += length + ctypes.sizeof(ctypes.c_uint64)
        return None

    iptc.xtables.xtables._option_lookup = lookup


def _set_parameters(module: Any, parameters: Form) -> None:
    for name, value in parameters.items():
        module.set_parameter(name, value)
