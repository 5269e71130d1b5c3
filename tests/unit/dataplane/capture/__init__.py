"""Capture: what a filter accepts."""
