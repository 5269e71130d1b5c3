"""Finds the nodes that a command is about, from its options, the environment, and the file of contexts."""

import os
from pathlib import Path

from flannelette.services.core.errors import Misconfigured
from flannelette.services.ctl.cli.options import Shared
from flannelette.services.ctl.connect.contexts import Contexts, Nodes, Place, read_contexts
from flannelette.services.ctl.connect.targets import Targets


def nodes_of(shared: Shared, *, is_named: bool = False) -> Nodes:
    """The nodes of the context, or the one that `--on` names; without a context this node, named "".

    An address that was given counts before the context's. The file's current context is not used beside one: who
    gives an address means this node. With `is_named` an option of the command's own names the service, as `--address`
    of `flannelette cloud`: it needs no file. Raises Misconfigured, and CallFailed for a certificate.
    """
    given = Place(**{name: getattr(shared, name, None) or "" for name in Place.__slots__})
    path, is_here = contexts_path(), any((given.socket_dir, given.lease, given.dataplane, given.masq))
    needs_file = shared.context or not (is_here or is_named)
    if os.environ.get("FLANNELETTE_CONTEXTS") and needs_file and _is_missing(path):
        raise Misconfigured(
            f"FLANNELETTE_CONTEXTS names {path}, which is not there: if it was a lab's, that lab has ended; start it "
            "again, or `unset FLANNELETTE_CONTEXTS FLANNELETTE_CONTEXT`"
        )
    contexts = read_contexts(path)
    name = shared.context or ("" if is_here else contexts.current)
    if not name:
        if shared.on:
            raise Misconfigured(_without_context(contexts, shared.on))
        return {"": given.targets()}
    places = contexts.chosen(name).nodes()
    if shared.on:
        if shared.on not in places:
            raise Misconfigured(f"the context {name} has no node {shared.on!r}; it has: {', '.join(places)}")
        places = {shared.on: places[shared.on]}
    return {node: given.over(place).targets(node) for node, place in places.items()}


def one_of(nodes: Nodes, *, any_will_do: bool) -> Targets:
    """The services of the one node; of the first, if any will do. Raises Misconfigured: there are several."""
    if len(nodes) > 1 and not any_will_do:
        raise Misconfigured(f"which node? Give --on NODE, one of: {', '.join(nodes)}")
    return next(iter(nodes.values()))


def known_contexts() -> dict[str, list[str]]:
    """The nodes that the file has for each context, for a shell's proposals; those of "" are the current one's."""
    try:
        found = read_contexts(contexts_path())
    except Misconfigured:
        return {}
    known = {name: [*context.places] for name, context in found.by_name.items()}
    return known | {"": known.get(found.current, [])}


def contexts_path() -> Path:
    """FLANNELETTE_CONTEXTS, or the file in the user's directory of configurations."""
    if named := os.environ.get("FLANNELETTE_CONTEXTS"):
        return Path(named).expanduser()
    home = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(home).expanduser() / "flannelette" / "contexts.toml"


def _is_missing(path: Path) -> bool:
    """Not where it cannot be looked for, as in a directory that is closed to us: reading it tells why."""
    try:
        path.stat()
    except OSError as error:
        return isinstance(error, FileNotFoundError)
    return False


def _without_context(contexts: Contexts, node: str) -> str:
    known = ", ".join(contexts.by_name)
    if known:
        return f"--on {node} names a node of a context: give --context, one of: {known}"
    return f"--on {node} names a node of a context, and there is none in {contexts.path}"
