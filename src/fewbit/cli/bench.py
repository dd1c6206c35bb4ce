"""`fewbit bench`."""

from __future__ import annotations

import click

from .group import LazyGroup

TABLE = {
    "kernels": (
        "bench_kernels",
        "Time linear for formats and batch sizes, beside a plain read loop and the peak multiply rate.",
    ),
    "model": ("bench_model", "Tokens/s of a model."),
}
DEFAULT = "model"


class BenchGroup(LazyGroup):
    """What is no command of the group is the name of a model."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.table, *ctx.help_option_names):
            args = [DEFAULT, *args]
        return super().parse_args(ctx, args)

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_usage(ctx.command_path, "MODEL [OPTIONS]")
        formatter.write_usage(ctx.command_path, "kernels [OPTIONS]")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        command = self.get_command(ctx, DEFAULT)
        assert command
        command.format_options(ctx, formatter)
        self.format_commands(ctx, formatter)


@click.group(cls=BenchGroup, table=TABLE)
def bench() -> None:
    """Speed beside the machine's own limits.

    \b
    Examples:
      fewbit bench model.gguf
      fewbit bench model.gguf --batch 1,8,32 --depth 0,2048
      fewbit bench kernels
      fewbit bench kernels -f q4_k -f q6_k --batch 1,8,512
    """
