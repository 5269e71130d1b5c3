"""The lab's options, topology and verdicts."""
