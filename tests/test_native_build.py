"""Which instruction sets a build compiles: those of its machine, or all (FEWBIT_TARGETS)."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fewbit.bench.machine import COMPLETE
from fewbit.ops import cpu

ROOT = Path(__file__).parents[1]
CMAKE = shutil.which("cmake") or shutil.which("cmake", path=str(Path(sys.executable).parent))
NINJA = shutil.which("ninja") or shutil.which("ninja", path=str(Path(sys.executable).parent))
BASES = {"amx": "avx512bw", "avx512": "avx512bw", "neon_dotprod": "neon", "neon_i8mm": "neon"}

needs_cmake = pytest.mark.skipif(CMAKE is None or NINJA is None, reason="cmake or ninja is not installed")


def configure(folder: Path, targets: str) -> subprocess.CompletedProcess[str]:
    """The build of the kernels, configured only."""
    assert CMAKE
    command = [CMAKE, "-S", ROOT, "-B", folder, "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={NINJA}", "-DFEWBIT_SELFTEST=ON"]
    return subprocess.run([*command, f"-DFEWBIT_TARGETS={targets}"], capture_output=True, text=True, check=False)


def compiled(folder: Path) -> set[str]:
    """The instruction sets whose files would be compiled."""
    rules = (folder / "build.ninja").read_text()
    return set(
        re.findall(r"build CMakeFiles/(\w+)_(?:products|kv|rows|encode)_\d\.dir/csrc/targets/\w+\.cpp\.o:", rules)
    )


def listed_in(folder: Path) -> list[str]:
    """The instruction sets that the build chooses from."""
    return re.findall(r"X\((\w+), ", (folder / "targets.generated.h").read_text())


@needs_cmake
def test_a_native_build_compiles_the_best_instruction_set_and_scalar(tmp_path: Path) -> None:
    done = configure(tmp_path, "native")
    assert done.returncode == 0, done.stderr
    found = re.search(r"compiling for this machine: ([\w, ]+) \(", done.stdout)
    assert found
    listed = found[1].split(", ")
    assert listed[-1] == "scalar"
    assert cpu.isas()[0] in listed
    assert compiled(tmp_path) == {*listed, *(BASES[name] for name in listed if name in BASES)}
    assert listed_in(tmp_path) == listed
    assert "avx512bw_products" not in (tmp_path / "build.ninja").read_text() or "avx512bw" in listed


@needs_cmake
def test_a_complete_build_compiles_every_instruction_set(tmp_path: Path) -> None:
    done = configure(tmp_path, "all")
    assert done.returncode == 0, done.stderr
    assert listed_in(tmp_path) in COMPLETE
    assert compiled(tmp_path) == set(listed_in(tmp_path))


@needs_cmake
def test_other_names_are_refused(tmp_path: Path) -> None:
    done = configure(tmp_path, "avx9")
    assert done.returncode != 0
    assert "FEWBIT_TARGETS must be native or all, got avx9" in " ".join(done.stderr.split())


def test_wheels_and_images_for_other_machines_have_every_instruction_set() -> None:
    assert '"cmake.define.FEWBIT_TARGETS" = "all"' in (ROOT / "pyproject.toml").read_text()
    assert "ENV FEWBIT_TARGETS=all" in (ROOT / "deploy/Dockerfile").read_text()
    assert "export FEWBIT_TARGETS ?= all" in (ROOT / "Makefile").read_text()
