"""The masquerade service: keeps the NAT and FORWARD rules of the overlay in the firewall of the node.

Packages, from the top: api, reconcile, firewalls, diagnose, kernel, rules. Each imports only those below it.
"""
