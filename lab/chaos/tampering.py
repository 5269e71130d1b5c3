"""What other programs do to the kernel and the firewall of a host."""

import asyncio
import fcntl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from lab.chaos.processes import Act, going_on
from lab.chaos.scene import Hit, NoEffect, Scene
from lab.topology import OUTSIDE_ADDRESS

_TURN: Final = 0.1
_LOCK: Final = "/run/xtables.lock"
_OTHERS: Final = "*filter\\n:CHAOS - [0:0]\\n-A CHAOS -s 192.0.2.9/32 -j DROP\\nCOMMIT\\n"
_NOBODYS: Final = "*filter\\n:FORWARD DROP [0:0]\\nCOMMIT\\n*nat\\nCOMMIT\\n"


def typed(line: str, undo: str = "") -> Act:
    """A line for a shell on the host, and one that undoes it. In braces: names of `_words`."""

    @asynccontextmanager
    async def act(scene: Scene, hit: Hit) -> AsyncIterator[None]:
        words = _words(scene, hit)
        await scene.run(hit.host, line.format(**words))
        try:
            yield
        finally:
            if undo:
                await scene.run(hit.host, undo.format(**words))

    return act


def again(text: str, flags: str = "") -> Act:
    """The host's iptables-restore reads the text every 100 ms."""

    @asynccontextmanager
    async def act(scene: Scene, hit: Hit) -> AsyncIterator[None]:
        restore = f"printf '{text}' | {scene.iptables(hit.host)}-restore {flags}"

        async def go_on() -> None:
            while True:
                await scene.run(hit.host, restore)
                await asyncio.sleep(_TURN)

        async with going_on(go_on()):
            yield
        if "CHAOS" in text:
            # The last restore may be under way.
            removed = "{0} -F CHAOS && {0} -X CHAOS".format(scene.iptables(hit.host))
            await scene.run(hit.host, f"for each in 1 2 3 4 5; do {removed} && exit; sleep 0.2; done; exit 1")

    return act


restored_beside_ours: Final = again(_OTHERS, "--noflush")
restored_without_ours: Final = again(_NOBODYS)


@asynccontextmanager
async def firewall_flushed(scene: Scene, hit: Hit) -> AsyncIterator[None]:
    """Flushes all rules of the firewall, whoever made them; the policy of FORWARD stays."""
    flush = "; ".join(f"iptables-legacy -t {table} -F; iptables-legacy -t {table} -X" for table in ("nat", "filter"))
    is_legacy = scene.iptables(hit.host) == "iptables-legacy"
    # `true`: masq may put a jump back between -F and -X, which makes -X fail.
    await scene.run(hit.host, f"{flush}; true" if is_legacy else "nft flush ruleset; iptables -P FORWARD DROP")
    yield


@asynccontextmanager
async def lock_held(scene: Scene, hit: Hit) -> AsyncIterator[None]:
    """The lock that every legacy iptables takes, by one that then empties a chain; the hosts of the lab share it."""
    held = f"XTABLES_LOCKFILE={scene.home(hit.host) / 'other.lock'} {scene.iptables(hit.host)}"
    is_legacy = scene.iptables(hit.host) == "iptables-legacy"
    with open(_LOCK, "w") as file:  # noqa: ASYNC230, PTH123 - as iptables does
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(0.001)
        if is_legacy:
            await scene.run(hit.host, f"{held} -F FLANNEL-FWD")
        yield
        if is_legacy:
            if "-A" in (rules := await scene.run(hit.host, f"{held} -S FLANNEL-FWD")):
                raise NoEffect(f"while another program holds the lock, masq writes {rules!r}")
            hit.seen.append("no rule")


def _words(scene: Scene, hit: Hit) -> dict[str, str]:
    own, peer = scene.leases[hit.host], scene.leases[hit.peer]
    return {
        "iptables": scene.iptables(hit.host),
        "subnet": str(peer.subnet),
        "vtep": str(peer.vtep),
        "mac": peer.mac,
        "public": str(peer.public),
        "own_vtep": str(own.vtep),
        "router": str(OUTSIDE_ADDRESS),
        "host": hit.host.name,
    }
