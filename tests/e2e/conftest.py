"""What every end-to-end test may ask for."""

from tests.e2e.lab_process import home

__all__ = ["home"]
