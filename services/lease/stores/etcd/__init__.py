"""The store etcd: leases in etcd v3, byte for byte as flannel keeps them. Only `client` may import grpc."""
