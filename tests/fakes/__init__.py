"""The kernel and the firewall in memory: a table goes in, the objects and rules that are there come out."""
