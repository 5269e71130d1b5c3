"""The etcd store beside a real etcd."""
