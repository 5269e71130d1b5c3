"""Flags of flannelette-cloud that cannot be meant end the start with a sentence."""

import pytest

from flannelette.services.cloud.main import CloudSettings
from flannelette.services.core.errors import Misconfigured
from flannelette.services.runtime.process.settings import parse_settings


def parsed(*flags: str) -> CloudSettings:
    return parse_settings(CloudSettings, "flannelette-cloud", flags, {})


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--cloud-interval=0", "--cloud-interval is 0: use at least 1 second"),
        ("--cloud-mark= ", "--cloud-mark is empty: routes of others would be ours; write the cluster's name"),
        ("--cloud-routes-limit=-1", "--cloud-routes-limit is -1: use the quota of a table, or 0 for the default"),
        ("--cloud-endpoint=vpc.example.org", "--cloud-endpoint is vpc.example.org: write a URL, as https://HOST"),
        ("--cloud-metadata=http://", "--cloud-metadata is http://: write a URL, as https://HOST"),
    ],
)
def test_what_cannot_be_meant_is_said(flag: str, said: str) -> None:
    with pytest.raises(Misconfigured) as refused:
        parsed(flag)
    assert str(refused.value) == said


def test_urls_may_have_a_part_for_the_product() -> None:
    url = "https://{product}-vpc.cn-hangzhou.aliyuncs.com"
    assert parsed(f"--cloud-endpoint={url}", "--cloud-metadata=http://10.0.0.1:80").cloud_endpoint == url
