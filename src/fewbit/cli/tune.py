"""`fewbit tune`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .completion import ModelName
from .model import fetched_path, plain_warnings
from .options import as_json, count_option, quiet_option
from .output import is_quiet, print_json, shown
from .progress import Waiting

if TYPE_CHECKING:
    from ..tuning import TunedAdapter


@click.command()
@click.argument("model", type=ModelName())
@click.argument("data", type=click.Path(exists=True, dir_okay=False, path_type=Path), required=False)
@click.option(
    "--from-feedback",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="In place of DATA: the votes that fewbit serve --feedback has kept.",
)
@click.option(
    "-o", "--out", required=True, type=click.Path(path_type=Path), metavar="FOLDER", help="Where it is written."
)
@count_option("--rank", what="Rank of the adapter.", default=16)
@click.option("--alpha", type=float, metavar="X", default=32.0, help="Its change is multiplied by alpha / rank.")
@click.option("--modules", metavar="NAME,..", help="Linear layers to train, such as q_proj,v_proj.", show_default="all")
@click.option("--learning-rate", type=float, metavar="X", default=2e-4, help="The highest; it warms up and falls.")
@count_option("--epochs", what="How often each example is learned.", default=3)
@count_option("--batch", what="Examples of an optimizer step.", default=8)
@count_option("--step-tokens", what="Tokens that run at once; larger batches are added up in parts.", default=512)
@count_option("--max-tokens", least=2, what="Longer examples are cut at their end.", default=1024)
@click.option("--warmup", type=click.FloatRange(0, 1), metavar="X", default=0.1, help="Share of steps that warm up.")
@click.option("--held-out", type=click.FloatRange(0, 1, max_open=True), metavar="X", default=0.1,
              help="Share of examples that only measure the loss.")  # fmt: skip
@click.option("--on-prompt", is_flag=True, help="Learn what users say too, not only the answers.")
@click.option("-s", "--seed", type=click.IntRange(0), metavar="N", default=0, help="Of the begin and of the order.")
@count_option("--checkpoint-steps", what="Steps between two checkpoints.", default=20)
@click.option("--force", is_flag=True, help="Replace an adapter that is there.")
@count_option("-t", "--threads", what="Threads to use.", show_default="all usable cores")
@quiet_option
@as_json
def tune(
    model: str, data: Path | None, from_feedback: Path | None, out: Path, modules: str | None, as_json: bool,
    **options: Any,
) -> None:  # fmt: skip
    """Train a LoRA adapter on a model whose weights stay packed.

    DATA has an example a line, in JSON: {"messages": [...]}, {"prompt": ..., "completion": ...} or {"text": ...}. Of a
    conversation the assistant's messages are learned. FOLDER gets the adapter as PEFT writes it, loss.html and
    training.json. If the command is stopped, the same command goes on from its last checkpoint. It needs torch: pip
    install 'fewbit[tune]'.

    With --from-feedback, FOLDER has versions: the next one is trained on all votes, and used from then on only if it is
    better on those held out. fewbit adapters lists them.

    \b
    Examples:
      fewbit tune model.gguf data.jsonl -o adapter/
      fewbit tune hf:org/repo data.jsonl -o adapter/ --rank 8
      fewbit tune model.gguf --from-feedback votes.db -o adapters/
      fewbit tune model.gguf notes.jsonl -o adapter/ --epochs 1 --json
    """
    if (data is None) == (from_feedback is None):
        raise click.UsageError("either DATA or --from-feedback is needed")
    options["modules"] = None if modules is None else modules.split(",")
    if from_feedback is not None:
        learn(model, from_feedback, out, as_json, options)
        return
    with plain_warnings(), Waiting(f"reading {shown(model, 60)}", unit="steps") as waiting:
        from ..tuning import tune as train

        assert data is not None
        made = train(fetched_path(model) or model, data, out, progress=waiting, **options)
    if as_json:
        from ..tuning.tuned import facts

        print_json(facts(made))
    elif not is_quiet():
        print_made(made)


def learn(model: str, feedback: Path, out: Path, as_json: bool, options: dict[str, Any]) -> None:
    """The next version of an adapter, from votes."""
    for name in ("on_prompt", "force"):
        if options.pop(name):
            raise click.UsageError(f"--{name.replace('_', '-')} does not go with --from-feedback")
    with plain_warnings(), Waiting(f"reading {shown(model, 60)}", unit="steps") as waiting:
        from ..tuning import tune_from_feedback

        version = tune_from_feedback(fetched_path(model) or model, feedback, out, progress=waiting, **options)
    if as_json:
        print_json({"path": str(out / version.name), **asdict(version)})
    elif not is_quiet():
        kind = "better: it is in use" if version.is_better else "not better: it is not used"
        click.echo(f"{version.name}, from {version.votes} votes, is {kind}")
        click.echo(f"loss on held-out votes {version.loss:.4f}, before {version.previous_loss:.4f}")


def print_made(made: TunedAdapter) -> None:
    minutes = f"{made.seconds / 60:.1f} minutes" if made.seconds >= 60 else f"{made.seconds:.0f} s"
    click.echo(f"{made.steps} steps in {minutes}, loss {made.loss:.4f}")
    if made.held_out:
        before, after = made.held_out
        click.echo(f"held-out loss {before:.4f} before, {after:.4f} after ({100 * (after / before - 1):+.1f}%)")
    click.echo(f"{made.path}: written")
