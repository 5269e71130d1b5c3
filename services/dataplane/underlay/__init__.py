"""The underlay: which interface carries the overlay, and which addresses it reaches without a gateway. Pure."""
