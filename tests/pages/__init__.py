"""Pages of the documentation: their commands and output, typed on a terminal or on a host of their own."""
