"""Every method of every service has a rule, and no rule is for a method that does not exist."""

import re

from google.protobuf.descriptor import MethodDescriptor
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from flannelette.cloud.v1 import cloud_pb2
from flannelette.dataplane.v1 import dataplane_pb2
from flannelette.lease.v1 import lease_pb2
from flannelette.masq.v1 import masq_pb2
from flannelette.services.core.access import Requirement
from flannelette.services.runtime.rpc.authorization import REQUIREMENTS
from tests.paths import ROOT

FILES = (lease_pb2, dataplane_pb2, masq_pb2, cloud_pb2, health_pb2, reflection_pb2)
METHODS: dict[str, MethodDescriptor] = {
    f"/{service.full_name}/{method.name}": method
    for file in FILES
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
REFLECTION_V1 = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
"""grpcio has no descriptor of it; services/runtime/rpc/server.py serves it."""


def test_every_method_has_a_rule_and_every_rule_a_method() -> None:
    assert set(REQUIREMENTS) == {*METHODS, REFLECTION_V1}


def test_the_page_about_security_has_every_method_in_the_row_of_its_rule() -> None:
    """Those for all members by the beginning of their names; WatchLeases has a row of its own."""
    page = (ROOT / "docs" / "security.md").read_text()
    lines = re.findall(r"^\|(.*`.*)\|$", page, re.MULTILINE)
    rows = [[cell.strip() for cell in line.split("|")] for line in lines]
    columns = {
        Requirement.MEMBER: ("yes", "yes", "yes", "yes"),
        Requirement.HOLDER: ("", "yes", "yes", ""),
        Requirement.WATCHER: ("", "yes", "yes", ""),
        Requirement.ADMIN: ("", "", "", "yes"),
    }
    for path, rule in REQUIREMENTS.items():
        if path.startswith("/flannelette."):
            name = path.rpartition("/")[2]
            of_all = ("Get...", "List...", "Watch...") if rule is Requirement.MEMBER else ()
            names = {name, *(each for each in of_all if name.startswith(each[:-3]))}
            found = [tuple(row[1:]) for row in rows if len(row) == 5 and names & {*re.findall("`([^`]+)`", row[0])}]
            assert found == [columns[rule]], name


def test_what_speaks_for_a_node_names_it() -> None:
    for path, needed in REQUIREMENTS.items():
        if needed in (Requirement.HOLDER, Requirement.WATCHER):
            field = METHODS[path].input_type.fields_by_name["node"]
            assert field.type == field.TYPE_STRING, path
        if needed is Requirement.WATCHER:
            assert METHODS[path].input_type.fields_by_name["view"].enum_type is lease_pb2.View.DESCRIPTOR


def test_only_what_looks_is_for_every_member() -> None:
    looks = ("Get", "List", "Watch", "Explain", "ProbePeers", "Trace", "Check", "ServerReflectionInfo")
    for path, needed in REQUIREMENTS.items():
        name = path.rpartition("/")[2]
        assert name.startswith(looks) == (needed in (Requirement.MEMBER, Requirement.WATCHER)), path


def test_a_packet_is_explained_to_every_member() -> None:
    explain = "/flannelette.masq.v1.MasqService/Explain"
    assert REQUIREMENTS[explain] is Requirement.MEMBER
