"""charon, the IKE daemon that backend ipsec needs: a real one on a host, and one that negotiates nothing."""
