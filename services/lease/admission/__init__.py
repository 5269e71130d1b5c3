"""The part between a store and the lease table: decides which leases are served, and which removals are believed.

The pipeline takes the events of a store and passes on what nodes may have. What is sent to watchers, and how, is no
business of this package; neither is how a store reads or writes.
"""
