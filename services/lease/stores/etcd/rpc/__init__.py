"""etcd's gRPC API on plain values: members, failover, login, TLS. Nothing here knows a lease or what a key means."""
