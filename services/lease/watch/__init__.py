"""The lease table, and how watchers get it: a snapshot, then every change, serialised once for all of them.

The broker takes events that `admission` has let pass. No store, no check of a lease and no gRPC belongs here.
"""
