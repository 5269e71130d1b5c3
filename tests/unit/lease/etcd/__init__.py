"""The etcd store without an etcd."""
