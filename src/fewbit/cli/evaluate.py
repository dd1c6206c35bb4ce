"""`fewbit eval`: perplexity, KL divergence and multiple choice, for several ways to run a model at once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .completion import ModelName
from .model import find_model, plain_warnings
from .options import SEVERAL, as_json, count_option, load_option, numbers, quiet_option
from .output import is_quiet, print_json, print_table, tell
from .progress import Waiting

if TYPE_CHECKING:
    from ..evaluation import ChoiceScores, Evaluation
    from ..evaluation.results import TokenScores

FILE = click.Path(dir_okay=False, path_type=Path)
DIVERGENCE = ["KL", "KL error", "50%", "99%", "max", "top-1", "dp"]
HEADS = {"format": "left", "kv": "left", "activations": "left", "device": "left", "threads": "right"}


@click.command("eval")
@click.argument("model", type=ModelName())
@click.option("--text", type=FILE, metavar="FILE", help="Text whose perplexity is measured.")
@click.option("--choices", type=FILE, metavar="FILE", help="JSONL file of questions with choices and the right answer.")
@click.option("--against", metavar="MODEL", help="Reference model for the KL divergence, with the same tokenizer.")
@click.option("--logits", type=FILE, metavar="FILE", help="Saved logits of the reference, in its place.")
@click.option("--save", type=FILE, metavar="FILE", help="Save the logits of the model.")
@count_option("--top", what="Likeliest tokens that are saved at each position.", default=256)
@count_option("-c", "--ctx", what="Tokens of a window.", least=2, default=512)
@count_option("--stride", what="Tokens between the starts of two windows; the last N of each are scored.",
              show_default="windows follow each other")  # fmt: skip
@count_option("--skip", what="Tokens at the start of each window that are not scored.", least=0,
              show_default="the first half")  # fmt: skip
@load_option("format", metavar=SEVERAL)
@load_option("kv", metavar=SEVERAL)
@load_option("activations", metavar=SEVERAL, type=str)
@load_option("device", metavar=SEVERAL)
@click.option("-t", "--threads", metavar="N,..", show_default="all usable cores", help="Threads to use.")
@click.option("--by", type=click.Choice(["depth", "position"]),
              help="Also figures by the number of tokens before each, or by the part of the text.")  # fmt: skip
@quiet_option
@as_json
def evaluate(
    model: str, text: Path | None, choices: Path | None, against: str | None, by: str | None, as_json: bool,
    threads: str | None, save: Path | None, logits: Path | None, top: int, ctx: int, stride: int | None,
    skip: int | None, **options: str | None,
) -> None:  # fmt: skip
    """Perplexity of a model, KL divergence from a reference, multiple choice.

    Options with a comma take several values: every combination is a row, so that each choice shows its price. Windows
    of the text run on their own, and the second half of each is scored, as llama-perplexity does. KL is the mean
    divergence from the reference in nats a token, 99% what one token in a hundred exceeds, top-1 how often both find
    the same token likeliest, and dp the root mean square by which the probability of the text's own token changes.

    \b
    Lines of --choices:
      {"question": "2 + 2 =", "choices": ["4", "5"], "answer": 0}

    \b
    Examples:
      fewbit eval model.gguf --text book.txt --against model-f16.gguf
      fewbit eval model.gguf --text book.txt --kv f16,q8_0,q4_0
      fewbit eval model-f16.gguf --text book.txt --save base.gguf
      fewbit eval model-q3_k_m.gguf --logits base.gguf --by depth
      fewbit eval checkpoint/ --text book.txt --format q8_0,q4_k_m,q3_k_m
      fewbit eval model.gguf --choices questions.jsonl --json
    """
    if text is None and logits is None and choices is None:
        raise click.UsageError("there is nothing to evaluate: give --text, --logits or --choices")
    path, base = find_model(model), None if against is None else find_model(against)
    ways: dict[str, Any] = {key: _several(value) for key, value in options.items()}
    ways["threads"] = numbers(threads, ",", "--threads") if threads else None
    from ..evaluation import evaluate as measure

    found: list[Evaluation] = []
    with plain_warnings():
        _quantize(path, options["format"])
        if text is not None or logits is not None:
            found = measure(
                path, text, against=base, logits=logits, save=save, top=top, ctx=ctx, stride=stride, skip=skip,
                progress=not is_quiet(), **ways,
            )  # fmt: skip
        rights = [] if choices is None else _choose(path, choices, ways)
    if as_json:
        by_way = [{**way, **one.to_dict()} for way, one in rights]
        print_json({"text": [one.to_dict() for one in found], "choices": by_way})
        return
    _print_text(found, by)
    _print_choices(rights)
    if save is not None:
        tell(f"{save}: the logits of {found[0].tokens} tokens")


def _quantize(path: Path, formats: str | None) -> None:
    """Quantize the model to all formats, with progress; they are found in the cache folder from then on."""
    from ..models import open_model
    from ..quantizing import quantized

    for name in formats.split(",") if formats else ():
        with Waiting(f"quantizing to {name}") as waiting:
            quantized(open_model(path), name, progress=waiting).close()


def _several(value: str | None) -> str | list[str] | None:
    return value.split(",") if value is not None and "," in value else value


def _choose(model: Path, choices: Path, ways: dict[str, Any]) -> list[tuple[dict[str, Any], ChoiceScores]]:
    """Multiple choice for each combination."""
    from ..evaluation.choices import evaluate_choices, read_questions
    from ..evaluation.variants import variants

    questions, found = read_questions(choices), []
    for variant in variants(**ways):
        way = {key: getattr(variant, key) for key in HEADS}
        found.append((way, evaluate_choices(model, questions, progress=not is_quiet(), **way)))
    return found


def _print_text(found: list[Evaluation], by: str | None) -> None:
    if not found:
        return
    first, heads = found[0], _varying([choices_of(one) for one in found])
    against = f", against {first.reference}" if first.reference else ""
    tell(f"{first.model}: {first.tokens} tokens of {first.run_tokens} scored{against}")
    rows = [[*(str(choices_of(one)[head]) for head in heads), *text_cells(one)] for one in found]
    names = ["perplexity", "error", *(DIVERGENCE if against else []), "tokens/s"]
    print_table({**heads, **dict.fromkeys(names, "right")}, rows)
    if by is not None:
        _print_parts(found, by)


def choices_of(one: Evaluation) -> dict[str, Any]:
    return {head: getattr(one, head) for head in HEADS}


def _varying(ways: list[dict[str, Any]]) -> dict[str, str]:
    """The columns of choices that differ, and the format of the KV cache."""
    return {head: side for head, side in HEADS.items() if head == "kv" or len({way[head] for way in ways}) > 1}


def text_cells(one: Evaluation) -> list[str]:
    cells = [f"{one.perplexity:.4f}", f"{one.perplexity_error:.4f}"]
    if d := one.divergence:
        cells += [f"{value:.5f}" for value in (d.mean, d.error, d.median, d.p99, d.max)]
        cells += [f"{100 * d.top1:.2f}%", f"{100 * d.rms_delta_p:.2f}%"]
    return [*cells, f"{one.run_tokens / one.seconds:.0f}" if one.seconds else "-"]


def _print_parts(found: list[Evaluation], by: str) -> None:
    """Perplexity and mean divergence of tokens by depth, or by the part of the text."""
    heads = _varying([choices_of(one) for one in found])
    rows = []
    for one in found:
        own = [str(choices_of(one)[head]) for head in heads]
        rows += [[*own, name, *part_cells(part)] for name, part in named_parts(one, by)]
    click.echo()
    print_table({**heads, **dict.fromkeys([by, "tokens", "perplexity", "KL"], "right")}, rows)


def named_parts(one: Evaluation, by: str) -> list[tuple[str, TokenScores]]:
    if by == "depth":
        return [(f"{begin}-{end - 1}", part) for (begin, end), part in one.by_depth().items()]
    parts = one.by_position()
    return [(f"{100 * n // len(parts)}-{100 * (n + 1) // len(parts)}%", part) for n, part in enumerate(parts)]


def part_cells(part: TokenScores) -> list[str]:
    from ..evaluation.results import perplexity

    mean = "-" if part.divergence is None else f"{part.divergence.mean():.5f}"
    return [str(len(part.logprobs)), f"{perplexity(part.logprobs):.4f}", mean]


def _print_choices(rights: list[tuple[dict[str, Any], ChoiceScores]]) -> None:
    if not rights:
        return
    heads = _varying([way for way, _ in rights])
    names = ["questions", "accuracy", "error", "normalized", "normalized error"]
    rows = []
    for way, one in rights:
        shares = (one.accuracy, one.accuracy_error, one.normalized_accuracy, one.normalized_error)
        cells = [str(one.questions), *(f"{100 * share:.1f}%" for share in shares)]
        rows.append([*(str(way[head]) for head in heads), *cells])
    print_table({**heads, **dict.fromkeys(names, "right")}, rows)
