"""Every speed claim, reproducible: `python -m bench` lists the benches, `python -m bench NAME` runs one.

Each runs ours and its peers in the same run on the same machine, in network namespaces of its own.
"""
