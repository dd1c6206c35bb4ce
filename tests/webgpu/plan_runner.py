"""A runtime that knows nothing but a plan's JSON: buffers, then one dispatch after another."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fewbit.arrays import Bytes, Floats, Ints
from fewbit.ops.webgpu import open_gpu


class PlanRunner:
    """A plan on an adapter, with the tensors of the model's file by name."""

    def __init__(self, plan: Mapping[str, Any], tensors: Mapping[str, Any]) -> None:
        self.plan, self.gpu = plan, open_gpu()
        self.device, self.usage = self.gpu._device, self.gpu._usage
        every = self.usage.STORAGE | self.usage.COPY_SRC | self.usage.COPY_DST
        self.handles = [
            self.device.create_buffer_with_data(data=_contents(one, tensors), usage=every) for one in plan["buffers"]
        ]
        self.pipelines: dict[str, Any] = {}

    def run(self, program: str, numbers: Ints, counts: Mapping[str, int]) -> Floats:
        """The first row of a program's result, for the integers of a step."""
        self.gpu.queue.write_buffer(self.handles[self.plan["step"]["buffer"]], 0, numbers)
        encoder = self.device.create_command_encoder()
        work = encoder.begin_compute_pass()
        for one in self.plan["programs"][program]["dispatches"]:
            pipeline = self._pipeline(one["kernel"])
            uniform = b64decode(one["parameters"]).ljust(512, b"\0")
            buffers = [self.device.create_buffer_with_data(data=uniform, usage=self.usage.UNIFORM)]
            buffers += [self.handles[n] for n in one["buffers"]]
            entries = [{"binding": n, "resource": {"buffer": b}} for n, b in enumerate(buffers)]
            layout = pipeline.get_bind_group_layout(0)
            work.set_pipeline(pipeline)
            work.set_bind_group(0, self.device.create_bind_group(layout=layout, entries=entries))
            grid = [times if name == "one" else -(-counts[name] // per) * times for name, per, times in one["grid"]]
            work.dispatch_workgroups(*grid)
        work.end()
        self.gpu.queue.submit([encoder.finish()])
        result = self.plan["programs"][program]["result"]
        raw = self.gpu.queue.read_buffer(self.handles[result["buffer"]], 4 * result["offset"], 4 * result["width"])
        return np.frombuffer(raw, np.float32)

    def step(self, tokens: Sequence[int], position: int) -> Floats:
        """Logits after the next tokens of the one sequence that a browser has."""
        counts = {"tokens": len(tokens), "logits": 1, "sequences": 1, "samples": 0}
        program = "token" if len(tokens) == 1 else "prompt"
        return self.run(program, self._numbers(tokens, position, counts), counts)

    def _numbers(self, tokens: Sequence[int], position: int, counts: Mapping[str, int]) -> Ints:
        """The integers of a step: counts, where each array begins, the arrays."""
        step, cache, length = self.plan["step"], self.plan["cache"], position + len(tokens)
        positions, pages = list(range(position, length)), -(-length // cache["page_tokens"])
        slots = [] if not cache["slots"] else [1 if position else 0]
        arrays = {
            "tokens": list(tokens), "positions": positions, "sequences": [0] * len(tokens),
            "q_starts": [0, len(tokens)], "lengths": [length], "logits_indices": [len(tokens) - 1], "reads": slots,
            "writes": [1] * len(slots),
        }  # fmt: skip
        for group in range(cache["groups"]):
            arrays |= {f"slots{group}": positions, f"starts{group}": [0, pages], f"tables{group}": list(range(pages))}
        sizes = [len(arrays[name]) for name in step["arrays"]]
        first = len(step["counts"]) + len(step["arrays"])
        begins = first + np.cumsum([0, *sizes[:-1]])
        head = [counts[name] for name in step["counts"]]
        return np.concatenate([head, begins, *(arrays[name] for name in step["arrays"])]).astype(np.int32)

    def _pipeline(self, digest: str) -> Any:
        if digest not in self.pipelines:
            code = self.plan["kernels"][digest]["wgsl"].replace("enable subgroups;\n", "")
            module = self.device.create_shader_module(code=code)
            self.pipelines[digest] = self.device.create_compute_pipeline(
                layout="auto", compute={"module": module, "entry_point": "main"}
            )
        return self.pipelines[digest]


def _contents(buffer: Mapping[str, Any], tensors: Mapping[str, Any]) -> Bytes:
    data = np.zeros(-(-buffer["bytes"] // 4) * 4, np.uint8)
    for part in buffer["parts"]:
        if "base64" in part:
            raw = np.frombuffer(b64decode(part["base64"]), np.uint8)
        else:
            source = tensors[part["tensor"]].stored[part["offset"] :][: part["bytes"]].reshape(-1, part["row"])
            raw = np.pad(source, ((0, 0), (0, part["stride"] - part["row"]))).reshape(-1)
        data[part["at"] : part["at"] + len(raw)] = raw
    return data
