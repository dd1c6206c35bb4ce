"""Packed weights on NVIDIA GPUs: CUDA C++ from csrc/cuda, compiled at first use, without torch.

`to_device(w)` sends a QuantTensor there, `linear(x, w)` multiplies; x and results are exchanged with other packages
through DLPack. It needs the packages of the extra `cuda` and NVIDIA's driver; nothing of them is imported before.
"""

from .device import Gpu, gpu, shared_session
from .matrices import linear, quantize
from .memory import DeviceArray
from .session import Session
from .tensor import CudaTensor, to_device

__all__ = ["CudaTensor", "DeviceArray", "Gpu", "Session", "gpu", "linear", "quantize", "shared_session", "to_device"]
