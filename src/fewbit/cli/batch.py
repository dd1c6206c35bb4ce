"""`fewbit batch`."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import ExtraError
from .completion import ModelName
from .model import fetched_path, find_model, load
from .options import all_options, as_json, count_option, model_options, quiet_option, serve_options, split_options
from .output import is_quiet, print_json, tell
from .progress import Waiting
from .serve import model_names

if TYPE_CHECKING:
    from ..server.batch.job import BatchJob, BatchSummary

DETERMINING = ("ctx", "kv", "activations", "batch_invariant", "device")  # what answers depend on beside the model

OPTIONS = [
    click.option("-o", "--out", required=True, type=click.Path(dir_okay=False, path_type=Path),
                 help="The file to write, with an answer for each line, in the same order."),
    click.option("--address", metavar="ADDRESS",
                 help="A Ray cluster whose machines share the work: auto or HOST:PORT."),
    count_option("--replicas", what="Workers on the cluster, each with the model; each reserves its --threads.",
                 default=1),
    click.option("--force", is_flag=True, help="Replace a file that is there."),
    serve_options,
    model_options,
    quiet_option,
    as_json,
]  # fmt: skip


@click.command()
@click.argument("model", type=ModelName())
@click.argument("source", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@partial(all_options, OPTIONS)
def batch(
    model: str,
    source: Path,
    out: Path,
    address: str | None,
    replicas: int,
    force: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Answer the requests in a file, in OpenAI's batch format.

    MODEL is as for `fewbit serve`; NAME=MODEL gives it the name that requests use. Each line of FILE is a request for
    /v1/chat/completions, /v1/completions or /v1/embeddings; a line that is wrong gets an error and stops nothing. If
    the command is stopped or killed, the same command goes on where it was.

    \b
    Examples:
      fewbit batch model.gguf in.jsonl -o out.jsonl
      fewbit batch gpt-4o-mini=model.gguf in.jsonl -o out.jsonl --max-seqs 128
      fewbit batch model.gguf in.jsonl -o out.jsonl --batch-invariant --json
      fewbit batch hf:org/repo in.jsonl -o out.jsonl --address auto --replicas 8
    """
    try:
        from ..server.batch.job import BatchJob
    except ImportError as error:
        raise ExtraError(f"fewbit batch needs {error.name}: pip install 'fewbit[server]'") from None
    ((name, path),) = model_names((model,)).items()
    loading, _ = split_options(options)
    path = fetched_path(path) or path
    is_local = address is None and replicas == 1
    path = str(find_model(path)) if is_local else path
    with BatchJob(source, out, job_facts(name, path, loading), force) as job:
        tell_resumed(job)
        if job.num_done == job.num_lines:
            summary = job.finish()
        elif is_local:
            summary = run_here(job, name, path, loading)
        else:
            summary = run_there(job, name, path, loading, address, replicas)
    if as_json:
        print_json(summary.facts())
    elif not is_quiet():
        print_summary(summary)


def job_facts(name: str, path: str, loading: dict[str, Any]) -> dict[str, str]:
    """What the answers of a job depend on."""
    from ..server.batch.job import file_stamp

    given = {option: str(value) for option, value in loading.items() if option in DETERMINING and value is not None}
    return {"model": name, "file": file_stamp(Path(path)) if Path(path).exists() else path, **given}


def run_here(job: BatchJob, name: str, path: str, loading: dict[str, Any]) -> BatchSummary:
    from ..server.batch.local import run_local

    with load(path, writes=False, **loading) as llm, Waiting("answering", unit="requests") as waiting:
        return run_local(job, llm, name, lambda: waiting("answering", job.num_done, job.num_lines))


def run_there(
    job: BatchJob, name: str, path: str, loading: dict[str, Any], address: str | None, replicas: int
) -> BatchSummary:
    """Do a job on a Ray cluster."""
    try:
        from ..cluster.batch import Workers, run_on_cluster
    except ImportError as error:
        raise ExtraError(f"--address and --replicas need {error.name}: pip install 'fewbit[cluster]'") from None
    on_gpu = str(loading.get("device", "")).startswith("cuda")
    threads = loading.get("threads") or 1
    options = {option: value for option, value in loading.items() if value is not None}
    workers = Workers(
        os.path.abspath(path) if os.path.exists(path) else path, name, {**options, "threads": threads}, replicas,
        cpus=float(threads), gpus=float(on_gpu), max_seqs=loading.get("max_seqs") or 64,
    )  # fmt: skip
    with Waiting("starting workers", unit="requests") as waiting:
        return run_on_cluster(job, workers, address, lambda: waiting("answering", job.num_done, job.num_lines))


def tell_resumed(job: BatchJob) -> None:
    if job.resumed:
        tell(f"fewbit: {job.resumed} of {job.num_lines} requests were done before")


def print_summary(summary: BatchSummary) -> None:
    failed = f", {summary.failed} failed" if summary.failed else ""
    click.echo(f"{summary.output}: {summary.completed} answers{failed}, {summary.prompt_tokens} tokens in, "
               f"{summary.completion_tokens} out, {summary.seconds:.1f} s")  # fmt: skip
