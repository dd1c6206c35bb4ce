"""What must work where a wheel was installed: `python -m tests.wheel`, in an environment that has only the wheel.

`make wheel` runs it, and cibuildwheel for every wheel that it builds. With `--default-model` the default model answers
too, if it can be fetched.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import fewbit as fb
from fewbit.ops import cpu

from .cli.tiny import write_tiny

SOURCES = Path(__file__).parents[1] / "src"


def command(*args: str) -> subprocess.CompletedProcess[str]:
    """The installed command."""
    installed = str(Path(sys.executable).parent / "fewbit")
    return subprocess.run([installed, *args], check=False, capture_output=True, text=True)


def told(*args: str) -> Any:
    """What the command says in JSON."""
    done = command(*args, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check_product(format: str) -> float:
    """A product on the instruction set in use; its difference from NumPy's, which 8-bit inputs allow."""
    rng = np.random.default_rng(0)
    w = fb.quantize(rng.standard_normal((48, 512), dtype=np.float32), format)
    x = rng.standard_normal((3, 512), dtype=np.float32)
    wanted = x @ w.dequantize().T
    assert np.allclose(fb.linear(x, w, exact=True), wanted, atol=1e-3), format
    error = float(np.linalg.norm(fb.linear(x, w) - wanted) / np.linalg.norm(wanted))
    assert error < 0.02, (format, error)
    return error


def check_answer() -> None:
    """A small model with random weights answers."""
    with tempfile.TemporaryDirectory() as folder:
        facts = told("run", str(write_tiny(Path(folder) / "tiny.gguf")), "hi", "--max-tokens", "8", "--temp", "0")
    assert len(facts["tokens"]) == 8, facts


def default_model_says() -> str:
    done = command("run", "--temp", "0", "--max-tokens", "48", "Why is the sky blue?")
    if done.returncode == 0:
        assert "sky" in done.stdout or "light" in done.stdout, done.stdout
        return done.stdout.strip()
    if command("pull", "smollm2").returncode == 0:
        raise AssertionError(done.stderr)
    return f"not asked: {done.stderr.strip().splitlines()[-1]}"


def check_types(package: Path) -> None:
    """Type checkers read a package's own types only where this file says so."""
    assert (package / "py.typed").is_file(), f"{package} has no py.typed"


def check_page(package: Path) -> None:
    """The server's page is there, with all of its files."""
    for source in (SOURCES / "fewbit" / "server" / "page").iterdir():
        installed = package / "server" / "page" / source.name
        assert installed.is_file(), f"{installed} is missing"
        assert installed.read_bytes() == source.read_bytes(), f"{installed} is another one"


def check_gpu_sources(package: Path) -> None:
    """The headers that GPU kernels are compiled from are there, all of them, and those of the CPU's are not."""
    source, installed = SOURCES.parent / "csrc", package / "ops" / "cuda" / "csrc"
    wanted = [path for folder in ("cuda", "formats") for path in (source / folder).rglob("*") if path.is_file()]
    wanted += source.glob("*.generated.h")
    for path in wanted:
        copy = installed / path.relative_to(source)
        assert copy.is_file(), f"{copy} is missing"
        assert copy.read_bytes() == path.read_bytes(), f"{copy} is another one"
    assert not (installed / "kernels").exists()


def main() -> None:
    assert SOURCES not in Path(fb.__file__).parents, f"{fb.__file__} is not what was installed"
    check_types(Path(fb.__file__).parent)
    check_page(Path(fb.__file__).parent)
    check_gpu_sources(Path(fb.__file__).parent)
    machine = told("doctor")
    print("installed in", Path(fb.__file__).parent)
    print("this build has", *machine["known_isas"])
    assert not machine["is_native_build"], "a wheel for other machines needs FEWBIT_TARGETS=all"
    for isa in cpu.isas():
        with cpu.forced_isa(isa):
            errors = [f"{name} {check_product(name):.4f}" for name in ("q4_0", "q4_k", "q8_0")]
        print(f"products on {isa} agree with NumPy's:", ", ".join(errors))
    check_answer()
    print("a model with random weights answers")
    if "--default-model" in sys.argv:
        print("the default model:", default_model_says())


if __name__ == "__main__":
    main()
