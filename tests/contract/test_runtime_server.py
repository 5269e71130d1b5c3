"""A server that listens again, when its socket was deleted."""

from pathlib import Path

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.runtime.listen import bind_path
from services.runtime.server import MOST_OTHERS, Server


async def test_of_many_sockets_that_were_deleted_the_oldest_connections_end_and_the_last_socket_is_served(
    tmp_path: Path,
) -> None:
    path, first = tmp_path / "x.sock", 5
    server, channels = Server({}), list[grpc.aio.Channel]()
    bind_path(server.grpc, path)
    await server.start()
    for _ in range(MOST_OTHERS + first + 1):
        channel = grpc.aio.insecure_channel(f"unix:{path}", options=[("grpc.use_local_subchannel_pool", 1)])
        channels.append(channel)
        await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
        path.unlink()
        await server.listen_again(path, bind_path)
        assert path.is_socket()
    for channel in (channels[0], *channels[first + 2 :]):
        assert channel.get_state() is grpc.ChannelConnectivity.READY
    for channel in channels[1 : first + 1]:
        assert channel.get_state() is not grpc.ChannelConnectivity.READY
    for channel in channels:
        await channel.close()
    await server.stop()
    assert not path.exists()


async def test_of_two_sockets_that_are_deleted_in_turn_both_are_served(tmp_path: Path) -> None:
    paths, server = [tmp_path / "a.sock", tmp_path / "b.sock"], Server({})
    for path in paths:
        bind_path(server.grpc, path)
    await server.start()
    a, b = paths
    for path in (a, *[b] * (MOST_OTHERS + 1), a):
        path.unlink()
        await server.listen_again(path, bind_path)
        assert [each.is_socket() for each in paths] == [True, True]
    await server.stop()
    assert [each.exists() for each in paths] == [False, False]
