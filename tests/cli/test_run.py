"""`fewbit run`: prompts in, the answer on standard output, all else on standard error."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fewbit.cli import main
from fewbit.llm import LLM, Completion
from fewbit.ops.memory import available_memory

from .tiny import start, write_tiny

SHORT = ["--max-tokens", "8", "--seed", "3"]
ENDLESS = ["--max-tokens", "60000", "--ctx", "65536"]


def run(*args: str, stdin: str = "", **env: str) -> Result:
    return CliRunner().invoke(main, ["run", *args], input=stdin, env=env)


def run_json(*args: str, stdin: str = "") -> Any:
    result = run(*args, "--json", stdin=stdin)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_text_goes_to_stdout_and_figures_to_stderr(tiny: str) -> None:
    facts = run_json(tiny, "hi", *SHORT)
    result = run(tiny, "hi", *SHORT)
    assert result.exit_code == 0
    assert result.stdout == facts["text"] + ("" if facts["text"].endswith("\n") else "\n")
    model, figures, cut = result.stderr.splitlines()
    assert model == "model: tiny"
    assert figures.startswith("prompt: 19 tokens")
    assert "answer: 8 tokens" in figures
    assert cut == "the answer was cut after 8 tokens; a larger --max-tokens lets it go on"


def test_an_answer_that_the_context_cut(tiny: str) -> None:
    result = run(tiny, "hi", "--ctx", "24")
    assert result.stderr.splitlines()[-1] == (
        "the answer was cut: the context of 24 tokens is full; a larger --ctx makes room"
    )


def test_a_line_says_that_the_default_model_answers(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fewbit.cli.model.DEFAULT", tiny)
    result = run("Hello there", *SHORT)
    assert result.exit_code == 0, result.output
    assert result.stderr.splitlines()[0] == "model: tiny, the default; fewbit run MODEL PROMPT asks another"


@pytest.mark.parametrize("args", [["llama3"], ["."], [""], ["TINY", ""]])
def test_what_is_no_prompt_is_not_answered(tiny: str, args: list[str]) -> None:
    result = run(*[tiny if arg == "TINY" else arg for arg in args])
    assert result.exit_code in (1, 2)
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1


def test_json(tiny: str) -> None:
    facts = run_json(tiny, "hi", *SHORT)
    assert list(facts) == [
        "model", "text", "tokens", "finish_reason", "prompt_tokens", "cached_tokens", "draft_tokens",
        "accepted_tokens", "seconds", "tokens_per_second",
    ]  # fmt: skip
    assert facts["model"] == "tiny"
    assert len(facts["tokens"]) == 8
    assert facts["finish_reason"] == "length"
    assert facts["prompt_tokens"] == len("user: hi\nassistant:")
    assert facts["seconds"] > 0
    assert facts == {**run_json(tiny, "hi", *SHORT), **{key: facts[key] for key in ("seconds", "tokens_per_second")}}


def test_the_answer_is_that_of_the_library(tiny: str) -> None:
    settings: dict[str, Any] = {"temperature": 1.5, "top_k": 3, "top_p": 0.9, "min_p": 0.01}
    settings |= {"repetition_penalty": 1.1, "presence_penalty": 0.1, "frequency_penalty": 0.2}
    args = [f"--{name.replace('_', '-').replace('temperature', 'temp')}={value}" for name, value in settings.items()]
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    with LLM(tiny, kv=("q8_0", "q4_0"), ctx=128, exact=True, threads=1) as llm:
        expected = llm.chat(messages, max_tokens=8, seed=3, **settings)
    load = ["--kv", "q8_0/q4_0", "--ctx", "128", "--exact", "--threads", "1"]
    facts = run_json(tiny, "hi", "--system", "Be brief.", *SHORT, *args, *load)
    assert isinstance(expected, Completion)
    assert (facts["text"], facts["tokens"]) == (expected.text, expected.tokens)


def test_raw_continues_the_text(tiny: str) -> None:
    assert run_json(tiny, "abc", "--raw", *SHORT)["prompt_tokens"] == 3


def test_a_model_without_template_continues_the_text(no_template: str) -> None:
    result = run(no_template, "abc", *SHORT)
    assert result.exit_code == 0
    assert "prompt: 3 tokens" in result.stderr
    assert "the model has no chat template; it continues the text" in result.stderr
    assert "no chat template" not in run(no_template, "abc", "--raw", *SHORT).stderr


def test_chatml_where_a_model_has_its_tokens(tmp_path: Path) -> None:
    path = str(write_tiny(tmp_path / "chatml.gguf", template=None, control=("<|im_start|>", "<|im_end|>")))
    with LLM(path) as llm:
        expected = llm.chat([{"role": "user", "content": "hi"}], max_tokens=8, seed=3)
    result = run(path, "hi", *SHORT, "--json")
    assert "no chat template" not in result.stderr
    assert json.loads(result.stdout)["tokens"] == expected.tokens
    piped = CliRunner().invoke(main, ["chat", path, *SHORT, "--json"], input="hi\n")
    assert json.loads(piped.stdout)["tokens"] == expected.tokens


def test_a_model_without_template_has_no_place_for_system(no_template: str) -> None:
    result = run(no_template, "abc", "--system", "Be brief.")
    assert result.exit_code == 1
    assert "which --system needs" in result.stderr


@pytest.mark.parametrize(
    ("args", "stdin", "prompt"),
    [
        (["one"], "", "one"),
        (["one"], "two\n", "one\n\ntwo"),
        (["-"], "two\n", "two"),
        ([], "two\n", "two"),
    ],
)
def test_prompts_come_from_everywhere(tiny: str, args: list[str], stdin: str, prompt: str) -> None:
    assert run_json(tiny, *args, "--raw", *SHORT, stdin=stdin)["prompt_tokens"] == len(prompt)


def test_a_prompt_from_a_file(tiny: str, tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("from a file\n")
    args = ["--file", str(tmp_path / "p.txt"), "--raw", *SHORT]
    assert run_json(tiny, *args)["prompt_tokens"] == len("from a file")
    assert run_json(tiny, "ask:", *args)["prompt_tokens"] == len("ask:\n\nfrom a file")


def test_one_argument_that_is_no_model_goes_to_the_default_model(tmp_path: Path) -> None:
    result = run("Why is the sky blue?", FEWBIT_CACHE=str(tmp_path), FEWBIT_OFFLINE="1")
    assert result.exit_code == 1
    assert "the built-in model 'smollm2' is not in the cache" in result.stderr


def test_only_near_names_are_suggested(tmp_path: Path) -> None:
    for name in ("tiny", "empty", "cut"):
        (tmp_path / f"{name}.gguf").touch()
    result = run(str(tmp_path / "tinny.gguf"), "hi")
    assert result.stderr.endswith("there is no such file; did you mean 'tiny.gguf'?\n")


def test_stop_strings(tiny: str) -> None:
    whole = run_json(tiny, "hi", *SHORT)["text"]
    stop = whole[4]
    facts = run_json(tiny, "hi", "--stop", "never to be seen", "--stop", stop, *SHORT)
    assert facts["text"] == whole[: whole.index(stop)]
    assert facts["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["no-such.gguf", "hi"], "there is no such file"),
        (["TINY", "hi", "--ctx", "100000000"], "ctx must be between 1 and "),
        (["TINY", "hi", "--temp", "nan"], "temperature"),
        (["TINY", "hi", "--stop", ""], "stop string"),
        (["TINY", "x" * 100, "--ctx", "32"], "32"),
        (["TINY", "--file", "/no/such/file"], "/no/such/file: cannot be read"),
        (["TINY", "a\udcff"], "half a character"),
    ],
)
def test_errors_are_one_line_and_status_1(tiny: str, args: list[str], message: str) -> None:
    result = run(*[tiny if arg == "TINY" else arg for arg in args])
    assert result.exit_code == 1
    assert result.stdout.strip() == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("fewbit: ")
    assert message in line


@pytest.mark.parametrize(
    "args",
    [["TINY"], ["TINY", "hi", "--temp", "-1"], ["TINY", "hi", "--max-tokens", "0"], ["TINY", "hi", "--kv", "a/b/c"],
     ["TINY", "hi", "--raw", "--system", "x"], ["TINY", "hi", "more"], ["TINY", "hi", "--top-p", "2"]],
)  # fmt: skip
def test_wrong_usage_is_status_2(tiny: str, args: list[str]) -> None:
    assert run(*[tiny if arg == "TINY" else arg for arg in args]).exit_code == 2


@pytest.mark.parametrize("kv", ["nope", "q4_k", "f16,q8_0", "q8_0/nope"])
def test_a_format_that_a_kv_cache_cannot_take_is_refused_before_a_model_is_looked_for(kv: str) -> None:
    result = run("no-such.gguf", "hi", "--kv", kv)
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    _, _, listed = line.partition("a KV cache takes: ")
    names = listed.partition(";")[0].split(", ")
    assert len(names) == 12
    assert set(names) >= {"f16", "q8_0", "q4_0"}
    assert "q4_k" not in names


def test_a_context_that_memory_has_no_room_for(tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("69000000\n")  # 67 of them are kept for what is not counted
    monkeypatch.setattr("fewbit.ops.memory.available_memory", partial(available_memory, tmp_path))
    steps = ["--max-batched-tokens", "1", *SHORT]
    result = run(tiny, "hi", *steps)
    assert result.exit_code == 0
    assert re.match(r"fewbit: memory is short: the context is \d+ tokens instead of 8192; --kv q", result.stderr)
    result = run(tiny, "hi", "--ctx", "16384", *steps)
    assert result.exit_code == 1
    assert re.search(r"; try --ctx \d+", result.stderr)


def test_layers_on_a_gpu(tiny: str) -> None:
    result = run(tiny, "hi", "--gpu-layers", "1", *SHORT)
    assert result.exit_code == 1
    assert "gpu_layers is for devices 'cuda' and 'webgpu', not for 'cpu'; leave it out" in result.stderr
    assert run(tiny, "hi", "--gpu-layers", "-1", *SHORT).exit_code == 2
    result = run(tiny, "hi", "--device", "cuda", "--gpu-layers", "0", "--temp", "0", *SHORT)  # is the CPU
    assert (result.exit_code, result.stdout) == (0, run(tiny, "hi", "--temp", "0", *SHORT).stdout)


def test_ctrl_c_stops_the_answer(tiny: str) -> None:
    with start("run", tiny, "hi", "--temp", "0", *ENDLESS) as process:
        assert process.stdout
        assert process.stdin
        process.stdin.close()
        process.stdout.read(20)
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.stderr
        lines = process.stderr.read().decode().splitlines()
    assert lines[-1].startswith("prompt: 19 tokens")
    assert process.returncode == 130


def test_a_broken_pipe_ends_quietly(tiny: str) -> None:
    with start("run", tiny, "hi", "--temp", "0", *ENDLESS) as process:
        assert process.stdout
        assert process.stderr
        assert process.stdin
        process.stdin.close()
        process.stdout.read(20)
        process.stdout.close()
        assert [line for line in process.stderr if b"loading" not in line] == [b"model: tiny\n"]
    assert process.returncode == 1


def test_a_terminal_gets_nothing_that_it_would_obey(tmp_path: Path) -> None:
    model = str(write_tiny(tmp_path / "loud.gguf"))
    args = ["run", model, "hi", "--temp", "5", "--top-k", "0", "--top-p", "1", "--min-p", "0", "--seed", "1"]
    args += ["--max-tokens", "600"]
    with start(*args) as piped:
        out, _ = piped.communicate()
    ours, theirs = os.openpty()
    with start(*args, stdin=subprocess.DEVNULL, stdout=theirs) as shown:
        os.close(theirs)
        seen = b""
        while data := read_terminal(ours):
            seen += data
        shown.communicate()
    os.close(ours)
    text = seen.replace(b"\r\n", b"\n").decode()
    assert any(c < " " and c not in "\t\n" for c in out.decode())
    assert all(c in "\t\n" or (c >= " " and not "\x7f" <= c < "\xa0") for c in text)
    assert len(text) > 100


def read_terminal(fd: int) -> bytes:
    try:
        return os.read(fd, 4096)
    except OSError:  # the other side was closed
        return b""
