"""The services of Flannelette, and what they share (`core`, `runtime`)."""

import gc

gc.set_threshold(300_000, 50, 20)  # no search for reference cycles in a start, which `runtime.process` ends
