"""Backend data of a lease, as flannel writes it and as it may be found."""

import pytest

from flannelette.services.core.errors import InvalidInput
from flannelette.services.core.family import IPV4
from flannelette.services.core.leases.flannel_json import format_data, parse_data, parse_lease
from flannelette.services.core.leases.lease import OpaqueData, VxlanData, WireguardData


def data_of(backend_type: str, text: str) -> object:
    value = f'{{"PublicIP":"1.2.3.4","BackendType":"{backend_type}","BackendData":{text}}}'
    subnet = parse_lease("10.5.52.0-24", value).subnet(IPV4)
    return subnet.data if subnet else None


def test_vxlan_data_is_written_in_exactly_the_form_in_which_flanneld_looks_for_its_mac() -> None:
    assert format_data(VxlanData(1, "c6:d2:32:6f:8f:44")) == '{"VNI":1,"VtepMAC":"c6:d2:32:6f:8f:44"}'


def test_vxlan_data_is_read_in_any_spelling() -> None:
    assert data_of("vxlan", '{ "vtepmac" : "C6:D2:32:6F:8F:44", "vni": 16777215, "New": [1] }') == VxlanData(
        2**24 - 1, "c6:d2:32:6f:8f:44"
    )


def test_vxlan_data_without_vni_is_that_of_a_flanneld_that_did_not_tell() -> None:
    assert data_of("vxlan", '{"VtepMAC":"c6:d2:32:6f:8f:44"}') == VxlanData(0, "c6:d2:32:6f:8f:44")


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        '{"VtepMAC":null}',
        '{"VtepMAC":""}',
        '{"VtepMAC":7}',
        '{"VtepMAC":"c6:d2:32:6f:8f"}',
        '{"VtepMAC":"c6:d2:32:6f:8f:44:55:66"}',
        '{"VtepMAC":"c6:d2:32:6f:8f:4g"}',
        '{"VtepMAC":"c6:d2:32:6f:8f:44\\n"}',
        '{"VtepMAC":"c6:d2:32:6f:8f:44","VNI":16777216}',
        '{"VtepMAC":"c6:d2:32:6f:8f:44","VNI":-1}',
        '{"VtepMAC":"c6:d2:32:6f:8f:44","VNI":"1"}',
        '"c6:d2:32:6f:8f:44"',
        "[]",
    ],
)
def test_vxlan_data_that_cannot_be_programmed_is_refused_naming_the_key(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"BackendData of 10\.5\.52\.0-24"):
        data_of("vxlan", text)


@pytest.mark.parametrize(
    ("backend_type", "text", "message"),
    [
        ("wireguard", f'{{"PublicKey":"{"A" * 513}","Port":51820}}', "PublicKey in BackendData of .* at most 512"),
        ("extension", f'"{"x" * 8191}"', "BackendData of .* has 8193 characters: at most 8192"),
        ("x" * 513, "null", "BackendType of .* at most 512"),
    ],
)
def test_what_is_longer_than_nodes_take_is_refused_where_it_is_read(
    backend_type: str, text: str, message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        data_of(backend_type, text)


def test_wireguard_data_without_port_is_that_of_a_flanneld_that_did_not_tell() -> None:
    assert data_of("wireguard", '{"PublicKey":"abc="}') == WireguardData("abc=", 0)
    assert format_data(WireguardData("abc=", 51820)) == '{"PublicKey":"abc=","Port":51820}'


@pytest.mark.parametrize("text", ['{"PublicKey":7}', '{"PublicKey":"abc=","Port":65536}', '"abc="'])
def test_wireguard_data_of_another_shape_is_refused_naming_the_key(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"BackendData of 10\.5\.52\.0-24"):
        data_of("wireguard", text)


@pytest.mark.parametrize("backend_type", ["", "host-gw", "vxlan", "wireguard", "extension", "new"])
def test_null_and_absent_data_are_none(backend_type: str) -> None:
    assert data_of(backend_type, "null") is None
    assert parse_data(" null\n", backend_type, "the annotation") is None
    value = f'{{"PublicIP":"1.2.3.4","BackendType":"{backend_type}"}}'
    assert parse_lease("10.5.52.0-24", value).subnets[0].data is None


def test_data_of_a_kind_we_do_not_know_keeps_its_spelling() -> None:
    assert data_of("new", '{ "B": 1.10, "a": ["x y", 1E400] }') == OpaqueData('{"B":1.10,"a":["x y",1E400]}')


@pytest.mark.parametrize("text", ["5E:FF:56:A2:AF:15", "5e-ff-56-a2-af-15", "5eff.56a2.af15", "5e:ff:56:a2:af:15"])
def test_a_mac_is_read_in_every_notation_that_go_takes(text: str) -> None:
    assert parse_data(f'{{"VNI":1,"VtepMAC":"{text}"}}', "vxlan", "x") == VxlanData(1, "5e:ff:56:a2:af:15")


@pytest.mark.parametrize("text", ["5e-ff:56-a2-af-15", "5eff56a2af15", "5eff.56a2", "5e:ff:56:a2:af"])
def test_what_go_does_not_take_for_a_mac_is_none(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_data(f'{{"VNI":1,"VtepMAC":"{text}"}}', "vxlan", "x")
