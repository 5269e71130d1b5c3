"""What happens to leases, nodes and the store, in words: the events of the lease service.

Nothing here decides about a lease; the rooms that do tell the journal.
"""
