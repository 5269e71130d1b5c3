"""A proxy before an EC2, which answers single actions with errors, as AWS' reference of error codes has them."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any, Final
from urllib.parse import parse_qs
from urllib.request import Request, urlopen
from xml.sax.saxutils import escape

from tests.clouds.aws import Ec2, serving
from tests.patience import PATIENCE

_FORWARDED: Final = ("Authorization", "Content-Type", "X-Amz-Date", "X-Amz-Security-Token")


@dataclass
class FaultyEc2(Ec2):
    """The API at `url` refuses what `faults` says: code, status and message, by action, or action and destination.

    Without a code the message is the answer.
    """

    url: str = ""
    faults: dict[str, tuple[str, int, str]] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)
    """Of each action."""

    def fault(self, form: dict[str, list[str]]) -> tuple[str, int, str] | None:
        """The error that a request gets."""
        action = form["Action"][0]
        self.calls[action] += 1
        return self.faults.get(f"{action} {form.get('DestinationCidrBlock', [''])[0]}", self.faults.get(action))


@contextmanager
def faulty(ec2: Ec2) -> Iterator[FaultyEc2]:
    """The same EC2 behind a proxy."""
    proxy = FaultyEc2()

    class Answers(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if fault := proxy.fault(parse_qs(body.decode())):
                code, status, message = fault
                error = f"<Error><Code>{code}</Code><Message>{escape(message)}</Message></Error>"
                whole = f"<Response><Errors>{error}</Errors><RequestID>1</RequestID></Response>"
                answer = (whole if code else message).encode()
            else:
                headers = {name: self.headers[name] for name in _FORWARDED if name in self.headers}
                with urlopen(Request(ec2.url, body, headers), timeout=PATIENCE) as real:  # noqa: S310
                    status, answer = real.status, real.read()
            self.send_response(status)
            self.send_header("Content-Type", "text/xml")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *arguments: Any) -> None:
            pass

    with serving(Answers) as url:
        proxy.url = f"{url}/"
        yield proxy
