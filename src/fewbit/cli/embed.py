"""`fewbit embed`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from .completion import ModelName
from .files import decoded_lines, read_bytes
from .model import load
from .options import as_json, model_options, quiet_option
from .output import print_json, print_table, shown
from .progress import Waiting
from .prompt import STDIN, is_piped, stdin_bytes

if TYPE_CHECKING:
    from ..arrays import Floats
    from ..llm import LLM
    from ..llm.pooling import Pooling

POOLINGS = ("mean", "cls", "last")
VECTOR_TYPES = ("float32", "int8", "uint8", "binary", "ubinary")
HEAD = 8  # numbers of a vector that are shown
MOST_SHOWN = 12  # texts whose cosines fit a screen


class Text(NamedTuple):
    text: str
    place: str  # as errors name it


@click.command()
@click.argument("model", type=ModelName())
@click.argument("texts", metavar="[TEXT]...", nargs=-1)
@click.option(
    "-f", "--file", metavar="FILE", help="Take texts from a file, one on each line; after TEXT if there is one too."
)
@click.option(
    "--pooling", type=click.Choice(POOLINGS), show_default="the model's", help="How vectors of tokens become one."
)
@click.option("--normalize/--no-normalize", default=True, help="Vectors of length 1.")
@click.option("--dimensions", type=click.IntRange(1), metavar="N", help="Keep the first N numbers of each vector.")
@click.option("--prompt", metavar="TEXT", help="Put before each text, such as 'search_query: '.")
@click.option("--prompt-name", metavar="NAME", help="One of the model's own prompts, such as query.")
@click.option(
    "--dtype", type=click.Choice(VECTOR_TYPES), default="float32", show_default=True, help="Type of numbers in JSON."
)
@click.option(
    "--truncate", is_flag=True, help="Cut texts that are longer than the context, which are refused otherwise."
)
@model_options
@quiet_option
@as_json
def embed(
    model: str,
    texts: tuple[str, ...],
    file: str | None,
    pooling: Pooling | None,
    normalize: bool,
    truncate: bool,
    dimensions: int | None,
    prompt: str | None,
    prompt_name: str | None,
    dtype: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Embed texts: print their similarities or their vectors.

    MODEL is a GGUF file, a URL, hf:org/repo or a built-in name: an encoder such as BERT, or any other model. Without
    TEXT and --file, or where TEXT is -, each line of standard input is a text, blank ones too. For one text the
    beginning of its vector is printed, for several how alike they are: the cosine of each two, 1 for the same. --json
    prints the vectors, one for each line.

    \b
    Examples:
      fewbit embed model.gguf "a cat" "a kitten" "a bus"
      fewbit embed model.gguf --file lines.txt --json > vectors.json
      fewbit embed model.gguf --pooling cls "Where is the station?"
    """
    found = read_texts(texts, file)
    with load(model, writes=False, **options) as llm:
        before = {"prompt": prompt, "prompt_name": prompt_name}
        vectors = embedded(llm, found, pooling, normalize, truncate, dimensions, before)
        if as_json:
            from ..llm.pooling import quantize_embeddings

            print_json(facts(llm.model_name, quantize_embeddings(vectors, dtype)))
        elif len(found) == 1:
            click.echo(head(vectors[0]))
        else:
            print_cosines([one.text for one in found], vectors)


def read_texts(texts: Sequence[str], file: str | None) -> list[Text]:
    """Arguments, then the lines of a file, then those of standard input."""
    found = [Text(text, f"text {number}") for number, text in enumerate(texts, 1) if text != STDIN]
    if file not in (None, STDIN):
        found += lines(read_bytes(str(file)), str(file))
    if STDIN in (*texts, file) or is_piped(is_only_source=not texts and file is None):
        found += lines(stdin_bytes(), "standard input")
    if not found:
        raise click.UsageError("there is no text: put texts in quotes after the model, name a --file, or pipe lines in")
    return found


def lines(data: bytes, name: str) -> list[Text]:
    return [Text(line, f"line {number} of {name}") for number, line in enumerate(decoded_lines(data, name), 1)]


def embedded(llm: LLM, texts: list[Text], pooling: Pooling | None, normalize: bool, truncate: bool,
             dimensions: int | None, before: dict[str, Any]) -> Floats:  # fmt: skip
    """The vectors of texts, (texts, size)."""
    with Waiting(f"embedding {len(texts)} texts") as waiting:
        read = llm.with_prompt([one.text for one in texts], **before)
        prompts = [llm.encode_text(text, one.place, truncate) for text, one in zip(read, texts, strict=True)]
        return llm.embed(
            prompts,
            pooling,
            normalize,
            dimensions=dimensions,
            progress=lambda done, total: waiting(f"embedding: {done} of {total} texts", 0, None),
        )


def facts(name: str, vectors: Floats) -> dict[str, Any]:
    """As OpenAI's servers write it."""
    data = [{"object": "embedding", "index": i, "embedding": row.tolist()} for i, row in enumerate(vectors)]
    return {"object": "list", "model": name, "data": data}


def head(vector: Floats) -> str:
    """The beginning of a vector.

    >>> import numpy as np
    >>> head(np.array([0.5, -1, 0.25], np.float32))
    '3 values: 0.5000 -1.0000 0.2500'
    """
    rest = " ..." if len(vector) > HEAD else ""
    return f"{len(vector)} values: {' '.join(f'{value:.4f}' for value in vector[:HEAD])}{rest}"


def print_cosines(texts: list[str], vectors: Floats) -> None:
    import numpy as np

    from ..llm.pooling import normalized

    rows = normalized(np.asarray(vectors))
    if len(texts) > MOST_SHOWN:
        cells = [
            [shown(texts[i], 40), shown(texts[j], 40), f"{cosine:.3f}"] for i, (j, cosine) in enumerate(nearest(rows))
        ]
        print_table({"text": "left", "nearest": "left", "cosine": "right"}, cells)
        return
    cosines = rows @ rows.T
    heads = {"": "right", "text": "left", **{str(i + 1): "right" for i in range(len(texts))}}
    cells = [[str(i + 1), shown(text, 40), *(f"{value:.3f}" for value in cosines[i])] for i, text in enumerate(texts)]
    print_table(heads, cells)


def nearest(rows: Floats, block: int = 1024) -> Iterator[tuple[int, float]]:
    """For each text the index of the most similar other one, and their cosine.

    >>> import numpy as np
    >>> [other for other, _ in nearest(np.array([[1, 0], [0, 1], [0.6, 0.8]], np.float32))]
    [2, 2, 1]
    """
    for start in range(0, len(rows), block):  # all at once may be too many
        cosines = rows[start : start + block] @ rows.T
        for number, row in enumerate(cosines, start):
            row[number] = -2  # no other is so far
            other = int(row.argmax())
            yield other, float(row[other])
