"""What the etcd store counts."""

from typing import Final

from services.runtime.prometheus import Counter

REQUESTS: Final = Counter("flannelette_etcd_requests", "Requests to etcd, by gRPC status.", ["call", "result"])
