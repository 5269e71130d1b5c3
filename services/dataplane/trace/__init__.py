"""Follows one packet through this node, step by step, from what the kernel has now.

`look` says whose its addresses are and asks the kernel, and sends no packet; `steps` judges the answers,
purely, with the checks of the package `diagnose`.
"""
