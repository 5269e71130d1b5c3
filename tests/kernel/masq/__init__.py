"""masq and a real firewall, packet by packet."""
