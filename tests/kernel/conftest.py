"""What every kernel test may ask for."""

from tests.kernel.clusters import cluster

__all__ = ["cluster"]
