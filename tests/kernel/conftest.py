"""What every kernel test may ask for."""

from tests.kernel.clusters import cluster
from tests.kernel.masq_host import host, legacy

__all__ = ["cluster", "host", "legacy"]
