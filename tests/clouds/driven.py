"""A provider without the services around it: reads commands as JSON lines, and writes what came of each.

Runs in the environment that has the SDKs. process.Provider starts it.
"""

import asyncio
import json
import sys
from ipaddress import ip_address, ip_network
from typing import Any

from flannelette.services.cloud.main import CloudSettings, make_cloud
from flannelette.services.cloud.routes import CloudError, DesiredRoute, plan
from flannelette.services.cloud.writer import BatchResult, carry_out
from flannelette.services.core.errors import FlanneletteError
from flannelette.services.core.network import parse_network


def main() -> None:
    """Until standard input ends."""
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = asyncio.run(_do(command))
        except CloudError as error:
            answer = {"error": str(error), "trouble": error.trouble.name}
        except FlanneletteError as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)


async def _do(command: dict[str, Any]) -> dict[str, Any]:
    """Looks and changes, at most `rounds` times; with 0, only the plan is told."""
    options = {"Type": command["backend"], **command.get("options", {})}
    network = parse_network(json.dumps({"Network": "10.4.0.0/15", "Backend": options}))
    settings = CloudSettings(
        cloud_endpoint=command.get("endpoint", ""),
        cloud_metadata=command.get("metadata", ""),
        cloud_routes_limit=command.get("limit", 0),
    )
    wanted = [DesiredRoute(ip_network(cidr), f"n-{hop}", ip_address(hop)) for cidr, hop in command["leases"]]
    cloud = make_cloud(settings, network)
    done = BatchResult()
    commands: list[str] = []
    for n in range(max(command.get("rounds", 1), 1)):
        view = await asyncio.to_thread(cloud.look, {each.address for each in wanted if each.address})
        found = plan(wanted, view, frozenset(), [ip_network("10.4.0.0/15")])
        if n == 0:
            commands = [cloud.command(change) for change in found.changes]
        if not found.changes or not command.get("rounds", 1):
            break
        done.errors.clear()
        await carry_out(cloud, found.changes, done)
        if done.wait is not None:
            break
    return {
        "commands": commands,
        "made": [change.text for change in done.made],
        "errors": {destination: reason for (_, destination, _), reason in done.errors.items()},
        "wait": str(done.wait or ""),
        "left": [change.text for change in found.changes],
        "problems": [f"{row.route.destination}: {row.problem}" for row in found.rows if row.problem],
        "findings": [each.problem for each in found.findings],
        "warnings": network.warnings,
    }


if __name__ == "__main__":
    main()
