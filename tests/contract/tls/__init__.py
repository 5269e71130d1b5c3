"""Who gets a connection over TCP, and what for."""
