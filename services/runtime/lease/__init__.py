"""A client of the lease service: the protobuf messages as domain types, and the stream that keeps a table current.

Every conversion between `flannelette.lease.v1` and services/core is here. Decisions about leases are not.
"""
