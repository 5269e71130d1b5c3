"""What all services share: settings, files, TLS, health."""
