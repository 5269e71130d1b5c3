"""What is fuzzed: one module for each kind of source, and in it a function of bytes for each target."""
