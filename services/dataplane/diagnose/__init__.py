"""Finds the rules, routes and settings of the host, not ours, that keep packets from the overlay.

`look` asks the kernel, and sends no packet; `checks` (a table) and `paths` judge its answers, purely; `culprit`
names the rule or route that decides; `diagnosis` says when to look, and reports the findings. Nothing here changes
the kernel, but that `diagnosis` puts interfaces of pods back where CNI has made them ports.
"""
