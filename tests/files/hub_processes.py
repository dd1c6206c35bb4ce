"""Finds models in processes of their own, for tests with a stand-in of a hub."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

import pytest

MODEL = b"GGUF" + bytes(range(256)) * 4000
REPOSITORY = {
    "README.md": b"# A model",
    "m-Q2_K.gguf": MODEL + b"Q2_K",
    "m-Q4_K_M.gguf": MODEL + b"Q4_K_M",
    "m-Q8_0.gguf": MODEL + b"Q8_0",
    "mmproj-F16.gguf": MODEL + b"F16",
}
needs_library = pytest.mark.skipif(find_spec("huggingface_hub") is None, reason="huggingface_hub is not installed")

# A process of its own: huggingface_hub reads its environment when it is imported, and two must be able to run at once.
FIND = """
import dataclasses, json, sys
from fewbit.errors import FewbitError
from fewbit.files import hub
from fewbit.files.hub import retry, wheel

retry.PAUSE = 0
for name, changes in json.loads(sys.argv[1]).items():
    wheel.TABLE[name] = dataclasses.replace(wheel.TABLE[name], **changes)
for model, offline, encoder in json.loads(sys.argv[2]):
    calls = []
    try:
        answer = str(hub.find(model, offline=offline, encoder=encoder, progress=lambda *call: calls.append(call)))
    except FewbitError as error:
        answer = f"{type(error).__name__}: {error}"
    print(json.dumps([answer, calls]))
"""


def start(
    *models: str | tuple[str, bool], changes: dict[str, Any] | None = None, encoder: bool = False
) -> subprocess.Popen[str]:
    asked = [(*((model, None) if isinstance(model, str) else model), encoder) for model in models]
    command = [sys.executable, "-c", FIND, json.dumps(changes or {}), json.dumps(asked)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def answers(process: subprocess.Popen[str]) -> list[tuple[str, list[Any]]]:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert err == ""  # no bars
    return [tuple(json.loads(line)) for line in out.splitlines()]


def find_all(*models: str | tuple[str, bool], encoder: bool = False) -> list[str]:
    return [answer for answer, _ in answers(start(*models, encoder=encoder))]
