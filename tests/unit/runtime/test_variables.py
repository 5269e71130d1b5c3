"""Variables that no flag has: told, with the one that is meant."""

import pytest

from flannelette.services.runtime.process.settings import ProcessSettings, parse_settings, unknown_variables


def told(**environment: str) -> list[str]:
    return list(unknown_variables(ProcessSettings, environment).values())


def test_a_misspelt_variable_is_told_with_the_one_that_is_meant_and_without_its_value() -> None:
    assert told(FLANNELD_IFCE="eth1", FLANNELD_ETCD_USERNAM="me") == [
        "no flag has the variable FLANNELD_ETCD_USERNAM, which has no effect: did you mean FLANNELD_ETCD_USERNAME?",
        "no flag has the variable FLANNELD_IFCE, which has no effect: did you mean FLANNELD_IFACE?",
    ]
    assert told(FLANNELD_SOME_OTHER="x") == ["no flag has the variable FLANNELD_SOME_OTHER, which has no effect"]


@pytest.mark.parametrize("variable", ["FLANNELD_IFACE", "FLANNELD_ETCD_PREFIX", "FLANNELD_V", "FLANNELD_CLOUD_MARK"])
def test_a_variable_of_any_service_is_none_of_those_for_one_file_is_read_by_all(variable: str) -> None:
    assert told(**{variable: "x"}) == []


def test_variables_of_others_are_not_looked_at() -> None:
    kubernetes = ("FLANNELD_SERVICE_HOST", "FLANNELD_SERVICE_PORT_HTTP", "FLANNELD_PORT", "FLANNELD_PORT_80_TCP_ADDR")
    assert told(**dict.fromkeys(("PATH", "FLANNELETTE_LEASE", "EVENT_QUEUE_DEPTH", *kubernetes), "x")) == []


def test_the_version_is_asked_for_by_the_flag_alone_as_with_flanneld() -> None:
    assert not parse_settings(ProcessSettings, "x", [], {"FLANNELD_VERSION": "v0.28.9"}).version
    assert told(FLANNELD_VERSION="v0.28.9") == ["no flag has the variable FLANNELD_VERSION, which has no effect"]
