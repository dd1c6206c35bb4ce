"""`fewbit show`."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import FewbitError
from .completion import ModelName
from .model import fetched_path, find_model
from .options import as_json
from .output import harmless, print_json, print_table, shown, size_text

if TYPE_CHECKING:
    from ..files.hub import Builtin, Named
    from ..files.model import ModelFile


@click.command()
@click.argument("model", type=ModelName())
@click.option("--template", "only_template", is_flag=True, help="Print the chat template alone.")
@as_json
def show(model: str, only_template: bool, as_json: bool) -> None:
    """What a model is and can do: context, formats, sampling, license, chat template.

    MODEL is a GGUF file, also of an image encoder, a folder with safetensors, a URL, hf:org/repo or a name. A name from
    `fewbit pull --list` that was not fetched is not fetched for this. `fewbit inspect` lists metadata and tensors.

    \b
    Examples:
      fewbit show smollm2
      fewbit show model.gguf --template
      fewbit show qwen3:4b --json
    """
    from ..files.hub import known

    entry = known(model)
    is_missing = entry is not None and fetched_path(model) is None
    facts = entry_facts(entry) if entry and is_missing else model_facts(find_model(model), entry)
    if only_template:
        print_template(facts)
    elif as_json:
        print_json(facts)
    else:
        print_facts(facts)


def entry_facts(entry: Builtin | Named) -> dict[str, Any]:
    """Facts of a named model that was not fetched."""
    from ..files.hub import Named

    source, use = (entry.place, entry.use) if isinstance(entry, Named) else (None, "chat")
    return {
        "name": entry.name, "about": entry.about, "source": source, "fetched": False, "bytes": entry.bytes,
        "license": entry.license, "capabilities": [use],
    }  # fmt: skip


def model_facts(path: Path, entry: Builtin | Named | None) -> dict[str, Any]:
    from ..files.hub.names import model_name
    from ..models import open_model

    file = open_model(path)
    try:
        metadata = dict(file.tokenizer())
        license = metadata.get("general.license") or (entry.license if entry else None)
        return {
            "name": entry.name if entry else model_name(path),
            "path": str(path),
            "fetched": True,
            "architecture": file.architecture,
            "parameters": sum(prod(info.shape) for info in file.infos.values()),
            "bytes": file.file_bytes,
            "formats": formats(file),
            "license": str(license) if license else None,
            **(image_facts(file) if file.architecture == "clip" else seeing_facts(path, text_facts(file, metadata))),
        }
    finally:
        file.close()


def formats(file: ModelFile) -> dict[str, int]:
    """Weights in each format, the most frequent first."""
    counts: dict[str, int] = {}
    for info in file.infos.values():
        counts[info.format.name] = counts.get(info.format.name, 0) + prod(info.shape)
    return dict(sorted(counts.items(), key=lambda item: -item[1]))


def text_facts(file: ModelFile, metadata: dict[str, Any]) -> dict[str, Any]:
    """Context, capabilities, sampling and template; `problem` says why a model cannot be run."""
    from dataclasses import asdict

    from ..files.hub import recommended_sampling
    from ..llm.pooling import file_pooling
    from ..llm.sampling_options import model_sampling
    from ..models import load_model
    from ..text.template import find_source
    from ..text.tokenizer import Tokenizer

    try:
        loaded, tokenizer = load_model(file), Tokenizer.from_metadata(metadata)
    except FewbitError as error:
        context = file.config.get("context_length")
        return {"context": context, "capabilities": [], "template": file.template(), "problem": str(error)}
    source = None if loaded.is_encoder else find_source(tokenizer)
    return {
        "context": loaded.config.ctx,
        "vocabulary": len(metadata["tokenizer.ggml.tokens"]),
        "capabilities": capabilities(loaded.is_encoder, source, tokenizer.chat_templates),
        "pooling": file_pooling(file.config, loaded.is_encoder),
        "sampling": None if loaded.is_encoder else asdict(model_sampling(metadata, recommended_sampling(metadata))),
        "template": source,
    }


def image_facts(file: ModelFile) -> dict[str, Any]:
    """What an image encoder is; `problem` says why it cannot be run."""
    from ..models.vision import load_vision, projector_type

    kind = projector_type(file)
    try:
        load_vision(file)
    except FewbitError as error:
        return {"projector": kind, "capabilities": [], "problem": str(error)}
    return {"projector": kind, "capabilities": ["encode images"]}


def seeing_facts(path: Path, facts: dict[str, Any]) -> dict[str, Any]:
    """The facts of a model, with the image encoder beside it."""
    from ..encoding import encoder_of

    try:
        file = encoder_of(path)
    except FewbitError as error:
        return {**facts, "encoder": {"problem": str(error)}}
    if file is None:
        return {**facts, "encoder": None}
    found = image_facts(file)
    encoder = {
        "path": str(file.path),
        "projector": found["projector"],
        "bytes": file.file_bytes,
        "formats": formats(file),
    }
    if "problem" in found:
        return {**facts, "encoder": {**encoder, "problem": found["problem"]}}
    can = [*facts["capabilities"], *(["images"] if "chat" in facts["capabilities"] else [])]
    return {**facts, "encoder": encoder, "capabilities": can}


def encoder_text(encoder: dict[str, Any]) -> str:
    if "problem" in encoder:
        return f"cannot be used: {encoder['problem']}"
    return f"{encoder['projector']}, {size_text(encoder['bytes'])}, {shares(encoder['formats'])}: {encoder['path']}"


def capabilities(is_encoder: bool, template: str | None, templates: Any = ()) -> list[str]:
    """What a model can do.

    >>> capabilities(False, "{{ tools }}"), capabilities(False, None), capabilities(True, None)
    (['complete', 'chat', 'tools', 'embed'], ['complete', 'embed'], ['embed'])
    """
    if is_encoder:
        return ["embed"]
    chats = template is not None
    has_tools = chats and ("tools" in str(template) or "tool_use" in templates)
    found = {"complete": True, "chat": chats, "tools": has_tools, "thinking": "enable_thinking" in str(template)}
    return [*(name for name, can in found.items() if can), "embed"]


def print_template(facts: dict[str, Any]) -> None:
    if not facts["fetched"]:
        raise FewbitError(f"{facts['name']} is not fetched yet; `fewbit pull {facts['name']}` fetches it")
    if facts.get("template") is None:
        raise FewbitError(f"{facts['name']} has no chat template")
    click.echo(facts["template"])


def print_facts(facts: dict[str, Any]) -> None:
    head = "name" if facts["name"] == "model" else "model"  # columns differ
    print_table({head: "left", shown(facts["name"], 200): "left"}, list(rows(facts)))
    if facts.get("template"):
        click.echo("\nchat template:\n")
        click.echo(harmless(facts["template"]))
    if facts.get("problem"):
        click.echo(f"\nfewbit cannot run it: {shown(facts['problem'], 400)}", err=True)


def rows(facts: dict[str, Any]) -> list[list[str]]:
    usual = {"repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0}
    chosen = {name: value for name, value in (facts.get("sampling") or {}).items() if usual.get(name) != value}
    context, parameters = facts.get("context"), facts.get("parameters")
    found = {
        "about": facts.get("about"),
        "source": facts.get("source"),
        "path": facts.get("path") or f"not fetched yet: fewbit pull {facts['name']}",
        "architecture": facts.get("architecture"),
        "parameters": f"{parameters:,}" if parameters else None,
        "size": size_text(facts["bytes"]),
        "formats": shares(facts.get("formats", {})),
        "projector": facts.get("projector"),
        "images": encoder_text(facts["encoder"]) if facts.get("encoder") else None,
        "context": f"{context:,} tokens" if context else None,
        "can": ", ".join(facts["capabilities"]),
        "pooling": facts.get("pooling") if facts.get("sampling") is None else None,
        "sampling": ", ".join(f"{name} {value:g}" for name, value in chosen.items()),
        "license": facts["license"] or "not stated in the file",
    }
    return [[name, shown(str(value), 4096)] for name, value in found.items() if value]


def shares(counts: dict[str, int]) -> str:
    """
    >>> shares({"q4_k": 990, "f32": 10}), shares({"q4_k": 10**6, "f32": 1})
    ('q4_k 99%, f32 1%', 'q4_k 100%, f32 <1%')
    """
    parts = {name: 100 * count / sum(counts.values()) for name, count in counts.items()}
    return ", ".join(f"{name} {part:.0f}%" if part >= 0.5 else f"{name} <1%" for name, part in parts.items())
