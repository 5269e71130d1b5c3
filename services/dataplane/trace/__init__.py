"""Follows one packet through this node, step by step, from what the kernel has now.

`ends` says whose its addresses are; `look` asks the kernel, and sends no packet; `steps`, `sending` and `receiving`
judge the answers, purely, with the checks of the package `diagnose`.
"""
