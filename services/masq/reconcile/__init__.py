"""Compares the desired rules with the firewall and repairs it, at a change and every few seconds.

Knows firewalls only by their protocol; no netlink, no program and no file of a firewall is used here.
"""
