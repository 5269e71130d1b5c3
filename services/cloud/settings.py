"""The settings of the process that writes the cloud's routes."""

import re
from dataclasses import dataclass
from typing import Final

from flannelette.services.core.errors import Misconfigured
from flannelette.services.runtime.process.options import ProcessSettings
from flannelette.services.runtime.process.settings import flag
from flannelette.services.runtime.rpc.socket_paths import moved_address, socket_address

_URL: Final = re.compile(r"https?://[^/\s]")


@dataclass(frozen=True, kw_only=True)
class CloudSettings(ProcessSettings):
    """Flags of flannelette-cloud. Credentials are no flags: the providers' own environment and instance roles."""

    lease_address: str = flag(
        "", "Address of the lease service: unix:PATH or HOST:PORT. Default: lease.sock in --socket-dir."
    )
    state_dir: str = flag(
        "/var/lib/flannelette",
        "Directory that keeps which routes are ours, for AWS, whose routes have no description. Empty: none.",
    )
    cloud_interval: int = flag(60, "Time between two comparisons with the cloud's tables, in seconds.")
    cloud_mark: str = flag(
        "flannelette",
        "Text by which routes with a description are ours. One per cluster, where clusters share a network.",
    )
    cloud_routes_limit: int = flag(
        0, "How many routes a table takes, to warn before it is full; 0: the provider's default quota."
    )
    cloud_endpoint: str = flag("", "URL of the provider's API. Default: the provider's own, of the region.")
    cloud_metadata: str = flag("", "URL of the instance's metadata service. Default: the provider's own.")

    def __post_init__(self) -> None:
        if self.cloud_interval < 1:
            raise Misconfigured(f"--cloud-interval is {self.cloud_interval}: use at least 1 second")
        if not self.cloud_mark.strip():
            raise Misconfigured("--cloud-mark is empty: routes of others would be ours; write the cluster's name")
        if self.cloud_routes_limit < 0:
            raise Misconfigured(
                f"--cloud-routes-limit is {self.cloud_routes_limit}: use the quota of a table, or 0 for the default"
            )
        for name, url in (("endpoint", self.cloud_endpoint), ("metadata", self.cloud_metadata)):
            if url and not _URL.match(url):
                raise Misconfigured(f"--cloud-{name} is {url}: write a URL, as https://HOST")

    @property
    def lease_service(self) -> str:
        """Where the lease service is."""
        return moved_address(self.lease_address) or socket_address(self.socket_dir, "lease")
