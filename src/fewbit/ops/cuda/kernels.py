"""The kernels by name: an entry point around each template of csrc/cuda, with the constants that it is compiled for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from ...formats.spec import Format
from ...formats.table import GRIDS

PLANES = "uint8_t* q0, uint8_t* q1, uint8_t* smalls, uint8_t* scales"
PLANES_GIVEN = "{q0, q1, smalls, scales}"
FIELDS = "int row_bytes, int field0, int field1"
FIELDS_GIVEN = "{row_bytes, {field0, field1}}"
GRID_NAMES = {f.native_name for f in GRIDS}


@dataclass(frozen=True)
class Entry:
    """A kernel to compile: its name, the header that it is in, its text."""

    name: str
    header: str
    text: str
    grids: bool = False  # whether it needs the tables of points
    shared: int = 0  # bytes of shared memory that a launch gives it

    @property
    def source(self) -> str:
        return program((self,))


def program(entries: tuple[Entry, ...]) -> str:
    """One source for several kernels."""
    without = "" if any(e.grids for e in entries) else "#define FEWBIT_WITHOUT_GRIDS\n"
    headers = dict.fromkeys(e.header for e in entries)
    return without + "".join(f'#include "cuda/{h}"\n' for h in headers) + "".join(e.text for e in entries)


def make_entry(
    header: str, name: str, threads: int, parameters: str, call: str, grids: bool = False, attributes: str = ""
) -> Entry:
    about = f"__launch_bounds__({threads}) {attributes}".rstrip()
    text = f'\nextern "C" __global__ void {about} {name}({parameters}) {{\n  fewbit::{call};\n}}\n'
    return Entry(name, header, text, grids)


def record_name(fmt: Format) -> str:
    return f"fewbit::formats::{fmt.native_name}"


def tag(fmt: Format) -> str:
    return f"{fmt.native_name}_g{fmt.group}"


@dataclass(frozen=True)
class GemvShape:
    """Warps by rows and along k, tiles in flight, row tiles of a warp."""

    warps_rows: int
    warps_k: int
    in_flight: int
    row_tiles: int

    @property
    def threads(self) -> int:
        return 32 * self.warps_rows * self.warps_k

    @property
    def rows(self) -> int:
        return 8 * self.warps_rows * self.row_tiles


@dataclass(frozen=True)
class SkinnyShape:
    """x from L1: warps along k, tiles in flight, pairs of row tiles of a warp, tiles of 8 tokens of a block."""

    warps_k: int
    in_flight: int
    row_pairs: int
    token_tiles: int
    columns: int = 0  # tiles along k that it is compiled for; 0: any
    is_many: bool = False  # blocks share the tokens, too

    @property
    def threads(self) -> int:
        return 32 * self.warps_k

    @property
    def rows(self) -> int:
        return 16 * self.row_pairs


@dataclass(frozen=True)
class SharedShape:
    """x through shared memory: warps by rows, pairs of row tiles, tiles of 8 tokens, stages, blocks along k."""

    warps: int
    row_pairs: int
    token_tiles: int
    stages: int
    blocks_k: int
    is_cluster: bool = False  # the blocks along k are a cluster (8 at most), where the GPU has clusters
    columns: int = 0  # tiles along k that it is compiled for; 0: any

    @property
    def threads(self) -> int:
        return 32 * self.warps

    @property
    def rows(self) -> int:
        return 16 * self.warps * self.row_pairs


@cache
def repack(fmt: Format) -> Entry:
    parameters = (
        f"const uint8_t* data, {PLANES}, {FIELDS}, int row, int tile, int step, int n, int k, int columns, "
        "uint32_t* range"
    )
    given = f"data, {PLANES_GIVEN}, {FIELDS_GIVEN}, {{row, tile, step}}, n, k, columns, range"
    call = f"repack<{record_name(fmt)}, {fmt.group}>({given})"
    return make_entry("repack.h", f"repack_{tag(fmt)}", 128, parameters, call)


@cache
def decode_tiles(fmt: Format, dtype: str) -> Entry:
    call = (
        f"decode_tiles<{record_name(fmt)}, {fmt.group}, fewbit::Real::{dtype}>({PLANES_GIVEN}, out, n, width, columns)"
    )
    parameters = f"{PLANES}, void* out, int n, int width, int columns"
    return make_entry("decode.h", f"decode_{tag(fmt)}_{dtype}", 128, parameters, call)


@cache
def decode_rows(fmt: Format, dtype: str) -> Entry:
    parameters = f"const uint8_t* data, {FIELDS}, int group, void* out, int n, int k, int width"
    call = f"decode_rows<{record_name(fmt)}, fewbit::Real::{dtype}>(data, {FIELDS_GIVEN}, group, out, n, k, width)"
    name = f"decode_rows_{fmt.native_name}_{dtype}"
    return make_entry("rows.h", name, 256, parameters, call, fmt.native_name in GRID_NAMES)


@cache
def find_largest(fmt: Format) -> Entry:
    parameters = f"const uint8_t* data, {FIELDS}, int group, uint32_t* largest, int k"
    call = f"find_largest<{record_name(fmt)}>(data, {FIELDS_GIVEN}, group, largest, k)"
    name = f"find_largest_{fmt.native_name}"
    return make_entry("rows.h", name, 256, parameters, call, fmt.native_name in GRID_NAMES)


@cache
def encode(fmt: Format, dtype: str) -> Entry:
    call = f"encode<{record_name(fmt)}, {fmt.group}, fewbit::Real::{dtype}>(x, out, {FIELDS_GIVEN}, n, k)"
    parameters = f"const void* x, uint8_t* out, {FIELDS}, int n, int k"
    return make_entry("encode.h", f"encode_{tag(fmt)}_{dtype}", 128, parameters, call)


@cache
def cast_rows(source: str, target: str) -> Entry:
    parameters = "const void* x, void* y, int from, int to"
    call = f"cast_rows<fewbit::Real::{source}, fewbit::Real::{target}>(x, y, from, to)"
    return make_entry("activations.h", f"cast_rows_{source}_{target}", 256, parameters, call)
