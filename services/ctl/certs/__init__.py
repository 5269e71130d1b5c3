"""A lab's own certificate authority: `flannelette certs`. Who has one already needs only the URIs of access.py."""
