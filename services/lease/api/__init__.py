"""The gRPC service: it checks requests, calls the store and the lease table, and makes the answers.

Only translation between messages and values lives here. A decision about leases belongs into the other packages.
"""
