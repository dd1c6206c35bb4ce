"""This machine as fewbit sees it: what `fewbit doctor` prints."""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from ..formats import Format, all_formats
from ..ops import cpu
from ..ops.cores import usable_cores
from ..ops.cuda import cards
from ..ops.topology import NumaNode, numa_nodes
from ..ops.webgpu import AdapterInfo, list_adapters

REQUIRED = ("fewbit", "numpy", "tokenizers", "jinja2", "click", "rich")
OPTIONAL = ("cuda-core", "nvidia-cuda-nvrtc", "nvidia-cublas", "torch", "triton", "wgpu", "starlette", "uvicorn",
            "msgspec", "llguidance", "huggingface_hub", "ray")  # fmt: skip

# What each instruction set adds to the next one.
ADDS = {
    "amx": "matrix tiles, for prompts and batches",
    "avx512": "AVX-512 with integer dot products (VNNI)",
    "avx512bw": "vectors of 512 bits",
    "avx2": "vectors of 256 bits",
    "neon_i8mm": "integer matrix products, for prompts and batches",
    "neon_dotprod": "integer dot products",
    "neon": "vectors of 128 bits",
}
# What FEWBIT_TARGETS=all compiles, by architecture.
COMPLETE = [
    ["amx", "avx512", "avx512bw", "avx2", "scalar"],
    ["neon_i8mm", "neon_dotprod", "neon", "scalar"],
    ["scalar"],
]
REBUILD = "run `pip install --force-reinstall .` in the source tree on this machine"
SLOW = (
    "expect a small part of the usual speed (measured on a Neoverse-N1, SmolLM2 135M in Q4_1 with 2 threads: "
    "4 tokens/s with scalar kernels, 101 with llama.cpp)"
)


@dataclass(frozen=True)
class Machine:
    cpu: str
    system: str
    python: str
    cpus: int  # hardware threads
    usable_cores: int  # physical ones that this process may use
    nodes: list[NumaNode]  # with the CPUs and the memory that it may use
    known_isas: list[str]  # instruction sets that are compiled in, best first
    is_native_build: bool  # whether only those of the machine that built it are
    isas: list[str]  # those of them that can be used here
    missing_isas: dict[str, str]  # better ones than these -> what they would add
    isa: str  # the one in use
    forced_isa: str | None  # what FEWBIT_ISA says
    notes: list[str]  # sentences on what costs speed here
    threads: int
    gpus: cards.Cards
    webgpu: list[AdapterInfo]
    activations: str  # default precision of the inputs of products
    kernels: dict[str, str]  # format -> the kernels that `linear` takes, by batch size
    packages: dict[str, str | None]  # name -> version, None if it is missing
    optional_packages: dict[str, str | None]


def describe() -> Machine:
    """Looks at this machine.

    >>> machine = describe()
    >>> machine.isa in machine.isas
    True
    """
    known, usable = cpu.known_isas(), cpu.isas()
    return Machine(
        cpu=cpu_name(),
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        cpus=os.cpu_count() or 1,
        usable_cores=usable_cores(),
        nodes=numa_nodes(),
        known_isas=known,
        is_native_build=is_native(known),
        isas=usable,
        missing_isas=missing(known, usable),
        isa=cpu.isa(),
        forced_isa=os.environ.get("FEWBIT_ISA"),
        notes=notes(known, usable, cpu.isa(), platform.machine()),
        threads=cpu.default_threads(),
        gpus=cards.describe(),
        webgpu=list_adapters(),
        activations=cpu.describe_activations(),
        kernels={name: kernels_of(fmt) for name, fmt in all_formats().items()},
        packages={name: version(name) for name in REQUIRED},
        optional_packages={name: version(name) for name in OPTIONAL},
    )


def kernels_of(fmt: Format) -> str:
    """The kernels for weights of a format, by batch size.

    >>> kernels_of(all_formats()["f32"])
    'f32 1+'
    """
    ranges = cpu.kernel_ranges(fmt)
    lasts = [first - 1 for first, _ in ranges[1:]]
    limited = [f"{name} {first}-{last}" for (first, name), last in zip(ranges, lasts, strict=False)]
    return ", ".join([*limited, f"{ranges[-1][1]} {ranges[-1][0]}+"])


def is_native(known: list[str]) -> bool:
    """Whether a build has only the instruction sets of the machine that it was compiled on.

    >>> is_native(["avx2", "scalar"]), is_native(["scalar"])
    (True, False)
    """
    return known not in COMPLETE


def missing(known: list[str], usable: list[str]) -> dict[str, str]:
    """Better instruction sets than the best one of this machine, with what each would add.

    >>> missing(["neon_i8mm", "neon_dotprod", "neon", "scalar"], ["neon_dotprod", "neon", "scalar"])
    {'neon_i8mm': 'integer matrix products, for prompts and batches'}
    """
    return {name: ADDS[name] for name in known[: known.index(usable[0])]}


def notes(known: list[str], usable: list[str], used: str, architecture: str) -> list[str]:
    """Remarks on what makes this machine slow.

    >>> notes(["avx2", "scalar"], ["avx2", "scalar"], "avx2", "x86_64")
    []
    """
    if used != usable[0]:
        return [f"{used} was asked for; {usable[0]} is better and can be used here"]
    if used != "scalar":
        return []
    if is_native(known):
        lost = ", ".join(name for name in known if name not in usable)
        return [f"this build was compiled on another machine, for {lost}; scalar kernels run here; {REBUILD}"]
    if known == ["scalar"]:
        return [f"this build has no kernels for {architecture} but scalar ones: {SLOW}"]
    return [f"this CPU has no kernels of its own (it has none of {', '.join(known[:-1])}), scalar ones run: {SLOW}"]


def only_scalar() -> bool:
    """Whether nothing better than scalar kernels can be used here."""
    return cpu.isas() == ["scalar"]


def cpu_name() -> str:
    """The processor's name, or else its architecture."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        named = name_in(info.read_text())
    elif platform.system() == "Darwin":
        named = command_output("sysctl", "-n", "machdep.cpu.brand_string")
    else:
        named = None
    return named or platform.processor() or platform.machine()


# By the numbers of the maker and of the part, as Linux tells them on ARM.
ARM_CORES = {
    ("0x41", "0xd03"): "Cortex-A53",
    ("0x41", "0xd08"): "Cortex-A72",
    ("0x41", "0xd0b"): "Cortex-A76",
    ("0x41", "0xd0c"): "Neoverse-N1",
    ("0x41", "0xd40"): "Neoverse-V1",
    ("0x41", "0xd49"): "Neoverse-N2",
    ("0x41", "0xd4f"): "Neoverse-V2",
}


def name_in(cpuinfo: str) -> str | None:
    """The processor's name in the text of /proc/cpuinfo.

    >>> name_in("processor: 0\\nCPU implementer: 0x41\\nCPU part: 0xd0c")
    'Neoverse-N1'
    """
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in cpuinfo.splitlines())}
    core = ARM_CORES.get((facts.get("CPU implementer", ""), facts.get("CPU part", "")))
    return facts.get("model name") or facts.get("Model") or core


def command_output(*command: str) -> str | None:
    """The output of a command; None if it fails.

    >>> command_output("no-such-command") is None
    True
    """
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def version(package: str) -> str | None:
    """The installed version of a package; the package is not imported.

    >>> version("no-such-package") is None
    True
    """
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
