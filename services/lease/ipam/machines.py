"""Tells which machine has a node's name, where two machines may have the same: clones, or one that was installed
anew.
"""

from collections.abc import Sequence

from flannelette.services.core.family import Address


def is_another(machine: str, holder: str) -> bool:
    """Whether a machine is known to be another one than the holder of a lease; an unknown token is nobody's."""
    return bool(machine and holder) and machine != holder


def name_taken(node: str, lease: str = "", addresses: Sequence[Address] = ()) -> str:
    """The error for a machine that has the name of another one, which is alive and holds the lease, where known."""
    holds = f", which holds lease {lease}" if lease else ""
    where = f" with address {addresses[0]}" if addresses else ""
    return (
        f"another machine is node {node}{holds}{where} and is alive: give this one a name of its own (`hostnamectl "
        "set-hostname NAME`, or --node=NAME for its services) and restart its services; if it replaces the other "
        f"one, it gets the name a minute after the last sign of life of that, or at once by `flannelette release "
        f"--node={node}`"
    )
