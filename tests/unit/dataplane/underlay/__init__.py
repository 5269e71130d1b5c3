"""Which interface carries the overlay, and who is a neighbour."""
