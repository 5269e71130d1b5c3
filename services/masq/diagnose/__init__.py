"""Other programs' firewall rules and the host's settings: which of them drop packets of the overlay, and the remedy.

Works on values that were read before; changes nothing, and never decides about our own rules.
"""
