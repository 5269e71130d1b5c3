"""Pure domain logic: the standard library only, no input or output, no clock, no chance."""
