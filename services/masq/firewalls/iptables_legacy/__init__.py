"""The legacy iptables tables, changed with python-iptables in one worker process per address family.

Only the worker process imports python-iptables: libxtables may end the process that calls it.
"""
