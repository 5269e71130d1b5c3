"""What every unit test may ask for; and how many examples property tests try, many with FLANNELETTE_SOAK=1."""

import os

from hypothesis import HealthCheck, settings

from tests.services.certificates import lab
from tests.stores.embedded import clock, config, reopen, store
from tests.stores.guard_scene import lines
from tests.stores.reporting import forgetful, scene

__all__ = ["clock", "config", "forgetful", "lab", "lines", "reopen", "scene", "store"]

# A loaded machine is no failure: no deadline, and slow generation is not an error.
settings.register_profile(
    "default", max_examples=60, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("soak", settings.get_profile("default"), max_examples=3000, print_blob=True)
settings.load_profile("soak" if os.environ.get("FLANNELETTE_SOAK") == "1" else "default")
