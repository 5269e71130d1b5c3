"""gRPC servers and channels: addresses, authorization, errors as status codes, limits on connections.

Messages of a service do not belong here.
"""
