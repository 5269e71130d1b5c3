"""What each backend wants for each lease."""
