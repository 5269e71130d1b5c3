"""The relay: another lease service as the store, so that tiers of lease services serve many nodes.

It keeps no leases. The table and the errors come from the lease service above, the nodes' calls go there.
"""
