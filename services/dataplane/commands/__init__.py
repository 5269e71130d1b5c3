"""Runs programs of the network configuration (flannel's `extension`), where the operator of the node allows it.

The one place that starts programs: with limits, and without a shell. What shall be run is decided by the backend.
"""
