"""Fuzz checkpoint folders: `python tests/files/fuzz_safetensors.py --minutes 10 [--seed N]`.

A folder of the zoo is damaged in one of its files, in bytes or in the values of its JSON, and then read as a model is:
tensors, hyperparameters, tokens. Whatever is no FewbitError, or takes long, is kept as `crash-*` and ends in status 1.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

import numpy as np

if not __package__:  # run as a script
    sys.path.insert(0, str(Path(__file__).parents[2]))

from fewbit.errors import FewbitError
from fewbit.models import architectures, open_model
from fewbit.models.directory import find_adapter, read_config
from fewbit.text.tokenizer import Tokenizer

ZOO = Path(__file__).parents[1] / "zoo"
SECONDS = 5.0
FILES = (*2 * ["model.safetensors", "config.json"], "tokenizer.json", "tokenizer_config.json")
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 7, 1 << 16, 1 << 31, 1 << 48, 1 << 64, 0.5, 1e300, float("nan"), float("inf"), "",
    "x", "F32", "BF16", "U8", "model.safetensors", "../a.safetensors", [], {}, [0, 0], [1, 2, 3], [[1]], {"a": 1},
    "linear", "yarn", "longrope", "llama3", [4, 4],
)  # fmt: skip


def mutate_json(value: Any, draw: random.Random) -> Any:
    """The same with one value replaced, removed, or put elsewhere."""
    holders = list(containers(value))
    holder = draw.choice(holders)
    keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
    if not keys:
        return value
    key = draw.choice(keys)
    way = draw.randrange(5)
    if way == 0:
        del holder[key]
    elif way == 1:
        holder[key] = json.loads(json.dumps(draw.choice(holders), default=str))
    elif way == 2 and isinstance(holder[key], int) and not isinstance(holder[key], bool):
        holder[key] += draw.choice((-1, 1, 8, -8, 1 << 20))
    elif way == 3 and isinstance(holder, dict):
        holder[str(draw.choice(keys)) + draw.choice(("", "x", ".weight"))] = holder.pop(key)
    else:
        holder[key] = draw.choice(VALUES)
    return value


def containers(value: Any) -> Any:
    if isinstance(value, dict | list):
        yield value
        for inner in value.values() if isinstance(value, dict) else value:
            yield from containers(inner)


def mutate_bytes(data: bytes, draw: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 5))):
        at = draw.randrange(max(1, min(len(changed), draw.choice((16, 400, 1 << 30)))))
        if draw.random() < 0.7 and changed:
            changed[at] = draw.choice((0, 1, 32, 34, 48, 57, 123, 125, 127, 255, draw.randrange(256)))
        else:
            changed[at : at + draw.choice((1, 8, 100))] = draw.randbytes(draw.choice((0, 1, 8)))
    return bytes(changed)


def mutate_header(data: bytes, draw: random.Random) -> bytes:
    size = int.from_bytes(data[:8], "little")
    header = json.dumps(mutate_json(json.loads(data[8 : 8 + size]), draw)).encode()
    return len(header).to_bytes(8, "little") + header + data[8 + size :]


def damage(folder: Path, draw: random.Random) -> None:
    path = folder / draw.choice(FILES)
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        data = path.read_bytes()
        try:
            if draw.random() < 0.25:
                path.write_bytes(mutate_bytes(data, draw))
            elif path.suffix == ".safetensors":
                path.write_bytes(mutate_header(data, draw))
            else:
                path.write_text(json.dumps(mutate_json(json.loads(data), draw)))
        except (ValueError, RecursionError):  # no JSON any more
            return


def read(folder: Path) -> None:
    """All that loading reads."""
    file = open_model(folder)
    for name, info in file.infos.items():
        tensor = file.tensors[name]
        assert (tensor.shape, tensor.format) == (info.shape, info.format), name
        file.forget(name)
    assert sum(map(len, file.samples(64))) > 0 or not file.infos
    assert isinstance(file.config, dict)
    tokenizer = Tokenizer.from_metadata(file.tokenizer())
    tokenizer.encode("The ring of fire, 123.\n <|eos|>", True, True)
    file.template()


def known(folder: Path) -> bool:
    try:
        find_adapter(read_config(folder / "config.json"), architectures(), folder)
    except FewbitError:
        return False
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    warnings.simplefilter("error")
    np.seterr(all="ignore")
    draw = random.Random(args.seed)
    seeds = [folder / "hf" for folder in sorted(ZOO.iterdir()) if (folder / "hf").exists() and known(folder / "hf")]
    end, count, refused = time.monotonic() + 60 * args.minutes, 0, 0
    while time.monotonic() < end:
        with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").exists() else None) as name:
            folder = Path(name) / "hf"
            shutil.copytree(draw.choice(seeds), folder)
            damage(folder, draw)
            start = time.process_time()
            try:
                read(folder)
            except FewbitError:
                refused += 1
            except BaseException:
                shutil.copytree(folder, f"crash-{args.seed}-{count}")
                traceback.print_exc()
                return 1
            if time.process_time() - start > SECONDS:
                shutil.copytree(folder, f"crash-slow-{args.seed}-{count}")
                print("too slow")
                return 1
        count += 1
    print(f"{count} folders of {len(seeds)} models, {refused} refused, none else")
    return 0


if __name__ == "__main__":
    sys.exit(main())
