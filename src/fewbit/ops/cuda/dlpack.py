"""Arrays of others: read through DLPack or `__cuda_array_interface__`, and ours given out. No device is needed here."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import POINTER, c_char_p, c_int32, c_int64, c_uint8, c_uint16, c_uint64, c_void_p, py_object
from dataclasses import dataclass
from typing import Any

from ...errors import DtypeError, LayoutError

CPU, CUDA = 1, 2  # kinds of device, in DLPack's numbers
ITEM_BYTES = {"f32": 4, "f16": 2, "bf16": 2, "u8": 1, "i32": 4}
_CODES = {"f32": (2, 32), "f16": (2, 16), "bf16": (4, 16), "u8": (1, 8), "i32": (0, 32)}
_NAMES = {code: name for name, code in _CODES.items()}
TYPESTR = {"f32": "<f4", "f16": "<f2", "u8": "|u1", "i32": "<i4"}  # NumPy has no bfloat16


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", c_void_p), ("device_type", c_int32), ("device_id", c_int32), ("ndim", c_int32),
        ("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16),
        ("shape", POINTER(c_int64)), ("strides", POINTER(c_int64)), ("byte_offset", c_uint64),
    )  # fmt: skip


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", c_void_p), ("deleter", c_void_p))


@dataclass(frozen=True)
class ForeignArray:
    """Contiguous memory of somebody, which stays while `owner` does."""

    pointer: int
    shape: tuple[int, ...]
    dtype: str
    device_type: int
    device_id: int
    owner: Any


def read(x: Any, stream: int, what: str, ordinal_of: Callable[[int], int]) -> ForeignArray | None:
    """x as a view of the memory of its device, ready to be read on `stream`; None: it offers none.

    `ordinal_of` says which GPU a pointer belongs to: `__cuda_array_interface__` does not.
    """
    if hasattr(x, "__dlpack__") and hasattr(x, "__dlpack_device__"):
        return _read_dlpack(x, stream, what)
    interface = getattr(x, "__cuda_array_interface__", None)
    return None if interface is None else _read_interface(x, interface, what, ordinal_of)


def _read_dlpack(x: Any, stream: int, what: str) -> ForeignArray:
    kind = int(x.__dlpack_device__()[0])
    try:
        capsule = x.__dlpack__(stream=stream) if kind == CUDA else x.__dlpack__()
    except (BufferError, RuntimeError, TypeError) as error:
        raise DtypeError(f"{what}: DLPack tensor cannot be read: {error}") from None
    tensor = ctypes.cast(_capsule_pointer(capsule, b"dltensor"), POINTER(_Managed)).contents.tensor
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    strides = tuple(tensor.strides[i] for i in range(tensor.ndim)) if tensor.strides else None
    name = _NAMES.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    if name is None:
        raise DtypeError(f"{what} must be float32, float16 or bfloat16, not DLPack type {tensor.code}:{tensor.bits}")
    _refuse_strides(shape, strides, what)
    pointer = (tensor.data or 0) + tensor.byte_offset
    return ForeignArray(pointer, shape, name, tensor.device_type, tensor.device_id, (x, capsule))


def _read_interface(x: Any, interface: dict[str, Any], what: str, ordinal_of: Callable[[int], int]) -> ForeignArray:
    names = {typestr: name for name, typestr in TYPESTR.items()}
    name = names.get(interface["typestr"])
    if name is None:
        raise DtypeError(f"{what} must be float32 or float16, not {interface['typestr']}")
    shape, strides = tuple(interface["shape"]), interface.get("strides")
    in_items = None if strides is None else tuple(s // ITEM_BYTES[name] for s in strides)
    _refuse_strides(shape, in_items, what)
    pointer = int(interface["data"][0])
    return ForeignArray(pointer, shape, name, CUDA, ordinal_of(pointer), x)


def _refuse_strides(shape: tuple[int, ...], strides: tuple[int, ...] | None, what: str) -> None:
    expected, ok = 1, True
    for size, stride in zip(reversed(shape), reversed(strides or ()), strict=False):
        ok = ok and (size == 1 or stride == expected)
        expected *= size
    if not ok and 0 not in shape:
        raise LayoutError(f"{what} must be contiguous, its strides are {strides}; x.contiguous() copies it")


_api = ctypes.pythonapi
_api.PyCapsule_New.restype, _api.PyCapsule_New.argtypes = py_object, (c_void_p, c_char_p, c_void_p)
_api.PyCapsule_GetPointer.restype, _api.PyCapsule_GetPointer.argtypes = c_void_p, (py_object, c_char_p)
_Deleter = ctypes.CFUNCTYPE(None, c_void_p)
_Destructor = ctypes.CFUNCTYPE(None, c_void_p)
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, c_void_p, c_char_p)(("PyCapsule_IsValid", _api))
_raw_pointer = ctypes.PYFUNCTYPE(c_void_p, c_void_p, c_char_p)(("PyCapsule_GetPointer", _api))
_given: dict[int, Any] = {}  # address of a tensor that was given out -> what keeps it


def _forget(address: int) -> None:
    _given.pop(address, None)


_delete = _Deleter(_forget)


def _drop_capsule(capsule: int) -> None:
    if _is_valid(capsule, b"dltensor"):  # nobody took it
        _forget(_raw_pointer(capsule, b"dltensor"))


_destroy = _Destructor(_drop_capsule)


def _capsule_pointer(capsule: Any, name: bytes) -> int:
    return int(_api.PyCapsule_GetPointer(capsule, name))


def write(view: ForeignArray) -> Any:
    """A DLPack capsule over memory that stays while somebody has it."""
    ndim = len(view.shape)
    shape = (c_int64 * max(ndim, 1))(*view.shape)
    code, bits = _CODES[view.dtype]
    tensor = _Tensor(view.pointer, view.device_type, view.device_id, ndim, code, bits, 1, shape, None, 0)
    managed = _Managed(tensor, None, ctypes.cast(_delete, c_void_p).value)
    address = ctypes.addressof(managed)
    _given[address] = (managed, shape, view.owner)
    return _api.PyCapsule_New(address, b"dltensor", ctypes.cast(_destroy, c_void_p))
