"""The cloud of a lab with BACKEND=aws-vpc: moto as EC2, a router that has the VPC's table, flannelette-cloud."""
