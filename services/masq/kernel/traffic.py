"""Traffic control (tc) of devices, by netlink: queueing disciplines, and filters that decide about packets."""

import struct
from collections.abc import Collection, Iterator, Mapping
from enum import StrEnum
from typing import Final

from flannelette.services.core.family import IPV4, IPV6
from flannelette.services.core.frozen import frozen
from flannelette.services.masq.kernel.routing import ask, index_of
from flannelette.services.runtime.os.netlink import DUMP, attribute_list, attributes, text

_GETQDISC, _GETFILTER = 38, 46
_TRAFFIC: Final = struct.Struct("=BxxxiIII")  # struct tcmsg: family, ifindex, handle, parent, info
_KIND, _OPTIONS, _STATISTICS, _OF_QUEUE = 1, 2, 7, 3  # TCA_KIND, _OPTIONS, _STATS2, TCA_STATS_QUEUE
_QUEUE: Final = struct.Struct("=5I")  # struct gnet_stats_queue: length, backlog, drops, requeues, overlimits
_ROOT: Final = 0xFFFF_FFFF
_HOOKS: Final = frozenset(("ingress", "clsact"))
"""Queueing disciplines that queue nothing, and are where filters stand."""
_NETEM: Final = struct.Struct("=3I")  # struct tc_netem_qopt: latency, limit, loss
_EVERYTHING: Final = 0xFFFF_FFFF
_ACTION: Final = struct.Struct("=IIi")  # struct tc_gact and others: index, capabilities, action
_PARAMETERS: Final = {"gact": 2, "mirred": 2, "police": 1}
_REDIRECTS: Final = (1, 3)  # TCA_EGRESS_REDIR, TCA_INGRESS_REDIR
_ACTIONS: Final = {"matchall": 2, "flower": 3, "basic": 3, "fw": 4, "u32": 7, "bpf": 1}
"""The attribute that has the actions, of each kind of filter."""
_SELECTOR, _LINK, _U32_MORE = 5, 3, (8, 10)  # TCA_U32_SEL, _LINK, _INDEV, _MARK
_KEY: Final = struct.Struct("=4s4sii")  # struct tc_u32_key: mask, value, offset, mask of the offset
_KEYS: Final = 16
_TERMINAL: Final = 1  # TC_U32_TERMINAL
_FIRST_ROOT: Final = 0x800
"""Hash tables of u32 from here on are asked for every packet; others only where a filter leads there."""
_FLOWER_TYPE: Final = 8
_FLOWER_REMARKS: Final = frozenset((1, 3, 22, 86))
"""TCA_FLOWER_CLASSID, _ACT, _FLAGS, _IN_HW_COUNT: they ask for nothing."""
_BPF_PROGRAM, _BPF_FLAGS = 5, 8  # TCA_BPF_OPS, TCA_BPF_FLAGS
_RETURN: Final = struct.Struct("=HBBI")  # struct sock_filter
_ALL: Final = 3
"""ETH_P_ALL: packets of every protocol."""
_TYPES: Final = {0x0800: IPV4.version, 0x86DD: IPV6.version}


class Decision(StrEnum):
    """What a filter does with a packet that it takes."""

    DROPS = "drops"
    REDIRECTS = "sends to another interface"
    PASSES = "passes"
    NEXT = "next"
    """The filter after it decides."""


@frozen
class Queue:
    """A queueing discipline (qdisc) of a device, as `tc -s qdisc show` has it."""

    device: str
    kind: str
    """Kind such as `tbf`, `netem` or `fq_codel`."""
    dropped: int
    """Packets that it has dropped."""
    place: str = "root"
    """Place of the discipline, as `tc qdisc del dev DEVICE` takes it."""
    loses_all: bool = False
    """The discipline is made to drop every packet."""


@frozen
class Test:
    """Four bytes of a packet, from `offset` of its IP header on, are `value` in the bits of `mask`."""

    offset: int
    mask: int
    value: int


@frozen
class TrafficFilter:
    """A filter, as `tc -s filter show` has it."""

    device: str
    place: str
    """`ingress`, `egress`, or `root`: as packets leave."""
    kind: str
    priority: int
    decision: Decision
    version: int = 0
    """IP version; 0: the filter takes packets of any kind."""
    tests: tuple[Test, ...] = ()
    """Conditions of the filter on a packet."""
    is_whole: bool = True
    """The filter has no other conditions."""
    dropped: int = 0
    """Packets that it has dropped."""


def queues(devices: Collection[str]) -> list[Queue]:
    """Queueing disciplines of these devices, in the order in which the kernel lists them."""
    names, found = {index_of(device): device for device in devices}, list[Queue]()
    body = _TRAFFIC.pack(0, 0, 0, 0, 0)
    for head, values in ask(_GETQDISC, body, _TRAFFIC.size, DUMP) if devices else ():
        _, index, _, parent, _ = _TRAFFIC.unpack(head)
        if index in names and index:
            kind, options = text(values.get(_KIND, b"")), values.get(_OPTIONS, b"")
            minor = f"{parent & 0xFFFF:x}" if parent & 0xFFFF else ""
            place = "root" if parent == _ROOT else f"parent {parent >> 16:x}:{minor}"
            is_void = (
                kind == "netem" and len(options) >= _NETEM.size and _NETEM.unpack_from(options)[2] == _EVERYTHING
            )
            dropped = _dropped(attributes(values.get(_STATISTICS, b"")))
            found.append(Queue(names[index], kind, dropped, place, is_void))
    return found


def filters(those: Collection[Queue]) -> list[TrafficFilter]:
    """Filters at these queueing disciplines, in the order in which the kernel asks them."""
    places = dict[tuple[str, int], str]()
    for queue in those:
        if queue.kind in _HOOKS:
            places |= {(queue.device, 0xFFFF_FFF2): "ingress"}
            places |= {(queue.device, 0xFFFF_FFF3): "egress"} if queue.kind == "clsact" else {}
        elif queue.place == "root":
            places[queue.device, 0] = "root"
    return [each for (device, parent), place in places.items() for each in _filters(device, parent, place)]


def _filters(device: str, parent: int, place: str) -> Iterator[TrafficFilter]:
    index = index_of(device)
    body = _TRAFFIC.pack(0, index, 0, parent, 0)
    for head, values in ask(_GETFILTER, body, _TRAFFIC.size, DUMP) if index else ():
        _, at, handle, _, info = _TRAFFIC.unpack(head)
        if at == index:
            protocol = int.from_bytes((info & 0xFFFF).to_bytes(2, "little"), "big")
            found = filter_in(device, place, text(values.get(_KIND, b"")), handle, info >> 16, protocol, values)
            if found is not None:
                yield found


def filter_in(
    device: str, place: str, kind: str, handle: int, priority: int, protocol: int, values: Mapping[int, bytes]
) -> TrafficFilter | None:
    """What the kernel tells of a filter; None: it decides nothing about IP packets, or nobody can say what."""
    options = attributes(values.get(_OPTIONS, b""))
    if kind not in _ACTIONS or not options or (protocol != _ALL and protocol not in _TYPES):
        return None
    version, tests, is_whole = _TYPES.get(protocol, 0), tuple[Test, ...](), False
    if kind == "bpf":
        decision = _of_program(options)
        return TrafficFilter(device, place, kind, priority, decision, version) if decision else None
    decision, dropped, is_sure = _of_actions(options.get(_ACTIONS[kind], b""))
    if kind == "matchall":
        is_whole = True
    elif kind == "u32":
        if len(options.get(_SELECTOR, b"")) < _KEYS:
            return None  # a hash table
        tests, is_whole = _of_selector(options[_SELECTOR])
        is_whole = is_whole and handle >> 20 >= _FIRST_ROOT and not any(more in options for more in _U32_MORE)
        if _LINK in options or not options[_SELECTOR][0] & _TERMINAL:
            decision = Decision.NEXT
    elif kind == "flower":
        version, tests, is_whole = _of_flower(options, version)
    return TrafficFilter(device, place, kind, priority, decision, version, tests, is_whole and is_sure, dropped)


def _of_actions(data: bytes) -> tuple[Decision, int, bool]:
    """Result of a chain of actions: the decision, the number of packets dropped, whether every packet gets it."""
    dropped, is_sure = 0, True
    for _, one in attribute_list(data):
        action = attributes(one)
        kind, options = text(action.get(1, b"")), attributes(action.get(2, b""))
        dropped += _dropped(attributes(action.get(4, b"")))
        parameters = options.get(_PARAMETERS.get(kind, 0), b"")
        if len(parameters) < _ACTION.size:
            continue  # it changes packets, and lets them go on
        code = _ACTION.unpack_from(parameters)[2]
        if kind == "mirred":
            where = int.from_bytes(parameters[20:24], "little") if len(parameters) >= 24 else 0
            if where in _REDIRECTS:
                return Decision.REDIRECTS, dropped, is_sure
        if kind == "police":
            is_sure = False  # it depends on the rate
        if kind == "gact":
            is_sure = is_sure and 4 not in options  # TCA_GACT_PROB: a part of the packets
        if code in (2, 4):  # TC_ACT_SHOT, TC_ACT_STOLEN
            return Decision.DROPS, dropped, is_sure
        if code in (-1, 0):  # TC_ACT_UNSPEC, TC_ACT_OK
            return Decision.NEXT if code else Decision.PASSES, dropped, is_sure
    return Decision.PASSES, dropped, is_sure


def _of_program(options: Mapping[int, bytes]) -> Decision | None:
    """Decision of a BPF program that treats all packets alike; what another program decides is unknown."""
    program, flags = options.get(_BPF_PROGRAM, b""), options.get(_BPF_FLAGS, b"")
    if len(program) != _RETURN.size or not flags or not flags[0] & 1:
        return None
    code, _, _, value = _RETURN.unpack(program)
    return {0: Decision.PASSES, 2: Decision.DROPS}.get(value) if code == 0x06 else None


def _of_selector(data: bytes) -> tuple[tuple[Test, ...], bool]:
    """Tests of a selector of u32, and whether these are all its conditions."""
    tests, is_whole = list[Test](), True
    for start in range(_KEYS, min(len(data), _KEYS + _KEY.size * data[2]) - _KEY.size + 1, _KEY.size):
        mask, value, offset, moving = _KEY.unpack_from(data, start)
        is_whole = is_whole and not moving and offset >= 0
        if not moving and offset >= 0:
            tests.append(Test(offset, int.from_bytes(mask), int.from_bytes(value)))
    return tuple(tests), is_whole


def _of_flower(options: Mapping[int, bytes], version: int) -> tuple[int, tuple[Test, ...], bool]:
    """IP version and tests of a flower filter, and whether these are all its conditions."""
    if _FLOWER_TYPE in options:
        version = _TYPES.get(int.from_bytes(options[_FLOWER_TYPE]), version)
    first, word, byte = (20, 8, 1) if version == IPV4.version else (40, 4, 2)
    keys = {9: (word, byte, 1, 0), 18: (first, 0, 2, 35), 19: (first, 2, 2, 36), 20: (first, 0, 2, 37)}
    keys |= {21: (first, 2, 2, 38)}
    keys |= {10: (12, 0, 4, 11), 12: (16, 0, 4, 13)} if version == IPV4.version else {}
    tests, known = list[Test](), {*_FLOWER_REMARKS, _FLOWER_TYPE, *(key[3] for key in keys.values())}
    for number, (offset, at, size, mask_of) in keys.items():
        if number in options:
            shift = 8 * (4 - at - size)
            mask = int.from_bytes(options.get(mask_of, b"\xff" * size)) if mask_of else 0xFF
            tests.append(Test(offset, mask << shift, int.from_bytes(options[number]) << shift))
    return version, tuple(tests), bool(version) and options.keys() <= known | keys.keys()


def _dropped(statistics: Mapping[int, bytes]) -> int:
    numbers = statistics.get(_OF_QUEUE, b"")
    return _QUEUE.unpack_from(numbers)[2] if len(numbers) >= _QUEUE.size else 0
