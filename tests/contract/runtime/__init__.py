"""What every service process does: start, end, logs, probes."""
