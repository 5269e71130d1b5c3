"""The rule model: which packets leave the node under its own address, for a network and a lease. Pure."""
