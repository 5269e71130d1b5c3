import asyncio, os, signal
from pathlib import Path
import pytest
from tests.kernel.dataplane.test_ipsec import nodes, both_up, measured, until


def stat(node):
    with node.namespace.inside():
        return {
            l.split()[0]: int(l.split()[1]) for l in Path("/proc/thread-self/net/xfrm_stat").read_text().splitlines()
        }


async def test_gap(netns, make_netns):
    async with nodes(netns, make_netns) as (cluster, n1, n2):
        await both_up(n1, n2)
        await asyncio.sleep(3)
        for i in range(int(os.environ.get("ROUNDS", "6"))):
            before = [stat(n) for n in (n1, n2)]
            states = n1.states()

            async def replace_charon():
                n1.charon.kill()
                await n1.running.until(ready=False)
                await n1.charon.start()
                await n1.running.until(peers=1)
                await until(lambda: bool(set(n1.states()) - set(states)), lambda: n1.charon.log)
                await asyncio.sleep(2)

            sent, lost = await measured(n1, n2, replace_charon, f"round {i}")
            after = [stat(n) for n in (n1, n2)]
            print(
                "round",
                i,
                "sent",
                sent,
                "lost",
                lost,
                [{k: v - b.get(k, 0) for k, v in a.items() if v != b.get(k, 0)} for a, b in zip(after, before)],
                len(n1.states()),
                len(n2.states()),
                flush=True,
            )
        print(n1.charon.log[-3000:])
        print(n2.charon.log[-3000:])
