"""Names of GGUF files: which of them are parts of one model, which quantization they are of, which one to take."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...errors import MissingError
from ..gguf.reader import PART_NAME
from ..shown import first_names

PREFERRED = (
    "Q4_K_M", "Q4_K_S", "Q4_0", "Q5_K_M", "Q8_0", "Q6_K", "Q5_K_S", "Q4_K_L", "Q4_K_XL", "Q4_1", "IQ4_XS", "IQ4_NL",
    "MXFP4", "Q5_0", "Q5_1", "Q3_K_L", "Q3_K_M", "BF16", "F16", "F32",
)  # fmt: skip

ENCODER_KINDS = ("F16", "Q8_0", "BF16", "F32")  # of image encoders, the usual ones first

_KIND = r"I?Q[1-8](?:_[A-Z0-9]+)*|TQ[12]_0|MXFP4|NVFP4|BF16|F16|F32|FP16|FP32"
_KIND_IN_NAME = re.compile(rf"(?<![A-Z0-9])(?:{_KIND})(?![A-Z0-9])", re.IGNORECASE)
_KIND_ALONE = re.compile(rf"(?:UD[-_])?({_KIND})", re.IGNORECASE)
_SAME = {"FP16": "F16", "FP32": "F32"}
_OF_HUB = re.compile(r"models--[^/]+?--([^/]+)/snapshots/[^/]+/?$")
_UNSAFE = re.compile(r"[\x00-\x1f\x7f\\]")
_SHOWN = 20


@dataclass(frozen=True, slots=True)
class FileSet:
    """A model by the names of its files, those that are there."""

    files: tuple[str, ...]
    count: int = 1

    @property
    def name(self) -> str:
        return self.files[0]

    def is_called(self, name: str) -> bool:
        """Whether this is a name of it: of any file, with or without folder, suffix and number."""
        part = PART_NAME.fullmatch(self.name)
        names = {*self.files, *([part["stem"] + ".gguf"] if part else [])}
        names |= {name.rpartition("/")[2] for name in names}
        return name in names or name + ".gguf" in names


def model_name(path: Path) -> str:
    """What a model is called, by the place of its file or folder.

    >>> model_name(Path("models--org--repo/snapshots/12ab/config.json")), model_name(Path("a/m-Q4_0.gguf"))
    ('repo', 'm-Q4_0')
    """
    if path.suffix == ".gguf":
        return path.stem
    folder = path.parent if path.name == "config.json" or path.suffix == ".safetensors" else path
    of_hub = _OF_HUB.search(folder.as_posix())
    return of_hub[1] if of_hub else folder.resolve().name or "model"


def part_names(name: str) -> tuple[str, ...]:
    """The names of all files of a model, by one of them.

    >>> part_names("a.gguf"), part_names("a-00002-of-00002.gguf")
    (('a.gguf',), ('a-00001-of-00002.gguf', 'a-00002-of-00002.gguf'))
    """
    part = PART_NAME.fullmatch(name)
    if not part:
        return (name,)
    number, count = int(part["number"]), int(part["count"])
    if not 1 <= number <= count:
        raise MissingError(f"{name}: the file name says part {number} of {count}")
    return tuple(f"{part['stem']}-{i + 1:05d}-of-{count:05d}.gguf" for i in range(count))


def quantization(name: str) -> str | None:
    """The quantization that a file's name tells.

    >>> quantization("Qwen3-0.6B-q4_k_m.gguf"), quantization("m-fp16-00001-of-00002.gguf"), quantization("m.gguf")
    ('Q4_K_M', 'F16', None)
    """
    found = _KIND_IN_NAME.findall(name)
    return _SAME.get(found[-1].upper(), found[-1].upper()) if found else None


def models(files: Iterable[str]) -> list[FileSet]:
    """The models among some files, without those that only help one: vision projectors and importance matrices.

    >>> models(["b.gguf", "a-00001-of-00002.gguf", "README.md", "mmproj-F16.gguf"])
    [FileSet(files=('a-00001-of-00002.gguf',), count=2), FileSet(files=('b.gguf',), count=1)]
    """
    found: dict[tuple[str, int], list[str]] = {}
    for name in sorted(set(files)):
        if name.endswith(".gguf") and _is_safe(name) and _is_model(name):
            part = PART_NAME.fullmatch(name)
            found.setdefault((part["stem"], int(part["count"])) if part else (name, 1), []).append(name)
    return [FileSet(tuple(names), count) for (_, count), names in found.items()]


def select(files: Iterable[str], selector: str | None, where: str) -> FileSet:
    """The model that a selector means, a file by its name or a quantization; without one, a usual quantization. An
    image encoder is meant by its whole name only.

    >>> select(["m-Q4_0.gguf", "m-Q4_K_M.gguf", "m-Q8_0.gguf"], None, "m").name
    'm-Q4_K_M.gguf'
    >>> select(["m-Q4_0.gguf", "m-Q4_K_M.gguf", "m-Q8_0.gguf"], "q8_0", "m").name
    'm-Q8_0.gguf'
    """
    files = [*files]
    if selector in files and _is_safe(selector) and is_encoder(selector):
        return FileSet((selector,))
    found = models(files)
    if not found:
        raise MissingError(f"{where}: there is no GGUF model in it")
    fitting = _usual(found) if selector is None else _called(found, selector)
    if not fitting:
        asked = "has a usual quantization" if selector is None else f"or quantization is called {selector!r}"
        raise MissingError(f"{where}: no model {asked}; there are: {listed(found)}")
    if len(fitting) > 1:
        raise MissingError(f"{where}: several models match; name one of these files: {listed(fitting)}")
    return whole(fitting[0], where)


def is_encoder(name: str) -> bool:
    """Whether a name is that of an image encoder.

    >>> is_encoder("f16/mmproj-F16.gguf"), is_encoder("mmproj/model.gguf")
    (True, False)
    """
    return name.endswith(".gguf") and "mmproj" in name.rpartition("/")[2].lower()


def encoder_for(model: str, files: Iterable[str]) -> str | None:
    """The image encoder of a model: in its folder, else in one around it; the one whose name begins most like the
    model's, then the one of its quantization, then of a usual one.

    >>> files = ["mmproj-BF16.gguf", "mmproj-F16.gguf", "mmproj-Q8_0.gguf"]
    >>> encoder_for("m-Q4_K_M.gguf", files), encoder_for("m-Q8_0.gguf", files)
    ('mmproj-F16.gguf', 'mmproj-Q8_0.gguf')
    >>> encoder_for("a-4b-Q4_0.gguf", ["mmproj-a-12b-F16.gguf", "mmproj-a-4b-BF16.gguf", "b/mmproj-a-4b-F16.gguf"])
    'mmproj-a-4b-BF16.gguf'
    """
    folder, own = _folder(model), quantization(model)
    kinds = [*([own] if own in ENCODER_KINDS else []), *ENCODER_KINDS]

    def fit(name: str) -> tuple[int, int, int]:
        kind = quantization(name)
        rank = kinds.index(kind) if kind in kinds else len(kinds)
        return len(_folder(name)), _num_alike(_stem(name), _stem(model)), -rank

    found = (name for name in sorted(files) if is_encoder(name) and _is_safe(name) and folder.startswith(_folder(name)))
    return max(found, key=fit, default=None)


def revision_folder(path: Path) -> Path:
    """The folder of the revision of a repository that a file lies in; else its own."""
    return next((folder for folder in path.parents if folder.parent.name == "snapshots"), path.parent)


def _folder(name: str) -> str:
    """
    >>> _folder("a/b.gguf"), _folder("b.gguf")
    ('a/', '')
    """
    return name[: name.rfind("/") + 1]


def _stem(name: str) -> str:
    """What is left of a name without folder, suffix, quantization and what says that it is an encoder.

    >>> _stem("f16/mmproj-Gemma-3-4b-it-F16.gguf"), _stem("m.mmproj-q8_0.gguf"), _stem("m-Q4_K_M.gguf")
    ('gemma-3-4b-it', 'm', 'm')
    """
    last = name.rpartition("/")[2].removesuffix(".gguf")
    return _KIND_IN_NAME.sub("", last).lower().replace("mmproj", "").strip("-_.")


def _num_alike(a: str, b: str) -> int:
    """Characters that two names begin with alike.

    >>> _num_alike("gemma-3-4b", "gemma-3-12b")
    8
    """
    return next((place for place, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def whole(model: FileSet, where: str) -> FileSet:
    """The model, if all its parts are there."""
    if model.files != part_names(model.name):
        raise MissingError(f"{where}: the model has {model.count} parts, but only these are there: {listed([model])}")
    return model


def listed(found: Sequence[FileSet]) -> str:
    """Names for an error, not too many."""
    names = [name for model in found for name in (model.files if len(found) == 1 else model.files[:1])]
    return first_names(names, _SHOWN)


def _usual(found: Sequence[FileSet]) -> Sequence[FileSet]:
    if len(found) == 1:
        return found
    kinds: dict[str | None, list[FileSet]] = {}
    for model in found:
        kinds.setdefault(quantization(model.name), []).append(model)
    return next((kinds[kind] for kind in PREFERRED if kind in kinds), [])


def _called(found: Sequence[FileSet], selector: str) -> Sequence[FileSet]:
    named = [model for model in found if selector in model.files] or [m for m in found if m.is_called(selector)]
    kind = _KIND_ALONE.fullmatch(selector.replace("-", "_"))
    return named or [model for model in found if kind and quantization(model.name) == quantization(kind[1])]


def _is_safe(name: str) -> bool:
    """Whether a name from elsewhere stays inside a folder that it is joined to."""
    return not _UNSAFE.search(name) and not {"", ".", ".."} & set(name.split("/"))


def _is_model(name: str) -> bool:
    last = name.rpartition("/")[2].lower()
    return not is_encoder(name) and ("imatrix" not in last or quantization(last) is not None)
