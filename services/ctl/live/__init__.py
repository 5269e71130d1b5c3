"""Commands that show the whole overlay at a glance, now or as it changes."""
