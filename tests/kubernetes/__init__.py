"""Kubernetes for tests: a real or a played kube-apiserver, nodes with a kubelet of ours, and the manifests."""
