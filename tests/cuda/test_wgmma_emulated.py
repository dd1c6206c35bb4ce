"""What the emulator makes of products of warpgroups: the manual's results, and an end where it defines none."""

from __future__ import annotations

import shutil
import subprocess
import sys
from os import environ
from pathlib import Path

import numpy as np
import pytest

from fewbit.ops.cuda.kernels import Entry

from .emulator.device import EmulatedGpu

pytestmark = pytest.mark.skipif(shutil.which(environ.get("CXX", "g++")) is None, reason="there is no C++ compiler")

# y (64, 48) = a (64, 16) x (48, 16)^T; both operands in rows of f16, x's as core matrices of 8 rows by 16 bytes.
KERNEL = """
extern "C" __global__ void __launch_bounds__(128) probe(const unsigned* a, const uint4* x, float* y) {
  extern __shared__ __align__(128) uint4 staged[];
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4, column = lane % 4;
  const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(staged));
  if (threadIdx.x < 96) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + threadIdx.x * 16), "l"(x + threadIdx.x));
  }
  asm volatile("cp.async.commit_group;");
  asm volatile("cp.async.wait_group %0;" ::"n"(0) : "memory");
  fewbit::fence_shared();  // of shared memory
  __syncthreads();
  float c[6][4] = {};
  fewbit::fence_warpgroup();  // of registers
  fewbit::multiply_warpgroup(c, a[row * 8 + column], a[(row + 8) * 8 + column], a[row * 8 + column + 4],
                             a[(row + 8) * 8 + column + 4], fewbit::describe(to, 6 * 128));
  fewbit::commit_warpgroup();
  fewbit::wait_warpgroup<0>();  // for the product
  for (int n = 0; n < 6; ++n)
    for (int i = 0; i < 4; ++i) y[(row + i / 2 * 8) * 48 + n * 8 + column * 2 + i % 2] = c[n][i];
}
"""
UNDEFINED = [
    ("  fewbit::fence_shared();  // of shared memory\n", "", "not fenced for the asynchronous proxy"),
    ("  fewbit::fence_warpgroup();  // of registers\n", "", "registers were not fenced"),
    ("  fewbit::wait_warpgroup<0>();  // for the product\n", "", "nobody waited for"),
    (
        "  fewbit::wait_warpgroup<0>();  // for the product\n",
        "  if (threadIdx.x < 96) staged[threadIdx.x].x += 1;\n  fewbit::wait_warpgroup<0>();\n",
        "changed before its product had ended",
    ),
    ("describe(to, 6 * 128)", "describe(to + threadIdx.x / 64 * 16, 6 * 128)", "differ within a warpgroup"),
    ("describe(to, 6 * 128)", "describe(to, 6 * 128) | 1ull << 62", "swizzling"),
]  # fmt: skip


def run(text: str) -> None:
    """The kernel beside NumPy."""
    entry, gpu = Entry("probe", "warpgroup.h", text, "QQQ"), EmulatedGpu()
    session, rng = gpu.session(), np.random.default_rng(0)
    a, x = (rng.standard_normal((rows, 16)).astype(np.float16) for rows in (64, 48))
    cores = np.ascontiguousarray(x.reshape(48, 2, 8).transpose(1, 0, 2))  # the second 16 bytes 6 core matrices behind
    given, out = (session.array(a), session.array(cores)), session.empty((64, 48))
    session.launch(entry, 1, 128, given[0].pointer, given[1].pointer, out.pointer)
    assert np.allclose(out.numpy(), a.astype(np.float64) @ x.astype(np.float64).T, rtol=1e-5, atol=1e-5)


def test_products_are_those_of_the_manual() -> None:
    run(KERNEL)


@pytest.mark.parametrize(("old", "new", "message"), UNDEFINED, ids=[message for *_, message in UNDEFINED])
def test_what_is_undefined_ends_the_program(old: str, new: str, message: str) -> None:
    assert KERNEL.count(old) == 1
    done = subprocess.run(
        [sys.executable, "-m", "tests.cuda.test_wgmma_emulated"],
        input=KERNEL.replace(old, new), check=False, capture_output=True, text=True, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.returncode < 0
    assert "emulator: wgmma: " in done.stderr
    assert message in done.stderr


if __name__ == "__main__":
    run(sys.stdin.read())
