"""Desired state against kernel state: which objects are ours, the plan and its execution, one peer beside the kernel.

Takes peers and returns results. Which leases, configuration and devices are in force is decided above, in node/.
"""
