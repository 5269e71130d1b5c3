"""The command line's decisions and texts."""
