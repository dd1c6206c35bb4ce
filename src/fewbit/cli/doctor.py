"""`fewbit doctor`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from .options import as_json
from .output import Rows, print_json, print_table

if TYPE_CHECKING:
    from ..bench.limits import Limits
    from ..bench.machine import Machine
    from ..ops.cuda.cards import Card, Cards
    from ..ops.topology import NumaNode

NATIVE_BUILD = " (those of the machine it was built on; FEWBIT_TARGETS=all compiles every one)"


@click.command()
@click.option("--measure", "with_limits", is_flag=True, help="Measure read bandwidth and multiply rates too.")
@as_json
def doctor(with_limits: bool, as_json: bool) -> None:
    """What this machine offers, and what fewbit chose.

    \b
    Examples:
      fewbit doctor
      fewbit doctor --measure
      fewbit doctor --json
      FEWBIT_ISA=scalar fewbit doctor
    """
    from ..bench.limits import measure_limits
    from ..bench.machine import describe

    machine = describe()
    limits = measure_limits() if with_limits else []
    if as_json:
        print_json(asdict(machine) | ({"limits": [asdict(row) for row in limits]} if with_limits else {}))
        return
    print_table({"machine": "left", "": "left"}, machine_rows(machine))
    if limits:
        heads = ["memory GB/s", "with prefetch", "cache GB/s", "int8 GMAC/s", "bf16 GMAC/s", "f32 GMAC/s"]
        click.echo()
        print_table({"threads": "right", **dict.fromkeys(heads, "right")}, [limit_cells(row) for row in limits])
    for note in machine.notes:
        click.echo(f"\nNote: {note}.")


def limit_cells(row: Limits) -> list[str]:
    rates = (
        row.memory_gb_per_s,
        row.memory_prefetch_gb_per_s,
        row.cache_gb_per_s,
        row.int8_gmac_per_s,
        row.bf16_gmac_per_s,
        row.f32_gmac_per_s,
    )
    return [str(row.threads), *(f"{rate:.4g}" if rate else "-" for rate in rates)]


def machine_rows(m: Machine) -> Rows:
    chosen = f"{m.isa} (FEWBIT_ISA={m.forced_isa})" if m.forced_isa else m.isa
    paths = sorted(set(m.kernels.values()))
    names = {path: [name for name, p in m.kernels.items() if p == path] for path in paths}
    return [
        ["CPU", m.cpu],
        ["system", f"{m.system}, Python {m.python}"],
        ["cores", f"{m.usable_cores} usable, {m.cpus} hardware threads"],
        *([f"NUMA node {node.number}", node_text(node)] for node in m.nodes),
        ["threads", str(m.threads)],
        ["compiled in", ", ".join(m.known_isas) + (NATIVE_BUILD if m.is_native_build else "")],
        ["instruction sets", ", ".join(m.isas)],
        ["in use", chosen],
        ["missing", "; ".join(f"{name}: {adds}" for name, adds in m.missing_isas.items()) or "-"],
        *gpu_rows(m.gpus),
        *([f"GPU webgpu:{one.number}", one.described()] for one in m.webgpu),
        ["activations", m.activations],
        *([f"kernels: {path}", " ".join(names[path])] for path in paths),
        ["packages", versions(m.packages)],
        ["optional", versions(m.optional_packages)],
    ]


def node_text(node: NumaNode) -> str:
    """
    >>> from fewbit.ops.topology import NumaNode
    >>> node_text(NumaNode(0, ((0, 4), (1, 5)), 64 << 30)), node_text(NumaNode(1, (), 0))
    ('2 cores, CPUs 0-1,4-5, 64.0 GiB', 'no cores, no memory')
    """
    from ..ops.topology import write_list

    cpus = f"{len(node.cores)} cores, CPUs {write_list(node.cpus)}" if node.cores else "no cores"
    return f"{cpus}, {node.memory_bytes / 2**30:.1f} GiB" if node.memory_bytes else f"{cpus}, no memory"


def gpu_rows(found: Cards) -> Rows:
    """A row for each GPU, and one with the versions of driver and compiler, or one that says what is missing."""
    rows = [[f"GPU cuda:{number}", gpu_text(card)] for number, card in enumerate(found.cards)]
    if found.missing:
        return [*rows, ["GPU" if not rows else "", found.missing]]
    return [*rows, ["CUDA", f"driver for {found.driver}, NVRTC {found.nvrtc}"]]


def gpu_text(card: Card) -> str:
    """
    >>> from fewbit.ops.cuda.cards import Card
    >>> gpu_text(Card("NVIDIA H200", "9.0", 100 << 30, 140 << 30))
    'NVIDIA H200, compute capability 9.0, 100.0 of 140.0 GiB free'
    """
    free, total = card.free_bytes / 2**30, card.total_bytes / 2**30
    return f"{card.name}, compute capability {card.compute_capability}, {free:.1f} of {total:.1f} GiB free"


def versions(packages: dict[str, str | None]) -> str:
    """Packages in a line.

    >>> versions({"numpy": "2.0", "torch": None})
    'numpy 2.0, torch (not found)'
    """
    return ", ".join(f"{name} {found or '(not found)'}" for name, found in packages.items())
