"""Kernel objects as a flanneld makes them: pure. What it finds like this when it starts, it keeps."""

from collections.abc import Iterable
from typing import Final

from services.core.family import FAMILIES
from services.dataplane.netlink.objects import KernelObject, Route
from services.dataplane.netlink.uapi import RTN_UNICAST, RTPROT_BOOT

DEFAULT_METRIC: Final = {family.af: family.default_metric for family in FAMILIES}
"""By AF number: what flanneld's routes have, as they name none."""


def flannel_shape(objects: Iterable[KernelObject]) -> frozenset[KernelObject]:
    """The same objects with routes of flanneld's protocol and metric; neighbours and FDB entries are alike anyway.

    Without a blackhole of the own subnet: of the default metric it would replace the route to the pods' bridge.
    """
    return frozenset(
        _as_flannels(item) if isinstance(item, Route) else item
        for item in objects
        if not isinstance(item, Route) or item.route_type == RTN_UNICAST
    )


def _as_flannels(route: Route) -> Route:
    return route._replace(protocol=RTPROT_BOOT, metric=DEFAULT_METRIC[route.family])
