"""What masq counts."""

from typing import Final

from services.runtime.prometheus import Counter, Gauge, Histogram

REPAIRS: Final = Counter(
    "flannelette_masq_repairs",
    "Changes by somebody else that were put right, with the process where the kernel tells.",
    ["cause", "by"],
)
MOVES_LEFT: Final = Gauge(
    "flannelette_masq_jumps_left_behind", "Jumps that somebody keeps moving, and that are left where they are."
)
RULES_WANTED: Final = Gauge("flannelette_masq_rules_wanted", "Rules that shall be in the firewall.")
RULES_PRESENT: Final = Gauge("flannelette_masq_rules_present", "Rules of those that were there at the last look.")
CHECK_SECONDS: Final = Histogram(
    "flannelette_masq_check_seconds",
    "Time of a full comparison, with its repair if there was one.",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 5),
)
FAILURES: Final = Counter("flannelette_masq_check_failures", "Comparisons that could not be made.")
