"""Pure functions from the services' answers to what is printed."""
