"""The Kubernetes store: a lease is what a Node object says, in flannel's annotations and its podCIDRs.

Kubernetes hands out the subnets, so nothing here allocates. Only `client` imports the Kubernetes client.
"""
