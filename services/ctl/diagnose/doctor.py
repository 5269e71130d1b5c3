"""`flannelette doctor`: what is wrong with the nodes, and what cures it."""

from collections.abc import Collection

from services.ctl.commands.answers import assess_all
from services.ctl.connect.contexts import Nodes
from services.ctl.connect.targets import SERVICES
from services.ctl.node_health import State
from services.ctl.problems import merged, problems
from services.ctl.render.problems import doctor_text
from services.ctl.render.screen import Screen


async def doctor(nodes: Nodes, screen: Screen, services: Collection[str]) -> int:
    """Prints the problems that these services of the nodes tell, or all. 0: none. 1: some. 2: no service answers."""
    asked = [service for service in SERVICES if not services or service in services]
    health = await assess_all(nodes)
    names = [name or each.name or "this host" for name, each in health.items()]
    found = merged((name, problems(each, asked)) for name, each in zip(names, health.values(), strict=True))
    if screen.json:
        node = next(iter(health.values())).name if len(health) == 1 else ""
        screen.show_json({"node": node, "nodes": names, "ailments": [each.document() for each in found]})
    else:
        screen.show(doctor_text(names, found, screen.width))
    if all(each.services[service].state is State.AWAY for each in health.values() for service in asked):
        return 2
    return 1 if found else 0
