"""The overlay's devices, as commands."""
