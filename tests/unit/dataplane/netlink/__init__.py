"""Messages of rtnetlink, byte for byte and as iproute2's text."""
