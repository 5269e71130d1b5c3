"""The services of Flannelette, and what they share (`core`, `runtime`)."""
