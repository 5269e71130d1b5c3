"""Rules as values, and the reconciler over a firewall in memory."""
