"""Records of what the dataplane decided and why: journal, causes of repairs, descriptions, Prometheus metrics.

Takes values and writes text; never touches the kernel and knows no node configuration.
"""
