"""How benches are described, chosen and reported; what they measure is not run here."""

import asyncio
import io
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from bench.__main__ import BENCHES, main
from bench.process import running, unless_failed
from bench.result import BenchFailed, Result, percentiles

SECONDS = Result("cold_start", {"peers": 5}, "seconds", 0.1, {"slow": 2.0, "fast": 0.25}, True, 0.0912345)
RATE = Result("fan_out", {}, "events/s", 600.0, {"slow": 20.0, "fast": 200.0}, False, 1.0)


def test_the_ratio_is_against_the_best_peer_whichever_way_the_unit_runs() -> None:
    assert SECONDS.ratio == 2.5
    assert RATE.ratio == 3.0


def test_the_json_has_the_figures_of_all_and_what_ours_cost() -> None:
    fields = json.loads(SECONDS.json())
    assert fields.pop("peak_rss_mib") > 1
    assert fields == {
        "name": "cold_start",
        "parameters": {"peers": 5},
        "unit": "seconds",
        "ours": 0.1,
        "peers": {"slow": 2.0, "fast": 0.25},
        "ratio": 2.5,
        "cpu_seconds": 0.09123,
    }


def test_further_figures_stand_in_the_json_and_below_the_table() -> None:
    result = replace(SECONDS, figures={"p99_ms": 12.3456, "lost": 0})
    fields = json.loads(result.json())
    assert (fields["p99_ms"], fields["lost"]) == (12.35, 0)
    console = Console(width=100, file=io.StringIO())
    with console.capture() as captured:
        result.show(console)
    assert "p99_ms 12.35, lost 0" in captured.get()


def test_what_nobody_can_beat_is_told_and_is_no_peer() -> None:
    result = replace(SECONDS, limits={"bare send": 0.08}, peak_rss_mib=61.25)
    fields = json.loads(result.json())
    assert (fields["limits"], fields["ratio"], fields["peak_rss_mib"]) == ({"bare send": 0.08}, 2.5, 61.2)
    console = Console(width=100, file=io.StringIO())
    with console.capture() as captured:
        result.show(console)
    assert "bare send" in captured.get()


def test_percentiles_are_values_that_were_measured() -> None:
    assert percentiles([]) == {}
    assert percentiles([3.0]) == {"p50_ms": 3.0, "p95_ms": 3.0, "p99_ms": 3.0}
    assert percentiles([float(value) for value in range(100, 0, -1)]) == {"p50_ms": 51, "p95_ms": 96, "p99_ms": 100}


def test_the_table_shows_every_contender() -> None:
    console = Console(width=100, file=io.StringIO())
    with console.capture() as captured:
        SECONDS.show(console)
    text = captured.get()
    assert "cold_start (peers 5)" in text
    assert [word in text for word in ("ours", "slow", "fast", "2.5 times the best peer")] == [True] * 4


def test_without_a_name_the_benches_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(BENCHES)


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["cold_start", "--peers", "0"], ["cold_start", "--peers", "many"]]
)
def test_a_wrong_command_line_ends_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "bench" in capsys.readouterr().err


async def test_a_contender_that_dies_ends_the_bench_at_once_with_its_words(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with running(sys.executable, "-c", "raise SystemExit('there is no etcdctl')", log=log) as process:
        async with asyncio.timeout(60):
            with pytest.raises(BenchFailed, match=r"ended with 1: there is no etcdctl"):
                await unless_failed(asyncio.sleep(3600), {log: process})
