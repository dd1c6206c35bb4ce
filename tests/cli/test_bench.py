"""`fewbit bench`: of a model unless a kind of bench is named."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fewbit.cli import main
from fewbit.devices import Device
from fewbit.files.model import ModelFile
from fewbit.loading import load_weights
from fewbit.models import LoadedModel

SMALL = ["--prompt", "20", "--gen", "3", "--rounds", "1"]


@pytest.fixture(autouse=True)
def _little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fewbit.bench.model.MEMORY_BYTES", 1 << 20)


def bench(*args: str) -> Result:
    return CliRunner().invoke(main, ["bench", *args])


def bench_json(*args: str) -> Any:
    result = bench(*args, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_every_combination_is_a_case(tiny: str) -> None:
    rows = bench_json(
        tiny, *SMALL, "--depth", "0,40", "--batch", "1,3", "--threads", "1,2", "--kv", "f16,q8_0/q4_0",
        "--activations", "int16",
    )  # fmt: skip
    cases = [(row["threads"], row["kv"], row["depth"], row["batch"]) for row in rows]
    assert cases == [(t, kv, d, b) for t in (1, 2) for kv in ("f16", "q8_0/q4_0") for d in (0, 40) for b in (1, 3)]
    for row in rows:
        assert list(row) == [
            "prompt_tokens", "gen_tokens", "depth", "batch", "threads", "kv", "drafts", "activations",
            "prefill_tokens_per_second", "decode_tokens_per_second", "decode_bandwidth_share",
        ]  # fmt: skip
        assert (row["prompt_tokens"], row["gen_tokens"]) == (20, 3)
        assert min(row[key] for key in list(row)[-3:]) > 0


@pytest.mark.parametrize(("flag", "repack"), [([], None), (["--repack"], True), (["--no-repack"], False)])
def test_repack_reaches_the_weights(
    tiny: str, monkeypatch: pytest.MonkeyPatch, flag: list[str], repack: bool | None
) -> None:
    seen: list[bool | None] = []

    def spy(file: ModelFile, device: Device, repack: bool | None = None) -> LoadedModel:
        seen.append(repack)
        return load_weights(file, device, repack)

    monkeypatch.setattr("fewbit.bench.model.load_weights", spy)
    assert len(bench_json(tiny, *SMALL, "--batch", "1", *flag)) == 1
    assert seen == [repack]


def test_usual_cases(tiny: str) -> None:
    assert [row["batch"] for row in bench_json(tiny, *SMALL)] == [1, 8, 32]


def test_text(tiny: str) -> None:
    lines = bench(tiny, *SMALL, "--batch", "2").stdout.splitlines()
    assert lines[0].startswith("tiny.gguf, ")
    assert lines[1].split() == [
        "prompt",
        "gen",
        "depth",
        "batch",
        "threads",
        "kv",
        "drafts",
        "prefill",
        "tokens/s",
        "decode",
        "tokens/s",
        "of",
        "read",
    ]
    assert lines[2].split()[:4] == ["20", "3", "0", "2"]
    assert len(lines) == 3


def test_options_may_come_first(tiny: str) -> None:
    assert len(bench_json("--batch", "1", *SMALL, tiny)) == 1
    assert len(bench_json("model", "--batch", "1", *SMALL, tiny)) == 1


def test_another_device(tiny: str) -> None:
    (row,) = bench_json(tiny, "--device", "numpy", "-b", "1", *SMALL)
    assert row["decode_tokens_per_second"] > 0
    assert row["decode_bandwidth_share"] is None
    lines = bench(tiny, "--device", "numpy", "-b", "1", *SMALL).stdout.splitlines()
    assert lines[0] == "tiny.gguf, numpy"
    assert lines[-1].endswith(" -")
    result = bench(tiny, "--device", "abacus", *SMALL)
    assert result.exit_code == 1
    assert "there is no device 'abacus'" in result.stderr


def test_help_tells_of_both() -> None:
    output = bench("--help").output
    assert "bench MODEL [OPTIONS]" in output
    assert "--gen" in output
    assert "kernels" in output
    assert "--shape" in bench("kernels", "--help").output


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["no-such.gguf"], "there is no such file"),
        (["no-such-command"], "is neither a file nor a known name"),
        (["TINY", "--depth", "100000000"], "ctx must be between 1 and "),
    ],
)
def test_errors_are_one_line_and_status_1(tiny: str, args: list[str], message: str) -> None:
    result = bench(*[tiny if arg == "TINY" else arg for arg in args])
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert message in result.stderr


@pytest.mark.parametrize(
    "wrong",
    [["--batch", "0"], ["--batch", "a"], ["--depth", "-1"], ["--threads", "1,,2"], ["--kv", "f16,"], ["--kv", "nope"],
     ["--gen", "0"],
     ["--prompt", "0"], ["--batch", "9" * 30], ["--threads", "0"]],
)  # fmt: skip
def test_wrong_usage_is_status_2(tiny: str, wrong: list[str]) -> None:
    assert bench(tiny, *wrong).exit_code == 2
