"""FEWBIT_EMULATE_CUDA=1 runs the tests of GPU kernels on the CPU, where there is no GPU: slowly."""

import os

if os.environ.get("FEWBIT_EMULATE_CUDA"):
    from .emulator.device import install

    install()
