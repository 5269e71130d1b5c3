"""A real Kubernetes on one machine, with Flannelette from this tree: `make kube-lab`, `python -m lab.kubernetes`.

Each node is a set of namespaces with a root directory of its own, in which Debian's containerd and runc, a kubelet
and what kubeadm makes of it run. There is no virtual machine, no registry, and nothing on the machine's own network.
"""
