"""The store etcd: leases in etcd v3, byte for byte as flannel keeps them. Only `rpc` may import grpc."""
