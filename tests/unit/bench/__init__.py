"""How benches are described, chosen and reported."""
