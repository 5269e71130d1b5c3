"""The commands: each file has what a command takes, what it asks the services, and what it prints."""
