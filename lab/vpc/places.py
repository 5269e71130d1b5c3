"""Where the parts of the cloud listen, on the outside host."""

from typing import Final

EC2_PORT: Final = 5000
METADATA_PORT: Final = 5001
EC2_URL: Final = f"http://127.0.0.1:{EC2_PORT}/"
METADATA_URL: Final = f"http://127.0.0.1:{METADATA_PORT}"
ROUTER_PROTOCOL: Final = "99"
"""Protocol of the VPC router's routes in the kernel of the outside host."""
