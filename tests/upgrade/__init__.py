"""Services of the last release and of this one in one lab: each is replaced by the other under pings, and back."""
