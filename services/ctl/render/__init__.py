"""Text for the terminal: pure functions from the services' answers to what is printed, and the screen."""
