"""Values that tests of several rooms use: leases, networks, peers, kernel dumps, and how hypothesis draws them.

Nothing here starts a process or opens a socket.
"""
