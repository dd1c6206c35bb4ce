"""Times the encoding of an image beside llama.cpp's mtmd: Qwen3-VL-2B's shape, random weights, on the CPU.

    python benchmarks/vision.py
    python benchmarks/vision.py --profile
    python benchmarks/vision.py --llama-cpp ~/llama.cpp --build ~/llama.cpp/build --rounds 5

The first prints the time alone, the second what each kind of operation takes. With --llama-cpp, a source folder whose
target `mtmd` was built in --build, the program mtmd_encode.cpp is compiled against it. Both take turns, and the ratio
is the median over the rounds of llama.cpp's time over fewbit's: above 1, fewbit takes less time. It is printed only
where both results agree. On a machine that others use too, `--cpu-time --threads 1` takes processor time; with more
threads that would count those that spin while they wait.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from vision_model import LAYERS, write_model

from fewbit.arrays import Floats
from fewbit.encoding import ImageEncoder
from fewbit.errors import FewbitError
from fewbit.files.gguf import read_gguf
from fewbit.images import PreparedImage, open_picture, to_floats
from fewbit.load_options import LoadOptions

LARGEST_ERROR = 0.05  # both quantize activations to 8 bits, each in its own way


class Fewbit:
    """The encoder in this process."""

    def __init__(self, path: Path, pixels: Any, threads: int | None, cpu_time: bool = False) -> None:
        self.clock = time.process_time if cpu_time else time.perf_counter
        self.encoder = ImageEncoder(read_gguf(path), LoadOptions(threads=threads))
        self.stages = self.encoder.load()
        self.image: PreparedImage = self.encoder.model.prepare(open_picture(pixels))
        self.rows = self.encode()

    def encode(self) -> Floats:
        return np.concatenate(self.encoder.encode(self.image), axis=1)

    def seconds(self) -> float:
        start = self.clock()
        self.encode()
        return self.clock() - start

    def profile(self) -> dict[str, float]:
        """Seconds of each kind of operation."""
        plans = [plan for stage in self.stages for plan in stage.executor.plans.values()]
        for plan in plans:
            plan.profile(True)
        start = time.perf_counter()
        self.encode()
        total, found = time.perf_counter() - start, Counter[str]()
        for plan in plans:
            for name, seconds in plan.seconds():
                found[name] += seconds
            plan.profile(False)
        found["beside them"] = total - sum(found.values())
        return dict(found.most_common())


class Peer:
    """llama.cpp's encoder in a process of its own."""

    def __init__(
        self, source: Path, build: Path, path: Path, pixels: Floats, threads: int, flash: bool, cpu_time: bool = False
    ) -> None:
        folder, self.column = path.parent, int(cpu_time)
        program = compile_peer(source, build, folder)
        (folder / "pixels").write_bytes(np.ascontiguousarray(pixels, np.float32).tobytes())
        self.out = folder / f"rows{int(flash)}"
        command = [program, path, folder / "pixels", len(pixels), threads, int(flash), self.out]
        self.process = subprocess.Popen(
            [*map(str, command)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._read()
        self.seconds()

    def seconds(self) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self._read().split()[self.column])

    @property
    def rows(self) -> Floats:
        return np.frombuffer(self.out.read_bytes(), np.float32)

    def _read(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise FewbitError(f"mtmd_encode ended with status {self.process.wait()}")
        return line

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def compile_peer(source: Path, build: Path, folder: Path) -> Path:
    program, libraries = folder / "mtmd_encode", build / "bin"
    includes = [source / "tools/mtmd", source / "ggml/include", source / "include"]
    subprocess.run(
        [
            "c++", "-std=c++17", "-O2", *(f"-I{one}" for one in includes),
            str(Path(__file__).with_name("mtmd_encode.cpp")),
            f"-L{libraries}", f"-Wl,-rpath,{libraries}", "-lmtmd", "-lllama", "-lggml", "-lggml-base", "-lggml-cpu",
            "-o", str(program),
        ],
        check=True,
    )  # fmt: skip
    return program


def picture(side: int) -> Any:
    """Soft colors with some noise."""
    rng = np.random.default_rng(0)
    waves = np.mgrid[:side, :side][..., None] / side * np.array([3.0, 5.0, 7.0])
    soft = np.sin(waves[0]) * np.cos(waves[1]) * 100 + 128
    return np.clip(soft + rng.normal(0, 12, soft.shape), 0, 255).astype(np.uint8)


def relative_error(a: Floats, b: Floats) -> float:
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def measure(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    path = args.model or folder / "mmproj.gguf"
    if not path.exists():
        write_model(path, args.layers)
    pixels = picture(args.side)
    ours = Fewbit(path, pixels, args.threads, args.cpu_time)
    layers = len(ours.encoder.model.blk)  # type: ignore[attr-defined]
    result: dict[str, Any] = {"side": args.side, "layers": layers, "threads": args.threads, "cpu_time": args.cpu_time}
    if args.profile:
        result["profile"] = {name: round(seconds, 4) for name, seconds in ours.profile().items()}
    if args.llama_cpp is None:
        result["fewbit_s"] = round(median(ours.seconds() for _ in range(args.rounds)), 3)
        return result
    floats = to_floats(pixels, ours.encoder.model.pixels)  # type: ignore[attr-defined]
    local = folder / "model.gguf"
    local.symlink_to(path.resolve())
    build = args.build or args.llama_cpp / "build"
    peer = Peer(args.llama_cpp, build, local, floats, args.threads, not args.no_flash, args.cpu_time)
    try:
        turns = [(ours.seconds(), peer.seconds()) for _ in range(args.rounds)]
    finally:
        peer.close()
    result["relative_error"] = round(relative_error(ours.rows.reshape(-1), peer.rows), 5)
    result["fewbit_s"], result["mtmd_s"] = (round(median(one), 3) for one in zip(*turns, strict=True))
    if result["relative_error"] < LARGEST_ERROR:
        result["ratio"] = round(median(theirs / mine for mine, theirs in turns), 2)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="an encoder's file; written if it is not there")
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--side", type=int, default=1024, help="pixels")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--llama-cpp", type=Path, help="its source folder")
    parser.add_argument("--build", type=Path, help="where its target mtmd was built")
    parser.add_argument("--no-flash", action="store_true", help="llama.cpp's other attention")
    parser.add_argument("--cpu-time", action="store_true", help="processor time")
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(measure(args, Path(folder)), indent=2))


if __name__ == "__main__":
    main()
