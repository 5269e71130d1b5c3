"""charon, strongSwan's IKE daemon, by its interface vici: what it has loaded, and whether it is there.

charon is a process of its own that somebody else starts. Nothing here knows of leases.
"""
