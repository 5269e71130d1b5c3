"""TLS between our services: certificates on both sides, read again when their files are replaced."""
