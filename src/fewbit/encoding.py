"""Runs image encoders: pictures to rows that stand in the place of tokens' embeddings.

An encoder is a model like others: its graphs run on a device, over a store that nothing outlives. The engine runs them
in slices between its steps (engine/encodings.py).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from threading import Lock
from time import perf_counter
from typing import Any

import numpy as np

from . import devices
from .arrays import Floats
from .cache.layout import Layout, make_layout
from .cache.view import NO_SLOTS, View
from .devices import Device
from .devices.batch import Batch, ResizableExecutor, SlicedExecutor, SlicedStep
from .devices.fitting import choose_layout
from .errors import FewbitError, FileError, RequestError
from .files.gguf import read_gguf
from .files.hub import find
from .files.hub.names import encoder_for, is_encoder, revision_folder
from .files.model import ModelFile
from .images import PreparedImage
from .load_options import LoadOptions
from .models.vision import VisionModel, load_vision
from .models.vision.folder import open_vision_folder
from .ops.graph import Value
from .ops.inserts import Inserted
from .ops.recorder import Ops, record

PLACES = ("hf:", "http://", "https://")  # of files that are not on this machine
STEP_PATCHES = 1024  # of tiles that run in one step
LEAST_PATCHES = 1024  # that there is memory for where weights are copied


class ImageEncoder:
    """An encoder on a device.

    Args:
        file: Its file.
        options: Those of the text model.
    """

    def __init__(self, file: ModelFile, options: LoadOptions) -> None:
        self.file, self._options = file, options
        self.model: VisionModel = load_vision(file)
        self._stages: tuple[EncoderStage, EncoderStage] | None = None
        self._lock = Lock()

    def checked(self) -> ImageEncoder:
        """Itself; refused, if its device cannot run it, before weights are read or an image comes."""
        for forward in (self.model.tower, self.model.project):
            try:
                self._device.check(record(forward, has_head=False))
            except FewbitError as error:
                raise RequestError(
                    f"{self.file.path.name}: device {self._device.name!r} cannot run this image encoder: {error}; take "
                    "device='cpu', or mmproj='off' for text alone"
                ) from None
        return self

    def load(self) -> tuple[EncoderStage, EncoderStage]:
        """Read the weights, unless they are there, and send them where they are copied: a while before the first
        image, and in the thread of who asks, so that no step waits for it."""
        with self._lock:
            if self._stages is None:
                stages = self._load()
                for stage in stages:
                    stage.prepare()
                self._stages = stages
            return self._stages

    def begin(self, image: PreparedImage) -> ImageEncoding:
        """The work on an image. Only one is under way at a time: the next one ends it."""
        return ImageEncoding(self, image)

    def encode(self, image: PreparedImage) -> list[Floats]:
        """Rows for the tokens of an image: embeddings, then what is added between layers."""
        work = self.begin(image)
        while not work.run(1.0):
            pass
        return work.rows()

    def steps(self, image: PreparedImage) -> Generator[SlicedStep, None, list[Floats]]:
        """The steps of the encoder on an image, each of which is to be run to its end before the next. At last the
        rows."""
        tower, projector = self.load()
        merged = []
        for part in split_tiles(image):
            step = tower.step(part)
            yield step
            hidden = step.values()
            merged += [self.model.merge(tile, part) for tile in np.split(hidden, np.cumsum(part.tiles)[:-1])]
        step = projector.step(PreparedImage(np.concatenate(merged), tuple(map(len, merged)), "", (0, 0)))
        yield step
        return [np.array(one) for one in np.split(step.values(), self.model.parts, axis=1)]

    @cached_property
    def _device(self) -> Device:
        return encoder_device(self._options)

    def _load(self) -> tuple[EncoderStage, EncoderStage]:
        """The weights in the layout of the device."""
        device = self._device
        layout = choose_layout(device, self.file.file_bytes, self._options.repack)
        prepare = device.pack(layout, self.file.file_bytes + 256 * len(self.file.tensors))
        self.model = load_vision(self.file, prepare)
        tower, projector = (EncoderStage(device, forward) for forward in (self.model.tower, self.model.project))
        return tower, projector


class ImageEncoding:
    """An image that is encoded in slices."""

    def __init__(self, encoder: ImageEncoder, image: PreparedImage) -> None:
        self._steps = encoder.steps(image)
        self._step: SlicedStep | None = None
        self._rows: list[Floats] = []

    def run(self, seconds: float) -> bool:
        """Go on for about so long. Whether it is done."""
        end = perf_counter() + seconds
        while True:
            if self._step is None:
                try:
                    self._step = next(self._steps)
                except StopIteration as last:
                    self._rows = last.value
                    return True
            if self._step.run(end - perf_counter()):
                self._step = None
            elif perf_counter() >= end:
                return False

    def rows(self) -> list[Floats]:
        return self._rows


class EncoderStage:
    """A graph that begins with rows from outside. Its memory grows with the largest image."""

    def __init__(self, device: Device, forward: Callable[[Ops], Value]) -> None:
        self._device = device
        self._graph = record(forward, has_head=False)
        kv = "f32" if self._is_exact else "f16"
        self._layout = make_layout(self._graph.specs, kv, kv)
        self._most, self._pages = 0, 0
        self.executor: Any = None

    def step(self, image: PreparedImage) -> SlicedStep:
        """What computes the rows of all patches."""
        count = len(image.patches)
        view = tile_view(image.tiles, self._layout)
        self._grow(count, sum(map(len, view.tables)))
        inserted = [] if image.added is None else [Inserted(0, np.arange(count, dtype=np.int32), image.added)]
        batch = Batch(
            (), np.zeros(count, np.int32), view, np.arange(count, dtype=np.int32), [], "hidden", (), inserted,
            image.axes, image.spans,
        )  # fmt: skip
        if isinstance(self.executor, SlicedExecutor):
            return self.executor.slices(batch, image.patches)
        return WholeStep(self.executor, batch, image.patches)

    def prepare(self) -> None:
        """Send the weights of a device that copies them, with memory for images that are not large."""
        if self._device.copies_weights:
            self._grow(LEAST_PATCHES, -(-LEAST_PATCHES // self._layout.page_tokens))

    def _grow(self, count: int, pages: int) -> None:
        """An executor for so many patches and pages. Where weights are copied, memory is doubled: some executors copy
        them again, and all are planned anew."""
        if count <= self._most and pages <= self._pages:
            return
        if self._device.copies_weights:
            count, pages = (1 << (size - 1).bit_length() for size in (max(count, LEAST_PATCHES), max(pages, 1)))
        self._most, self._pages = max(count, self._most), max(pages, self._pages)
        is_resized = isinstance(self.executor, ResizableExecutor)
        if not is_resized:
            self.executor = None  # gives its memory back
        self._device.max_batched_tokens = self._most
        store = self._device.make_store(self._layout, (self._pages,) * len(self._layout.groups))
        if is_resized:
            self.executor.resize(store, self._most)
        else:
            self.executor = self._device.make_executor(self._graph, store, 1)

    @property
    def _is_exact(self) -> bool:
        return self._device.keeps_f32 and getattr(self._device, "activations", None) in (None, "exact")


class WholeStep:
    """A step of an executor that knows no slices."""

    def __init__(self, executor: Any, batch: Batch, given: Floats) -> None:
        self._launch = partial(executor.launch, batch, given=given)
        self._values: Floats | None = None

    def run(self, seconds: float) -> bool:
        self._values = self._launch().values()
        return True

    def values(self) -> Floats:
        assert self._values is not None
        return self._values


def encoder_device(options: LoadOptions) -> Device:
    """The device of the text model, if its executors take rows; else the CPU."""
    name = options.device.split(",")[0]
    plain = replace(
        options, device=name, gpu_layers=None, stages=None, ctx=None, batch_invariant=False, max_batched_tokens=None
    )
    device = devices.get(name, plain)
    return device if device.takes_rows else devices.get("cpu", replace(plain, device="cpu"))


def split_tiles(image: PreparedImage) -> Iterator[PreparedImage]:
    """An image as parts of few tiles: a step takes no longer, and no more memory, for many."""
    if len(image.tiles) == 1:
        yield image
        return
    first = tile = 0
    while tile < len(image.tiles):
        end, last = first + image.tiles[tile], tile + 1
        while last < len(image.tiles) and end + image.tiles[last] - first <= STEP_PATCHES:
            end, last = end + image.tiles[last], last + 1
        yield replace(image, patches=image.patches[first:end], tiles=image.tiles[tile:last])
        first, tile = end, last


def tile_view(tiles: Sequence[int], layout: Layout) -> View:
    """Each tile is a sequence, in pages of its own."""
    pages = [-(-count // layout.page_tokens) for count in tiles]
    starts, table_starts = (np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64) for sizes in (tiles, pages))
    tables, groups = np.arange(sum(pages), dtype=np.int32), len(layout.groups)
    return View(
        tuple(range(len(tiles))), layout.page_tokens, starts, np.array(tiles, np.int64), [tables] * groups,
        [table_starts] * groups, NO_SLOTS, NO_SLOTS,
    )  # fmt: skip


def find_encoder(path: Path, options: LoadOptions) -> ImageEncoder | None:
    """The image encoder of a model, if there is one: in its folder, or in a file of its own.

    Args:
        path: The model's file or folder.
        options: `mmproj` names the file; "off": none is wanted.
    """
    if options.mmproj == "off":
        return None
    if options.mmproj is not None:
        return ImageEncoder(open_encoder(_named_file(options)), options)
    try:
        file = encoder_of(path)
        return None if file is None else ImageEncoder(file, options)
    except FewbitError as error:
        warnings.warn(f"the model reads text only, since its image encoder cannot be used: {error}", stacklevel=2)
        return None


def _named_file(options: LoadOptions) -> Path:
    """The file that `mmproj` names: a path, a URL, or a file of a repository."""
    name = os.fspath(options.mmproj or "")
    return find(name, progress=options.progress) if name.startswith(PLACES) else Path(name).expanduser()


def encoder_of(path: Path) -> ModelFile | None:
    """The image encoder in a model's folder, if there is one."""
    folder = path.parent if path.name == "config.json" or path.suffix == ".safetensors" else path
    if folder.is_dir():
        return open_vision_folder(folder)
    file = file_beside(path)
    return None if file is None else open_encoder(file)


def open_encoder(path: Path) -> ModelFile:
    if path.is_dir():
        found = open_vision_folder(path)
        if found is None:
            raise FileError(f"{path}: this folder has no image encoder that is known")
        return found
    return read_gguf(path)


def file_beside(path: Path) -> Path | None:
    """The encoder's file in a model's folder, or in that of its repository."""
    if is_encoder(path.name):
        return None
    home = revision_folder(path)
    folders = [path.parent, *(folder for folder in path.parent.parents if folder.is_relative_to(home))]
    found = (encoder_for(path.name, (one.name for one in folder.glob("*.gguf"))) for folder in folders)
    return next((folder / name for folder, name in zip(folders, found, strict=True) if name is not None), None)
