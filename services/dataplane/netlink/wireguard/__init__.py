"""WireGuard in the kernel: devices' keys and peers as values, in the words of `wg`, and by generic netlink.

Knows generic netlink and the key file, and nothing of leases. A private or preshared key is a `Secret`.
"""
