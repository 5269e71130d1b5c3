"""One module for each provider, which alone imports its SDK, and what they share: keys, error codes, metadata.

Loaded by main if the network has the backend; knows routes and changes, and not who decides them.
"""
