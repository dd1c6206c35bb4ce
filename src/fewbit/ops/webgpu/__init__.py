"""Packed weights on any GPU through WebGPU: WGSL written from the records of formats, run by the package wgpu.

`to_device(w)` sends a QuantTensor to an adapter, and `fb.linear(x, w)` multiplies there. It needs the package of the
extra `webgpu` and a driver of Vulkan, Metal or D3D12; nothing of it is imported before.
"""

from .adapters import AdapterInfo, has_gpu, list_adapters
from .device import Gpu, open_gpu
from .quantize import quantize
from .tensor import WebGpuTensor, to_device

__all__ = ["AdapterInfo", "Gpu", "WebGpuTensor", "has_gpu", "list_adapters", "open_gpu", "quantize", "to_device"]
