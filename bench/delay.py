"""`python -m bench.delay PORT MILLISECONDS`: a TCP proxy to that port of loopback, as if it were farther away.

Prints the port that it listens on. What is sent arrives half of the milliseconds later, in both directions, as over
a longer cable: a round trip takes them all, and bandwidth stays what it is.
"""

import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from bench.result import BenchFailed

_CHUNK: Final = 64 << 10


@contextmanager
def delayed(endpoint: str, milliseconds: int) -> Iterator[str]:
    """The URL of an etcd that is farther away; with 0 the same one."""
    if not milliseconds:
        yield endpoint
        return
    port = endpoint.rpartition(":")[2]
    command = (sys.executable, "-m", "bench.delay", port, str(milliseconds))
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        listening = process.stdout.readline().strip() if process.stdout else ""
        if not listening:
            raise BenchFailed("the delaying proxy did not start")
        yield f"http://127.0.0.1:{listening}"
    finally:
        process.kill()
        process.wait()


def _pump(source: socket.socket, sink: socket.socket, seconds: float) -> None:
    """One direction of a connection; returns when it ends."""
    on_the_way: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()

    def arrive() -> None:
        while True:
            due, data = on_the_way.get()
            time.sleep(max(0.0, due - time.monotonic()))
            try:
                if not data:
                    sink.shutdown(socket.SHUT_WR)
                    return
                sink.sendall(data)
            except OSError:
                return

    threading.Thread(target=arrive, daemon=True).start()
    data = b"-"
    while data:
        try:
            data = source.recv(_CHUNK)
        except OSError:
            data = b""
        on_the_way.put((time.monotonic() + seconds, data))


def main(port: int, milliseconds: float) -> None:
    """Runs the proxy for ever."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        print(server.getsockname()[1], flush=True)
        while True:
            near, _ = server.accept()
            far = socket.create_connection(("127.0.0.1", port))
            for one, other in ((near, far), (far, near)):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                arguments = (one, other, milliseconds / 2000)
                threading.Thread(target=_pump, args=arguments, daemon=True).start()


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
