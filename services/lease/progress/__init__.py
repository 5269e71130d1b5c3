"""The connected nodes: whose dataplane has a stream open, and how far each one is, by its own reports.

Nothing here knows what a lease says, and nothing is stored: after a restart the nodes report again.
"""
