"""A whole lab or cluster, as a user starts it."""
