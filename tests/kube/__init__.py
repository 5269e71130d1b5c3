"""Tests on a real Kubernetes of kubeadm's, as `make kube-lab` makes it: `make kube-test`, `python -m tests.kube`."""
