"""`fewbit serve --replicas`: which options it takes, and what it deploys."""

from __future__ import annotations

from typing import Any

import click

from ..errors import ExtraError

CLUSTER_OPTIONS = [
    click.option("--replicas", type=click.IntRange(1), metavar="N",
                 help="Serve each model with N replicas over Ray Serve, each an engine of its own; needs "
                      "fewbit[cluster]."),
    click.option("--max-replicas", type=click.IntRange(1), metavar="N",
                 help="Start up to N replicas while many tokens are queued; needs --replicas."),
    click.option("--address", metavar="ADDRESS",
                 help="Ray cluster for the replicas, such as auto or HOST:6379; needs --replicas.",
                 show_default="this machine"),
]  # fmt: skip

# Of the plain server's connections, and of its models that come and go.
WITHOUT_REPLICAS = (
    "max_connections", "max_connections_per_address", "min_body_rate", "body_idle", "max_models", "pinned",
    "allow_changes", "share_models", "cache_dir", "cache_dir_bytes",
)  # fmt: skip


def check_options(context: click.Context) -> bool:
    """Whether replicas are wanted. Options that do not go together are refused."""
    given = {
        name for name in context.params if context.get_parameter_source(name) == click.core.ParameterSource.COMMANDLINE
    }
    flags = {one.name: one.opts[-1] for one in context.command.params}
    if "replicas" not in given:
        for name in ("max_replicas", "address"):
            if name in given:
                raise click.UsageError(f"{flags[name]} needs --replicas")
        return False
    for name in WITHOUT_REPLICAS:
        if name in given:
            raise click.UsageError(f"{flags[name]} does not go with --replicas")
    if not context.params["port"]:
        raise click.UsageError("--replicas needs a --port, got 0")
    replicas, most = context.params["replicas"], context.params["max_replicas"]
    if most is not None and most < replicas:
        raise click.UsageError(f"--max-replicas must be at least {replicas}, the number of --replicas, got {most}")
    return True


def serve_replicas(
    models: dict[str, str], settings: dict[str, Any], loading: dict[str, Any], rest: dict[str, Any], url: str
) -> None:
    """Deploy the models, and serve them until a signal comes."""
    try:
        from ..cluster.options import ClusterOptions
        from ..cluster.run import serve_on_cluster
    except ImportError as error:
        raise ExtraError(f"fewbit serve --replicas needs {error.name}: pip install 'fewbit[cluster,server]'") from None
    has_gpu = loading["device"].startswith("cuda")
    options = ClusterOptions(
        models, replicas=rest["replicas"], max_replicas=rest["max_replicas"],
        cpus=float(loading.pop("threads") or has_gpu), gpus=float(has_gpu),
        loading=loading, settings=settings,
    )  # fmt: skip
    names = ", ".join(models)

    def ready() -> None:
        click.echo(f"fewbit serves {names} at {url} with {rest['replicas']} replicas; Ctrl-C ends it", err=True)

    serve_on_cluster(options, rest["address"], url, ready)
