"""The firewalls of a node behind one protocol, the detection of the one that the host uses, and a fake for tests.

Each kind of firewall has a package of its own and knows no other kind. Which rules are desired is decided in `rules`.
"""
