"""`flannelette status`: one node in full, or all nodes of a context, once or again and again."""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from rich.text import Text

from flannelette.services.ctl.answers import assess_all, status_document
from flannelette.services.ctl.connect.call import Channels
from flannelette.services.ctl.connect.contexts import Nodes
from flannelette.services.ctl.follow import Row, View, follow
from flannelette.services.ctl.node_health import NodeHealth
from flannelette.services.ctl.problems import headline, problems
from flannelette.services.ctl.render.layout import Width
from flannelette.services.ctl.render.overview import STATE, TITLES, overview_row, overview_text
from flannelette.services.ctl.render.screen import Screen
from flannelette.services.ctl.render.status import status_text


def status(nodes: Nodes, screen: Screen, *, is_watching: bool) -> int:
    """Shows the nodes. 0: all are healthy. 1: one is not. 2: no service of any node answered."""
    if is_watching:
        return follow(lambda channels: _view(nodes, channels, wide=screen.wide), screen)
    return asyncio.run(_once(nodes, screen))


async def _once(nodes: Nodes, screen: Screen) -> int:
    found = await assess_all(nodes, each_network=True)
    if screen.json:
        documents = [_document(name, node) for name, node in found.items()]
        screen.show_json(documents if len(found) > 1 else documents[0])
    else:
        screen.show(_text(found, screen.width, wide=screen.wide))
    if not any(node.answered for node in found.values()):
        return 2
    return max(min(headline(node)[1], 1) for node in found.values())


async def _view(nodes: Nodes, channels: Channels, *, wide: bool) -> View:
    found = await assess_all(nodes, channels, each_network=True)
    rows = {name: _row(name, node) for name, node in found.items()}
    return View(lambda width: _text(found, width, wide=wide), TITLES, rows, STATE)


def _row(name: str, node: NodeHealth) -> Row:
    cells = overview_row(name, node)
    words = [value if isinstance(value, str) else value.plain for cell in cells[:-1] for value in cell]
    # A change of a number in its text, such as of seconds, is no change of the node.
    found = [(each.service, each.code or each.problem, each.weight, each.peers) for each in problems(node)]
    return Row((*words, *found), cells, _document(name, node))


def _text(found: Mapping[str, NodeHealth], width: Width, *, wide: bool) -> Text:
    if len(found) == 1 and not wide:
        (node,) = found.values()
        return status_text(node, datetime.now(UTC), width)
    return overview_text(found, width, wide=wide)


def _document(name: str, node: NodeHealth) -> dict[str, Any]:
    document = status_document(node)
    return {**document, "node": name or document["node"]}
