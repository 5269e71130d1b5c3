"""The rules of other programs: read from the kernel, without a program, and what becomes of a packet in them."""
