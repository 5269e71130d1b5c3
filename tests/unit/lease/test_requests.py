"""AcquireLease requests are checked before anything is published."""

import pytest
from google.protobuf.duration_pb2 import Duration

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.services.core.errors import InvalidInput
from flannelette.services.core.leases.lease import BackendData, OpaqueData, VxlanData
from flannelette.services.lease.service import checked_request, leases_to_reclaim


def data_of(subnet: pb.Subnet, backend_type: str = "vxlan") -> BackendData | None:
    subnet.public_address = subnet.public_address or "172.16.0.1"
    message = pb.AcquireLeaseRequest(node="ignored", subnets=[subnet], backend_type=backend_type)
    request = checked_request(message, "a")
    assert request.node == "a"
    return request.parts[0].data


def test_vxlan_data_are_normalised() -> None:
    subnet = pb.Subnet(vxlan=pb.VxlanData(vni=1, mac="C6:D2:32:6F:8F:44"))
    assert data_of(subnet) == VxlanData(1, "c6:d2:32:6f:8f:44")


def test_opaque_json_of_a_known_kind_becomes_that_kind() -> None:
    subnet = pb.Subnet(opaque_json='{"VNI":1,"VtepMAC":"c6:d2:32:6f:8f:44"}')
    assert data_of(subnet) == VxlanData(1, "c6:d2:32:6f:8f:44")


def test_opaque_json_of_an_unknown_kind_keeps_its_spelling_but_for_blanks() -> None:
    assert data_of(pb.Subnet(opaque_json='{"a": 1.10}'), "extension") == OpaqueData('{"a":1.10}')
    assert data_of(pb.Subnet(opaque_json=" null "), "extension") is None


@pytest.mark.parametrize(
    ("subnet", "backend_type", "message"),
    [
        (pb.Subnet(vxlan=pb.VxlanData(vni=1, mac="nonsense")), "vxlan", "not a MAC address"),
        (pb.Subnet(vxlan=pb.VxlanData(vni=1 << 24, mac="c6:d2:32:6f:8f:44")), "vxlan", "VNI"),
        (pb.Subnet(vxlan=pb.VxlanData(vni=1, mac="c6:d2:32:6f:8f:44")), "host-gw", "make them agree"),
        (pb.Subnet(opaque_json='1,"PublicIP":"10.0.0.9"'), "extension", "not valid JSON"),
        (pb.Subnet(opaque_json='{"a":NaN}'), "extension", "not valid JSON"),
        (pb.Subnet(opaque_json="[" * 8_000), "extension", "not valid JSON"),
        (pb.Subnet(public_address="not-an-address"), "host-gw", "is not an IP address"),
        *(
            (pb.Subnet(public_address=address), "host-gw", "give the address that peers send to")
            for address in ("0.0.0.0", "127.0.0.1", "224.0.0.1", "255.255.255.255", "::", "::1", "ff02::1")  # noqa: S104 - nothing is bound
        ),
        (pb.Subnet(opaque_json=f'"{"x" * 70_000}"'), "extension", "have 70002 characters: at most 8192"),
        (pb.Subnet(), "x" * 65, "backend_type is not a valid name"),
        (pb.Subnet(), "\x1b[2J", "backend_type is not a valid name"),
    ],
)
def test_what_is_not_what_it_claims_to_be_is_refused(subnet: pb.Subnet, backend_type: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        data_of(subnet, backend_type)


def test_a_missing_address_is_named() -> None:
    with pytest.raises(InvalidInput, match="public_address is empty"):
        checked_request(pb.AcquireLeaseRequest(subnets=[pb.Subnet(cidr="10.5.1.0/24")]), "a")
    with pytest.raises(InvalidInput, match="one entry for each"):
        checked_request(pb.AcquireLeaseRequest(), "a")


def test_how_long_nodes_have_not_been_seen_is_a_time_that_can_have_been() -> None:
    for seconds in (-1, 2**62):
        with pytest.raises(InvalidInput, match=r"unseen_for is .* s: use 0 to 1e"):
            leases_to_reclaim(pb.ReclaimLeasesRequest(unseen_for=Duration(seconds=seconds)))
