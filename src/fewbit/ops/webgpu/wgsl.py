"""What a kernel is: WGSL with its bindings, numbers that it takes as parameters, and what it asks of an adapter."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Literal

GRID_X = 32768  # workgroups side by side; more of them go on in z
SUBGROUPS, F16 = "subgroups", "f16"  # what WGSL enables
COUNTS = ("tokens", "logits", "sequences", "samples")  # numbers at the front of a step's integers


@dataclass(frozen=True)
class Binding:
    """A storage buffer of a kernel."""

    name: str
    type: str = "f32"
    access: Literal["read", "read_write"] = "read"


def reads(name: str, type: str = "f32") -> Binding:
    return Binding(name, type)


def writes(name: str, type: str = "f32") -> Binding:
    return Binding(name, type, "read_write")


@dataclass(frozen=True)
class Kernel:
    """A compute shader. Its parameters are a uniform struct P; its entry point is `main`.

    `enables` names extensions of WGSL. Browsers want them at the top of a shader; wgpu knows subgroups without.
    """

    name: str
    bindings: tuple[Binding, ...]
    parameters: tuple[tuple[str, str], ...]
    body: str
    enables: tuple[str, ...] = ()

    @cached_property
    def source(self) -> str:
        """The shader, without what it enables."""
        fields = "".join(f"  {name}: {kind},\n" for name, kind in self.parameters)
        lines = [f"struct Parameters {{\n{fields}}}", "@group(0) @binding(0) var<uniform> P: Parameters;"]
        for number, one in enumerate(self.bindings, 1):
            access = f"storage, {one.access}"
            lines.append(f"@group(0) @binding({number}) var<{access}> {one.name}: array<{one.type}>;")
        return "\n".join([*lines, self.body, ""])

    @property
    def portable_source(self) -> str:
        """The shader as browsers compile it."""
        return "".join(f"enable {name};\n" for name in self.enables) + self.source

    @property
    def native_source(self) -> str:
        """The shader as wgpu compiles it."""
        return "".join(f"enable {name};\n" for name in self.enables if name != SUBGROUPS) + self.source

    @cached_property
    def digest(self) -> str:
        return blake2b(self.portable_source.encode(), digest_size=16).hexdigest()


def u32s(*names: str) -> tuple[tuple[str, str], ...]:
    return tuple((name, "u32") for name in names)


def f32s(*names: str) -> tuple[tuple[str, str], ...]:
    return tuple((name, "f32") for name in names)


def main(body: str, threads: int, subgroups: bool = False) -> str:
    """The entry point: `wg` is the workgroup, `t` the thread in it, `block` counts workgroups over x and z."""
    extra = ", @builtin(subgroup_size) lanes: u32" if subgroups else ""
    return (
        f"@compute @workgroup_size({threads})\n"
        f"fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) t: u32{extra}) {{\n"
        f"  let block = wg.x + wg.z * {GRID_X}u;\n{body}\n}}"
    )


def blocks(count: int) -> tuple[int, int]:
    """Workgroups in x and z for so many blocks.

    >>> blocks(70000)
    (32768, 3)
    """
    return (max(count, 1), 1) if count <= GRID_X else (GRID_X, -(-count // GRID_X))
