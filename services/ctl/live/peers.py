"""`flannelette peers --watch`: the peers of a node, again and again."""

from rich.text import Text

from flannelette.dataplane.v1 import dataplane_pb2 as pb
from flannelette.dataplane.v1.dataplane_pb2_grpc import DataplaneServiceStub
from flannelette.services.ctl.connect.call import LIST_SECONDS, CallFailed, Channels
from flannelette.services.ctl.connect.targets import Targets
from flannelette.services.ctl.live.follow import Row, View, follow
from flannelette.services.ctl.render.layout import Width, fold, lines
from flannelette.services.ctl.render.peers import STATE, TITLES, peer_row, peer_text, peers_text
from flannelette.services.ctl.render.screen import Screen, to_json


def watch_peers(targets: Targets, screen: Screen, name: str) -> int:
    """Shows the peers, or those of one name with their kernel objects, until Ctrl-C; returns the exit code.

    Raises CallFailed if the first call fails; of a later failure it tells, and tries again.
    """
    looks = _Looks(targets, screen, name)
    return follow(looks.take, screen)


class _Looks:
    def __init__(self, targets: Targets, screen: Screen, name: str) -> None:
        self._target = targets["dataplane"]
        self._request = pb.ListPeersRequest(name=name, look=bool(name), figures=screen.wide)
        self._screen = screen
        self._last: list[pb.Peer] | None = None
        self._failure = ""

    async def take(self, channels: Channels) -> View:
        try:
            call = await channels.ask(
                self._target, lambda c: DataplaneServiceStub(c).ListPeers(self._request), LIST_SECONDS
            )
            self._last, failure = list(call.peers), ""
        except CallFailed as error:
            if self._last is None:
                raise
            failure = f"{error}; trying again"
        if failure and not self._failure and (self._screen.width is None or self._screen.json):
            self._screen.warn(failure)
        self._failure = failure
        peers = self._last
        rows = {peer.name: Row(_key(peer), peer_row(peer), to_json(peer)) for peer in peers}
        return View(lambda width: self._text(peers, failure, width), TITLES, rows, STATE)

    def _text(self, peers: list[pb.Peer], failure: str, width: Width) -> Text:
        out = [peer_text(peer, width) for peer in peers]
        if not self._request.name:
            out = [peers_text(peers, width, wide=self._screen.wide)]
        remark = [fold(Text(f"! {failure}", style="yellow"), width, 2)] if failure else []
        return lines([*remark, *out])


def _key(peer: pb.Peer) -> tuple[object, ...]:
    """All but the figures of probes, which change with each."""
    answers = tuple((probe.address, probe.state, probe.narrow, probe.checksum_offload) for probe in peer.probes)
    objects = tuple((each.text, each.programmed, each.actual) for each in peer.objects)
    return peer.node, *peer.subnets, *peer.public_addresses, peer.state, peer.reason, answers, objects
