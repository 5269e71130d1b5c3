"""Finds what else of the host keeps packets from the overlay, by one look at the kernel: nothing is sent.

`look` asks the kernel; `checks` (a table) and `paths` judge purely what was seen, and `culprit` names the rule or
route that decides; `diagnosis` says when to look and tells what was found. Nothing here changes the kernel.
"""
