"""Which GPUs there are: what `fewbit doctor` shows of them, or one sentence that says why there is none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...errors import ExtraError, FewbitError, RequestError
from .compile import compiler_version, package

MIN_ARCH = 80  # sm_80: kernels use mma of 16 x 8 x 16 and cp.async
ON_CPU = "without one models run with device='cpu'"


@dataclass(frozen=True)
class Card:
    name: str
    compute_capability: str  # 9.0 is sm_90
    free_bytes: int
    total_bytes: int


@dataclass(frozen=True)
class Cards:
    """What an `LLM(device="cuda")` would find."""

    cards: list[Card]
    driver: str | None  # the CUDA version that the driver supports
    nvrtc: str | None  # the compiler's
    missing: str | None  # why no model can run on a GPU


def describe() -> Cards:
    """Opens every GPU, which takes some tenths of a second each."""
    driver, nvrtc, cards, missing = None, None, list[Card](), list[str]()
    try:
        nvrtc = compiler_version()
    except FewbitError as error:
        missing.append(str(error))
    try:
        driver = readable_version(int(_call("cuDriverGetVersion")))
        cards = [_card(number) for number in range(count())]
        check(0)
    except FewbitError as error:
        missing.append(str(error))
    return Cards(cards, driver, nvrtc, missing[0] if missing else None)


def readable_version(number: int) -> str:
    """
    >>> readable_version(13020)
    '13.2'
    """
    return f"{number // 1000}.{number % 1000 // 10}"


def count() -> int:
    """How many GPUs the driver finds; at least one."""
    package("cuda.core")
    no_card = package("cuda.bindings.driver").CUresult.CUDA_ERROR_NO_DEVICE
    found = 0
    if _result("cuInit", 0)[0] != no_card:
        _call("cuInit", 0)
        found = int(_call("cuDeviceGetCount"))
    if not found:
        raise ExtraError(f"NVIDIA's driver finds no GPU here, see `nvidia-smi` and CUDA_VISIBLE_DEVICES; {ON_CPU}")
    return found


def check(ordinal: int) -> None:
    """Whether kernels can run on the GPU of a number, or one sentence that says why not."""
    found = count()
    if ordinal >= found:
        there = "one, 'cuda:0'" if found == 1 else f"{found}, 'cuda:0' to 'cuda:{found - 1}'"
        raise RequestError(f"there is no device 'cuda:{ordinal}'; this machine has {there}")
    device = _call("cuDeviceGet", ordinal)
    major, minor = _capability(device)
    if 10 * major + minor < MIN_ARCH:
        raise ExtraError(
            f"{_name(device)} has compute capability {major}.{minor}, GPUs must have 8.0 at least; {ON_CPU}"
        )


def _card(ordinal: int) -> Card:
    device = _call("cuDeviceGet", ordinal)
    context = _call("cuDevicePrimaryCtxRetain", device)
    try:
        _call("cuCtxPushCurrent", context)
        free, total = _call("cuMemGetInfo")
        _call("cuCtxPopCurrent")
    finally:
        _call("cuDevicePrimaryCtxRelease", device)
    return Card(_name(device), "{}.{}".format(*_capability(device)), int(free), int(total))


def _name(device: Any) -> str:
    return bytes(_call("cuDeviceGetName", 128, device)).split(b"\0")[0].decode()


def _capability(device: Any) -> tuple[int, int]:
    attributes = package("cuda.bindings.driver").CUdevice_attribute
    major, minor = (
        attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
        attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
    )
    return int(_call("cuDeviceGetAttribute", major, device)), int(_call("cuDeviceGetAttribute", minor, device))


def _call(name: str, *args: Any) -> Any:
    """What a function of the driver gives."""
    status, *results = _result(name, *args)
    if int(status):
        raise ExtraError(
            f"NVIDIA's driver gives {getattr(status, 'name', status)} for {name}, see `nvidia-smi`; {ON_CPU}"
        )
    return results[0] if len(results) == 1 else results


def _result(name: str, *args: Any) -> tuple[Any, ...]:
    function = getattr(package("cuda.bindings.driver"), name)
    try:
        return tuple(function(*args))
    except RuntimeError:  # the package found no library of the driver
        raise ExtraError(f"there is no NVIDIA driver here, which comes with the system; {ON_CPU}") from None
