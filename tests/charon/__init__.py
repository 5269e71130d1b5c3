"""charon, the IKE daemon that backend ipsec needs, played: it keeps what is loaded, and negotiates nothing."""
