"""Where the rules are kept."""
