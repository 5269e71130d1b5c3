"""Our services as processes of their own or in this process, what follows them, and certificates for them."""
