"""`fewbit completion`, and the names of models that Tab offers."""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.shell_completion import CompletionItem, get_completion_class
from click.types import StringParamType

from ..errors import ArgumentError
from .files import write_text

VARIABLE = "_FEWBIT_COMPLETE"
SHELLS = ("bash", "zsh", "fish")


class ModelName(StringParamType):
    """A model in an argument: Tab offers names and files."""

    name = "model"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from ..files.hub import all_names
        from .cached import local_names

        names = dict.fromkeys([*local_names(), *all_names()])
        found = [CompletionItem(name) for name in names if name.startswith(incomplete)]
        return [*found, CompletionItem(incomplete, type="file")]


@click.command()
@click.argument("action", type=click.Choice(["install", "show"]))
@click.argument("shell", required=False, type=click.Choice(SHELLS))
def completion(action: str, shell: str | None) -> None:
    """Let the shell complete commands, options and models on Tab.

    `install` writes a script where the shell looks for it, and says if something else is needed; `show` prints the
    script. SHELL is bash, zsh or fish; the one in $SHELL if it is not given.

    \b
    Examples:
      fewbit completion install
      fewbit completion install fish
      fewbit completion show zsh > _fewbit
    """
    chosen = shell or default_shell()
    if action == "show":
        click.echo(script(chosen))
        return
    path = script_path(chosen)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArgumentError(f"{path.parent}: cannot be made: {error.strerror}") from None
    write_text(path, script(chosen) + "\n")
    click.echo(f"wrote {path}")
    click.echo(hint(chosen, path))


def default_shell() -> str:
    name = os.path.basename(os.environ.get("SHELL", ""))
    if name not in SHELLS:
        raise click.UsageError(f"$SHELL is {name or 'not set'}; name one of {', '.join(SHELLS)}")
    return name


def script(shell: str) -> str:
    from . import main

    made = get_completion_class(shell)
    assert made
    return made.source_template % made(main, {}, "fewbit", VARIABLE).source_vars()


def script_path(shell: str) -> Path:
    """Where each shell looks for scripts of a user."""
    home = Path.home()
    data = Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share")
    config = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    return {
        "bash": data / "bash-completion" / "completions" / "fewbit",
        "zsh": data / "zsh" / "site-functions" / "_fewbit",
        "fish": config / "fish" / "completions" / "fewbit.fish",
    }[shell]


def hint(shell: str, path: Path) -> str:
    if shell == "bash":
        return f"bash-completion loads it in new shells; without that package, put `source {path}` into ~/.bashrc"
    if shell == "zsh":
        return f"put `fpath+=({path.parent}); autoload -U compinit; compinit` into ~/.zshrc, and start a new shell"
    return "new shells load it"
