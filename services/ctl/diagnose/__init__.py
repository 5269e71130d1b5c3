"""Commands that find out why packets do not pass, on one node or between nodes."""
