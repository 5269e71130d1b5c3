"""What a lease service believes of what a store says."""
