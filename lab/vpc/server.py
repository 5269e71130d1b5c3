"""`python -m lab.vpc.server FILE ADDRESS...`: moto with a VPC of the lab's underlay, and the metadata service.

Each address gets a network interface. FILE has the names of the VPC's route table and subnet, once all is there. The
environment of lab/cloud.sh has moto.
"""

import json
import sys
import threading
from pathlib import Path

from moto.server import ThreadedMotoServer

from lab.topology import UNDERLAY
from lab.vpc.ec2 import Ec2
from lab.vpc.metadata import metadata
from lab.vpc.places import EC2_PORT, EC2_URL, METADATA_PORT


def main() -> None:
    """Serves until it is killed."""
    file, addresses = Path(sys.argv[1]), sys.argv[2:]
    ThreadedMotoServer(ip_address="127.0.0.1", port=EC2_PORT, verbose=False).start()
    ec2 = Ec2(EC2_URL)
    vpc = ec2.text("CreateVpc", ".//vpcId", CidrBlock=str(UNDERLAY))
    subnet = ec2.text("CreateSubnet", ".//subnetId", VpcId=vpc, CidrBlock=str(UNDERLAY))
    for address in addresses:
        ec2.call("CreateNetworkInterface", SubnetId=subnet, PrivateIpAddress=address)
    of_vpc = {"Filter.1.Name": "vpc-id", "Filter.1.Value.1": vpc}
    table = ec2.text("DescribeRouteTables", ".//routeTableId", **of_vpc)
    with metadata(vpc, "AKIALABLABLABLABLABL", "no-secret-of-the-lab", METADATA_PORT):
        new = file.with_suffix(".new")
        new.write_text(json.dumps({"table": table, "subnet": subnet}))
        new.rename(file)
        threading.Event().wait()


if __name__ == "__main__":
    main()
