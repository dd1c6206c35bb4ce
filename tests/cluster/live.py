"""A server of the tests over two replicas on Ray: it stands for `Live` of tests/server/conftest.py."""

from __future__ import annotations

import atexit
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path
from typing import Any

from fewbit.llm import LLM, Completion, TextDelta
from fewbit.server.settings import Settings

from .conftest import two_nodes
from .deployed import URL, delete, num_replicas, start_http, stats, wait_until


class Script:
    """What the replicas of a model write, whatever they are asked: `lines`, in a file beside the model."""

    def __init__(self, llm: LLM) -> None:
        self._path = script_path(llm)

    @property
    def lines(self) -> list[str] | None:
        return json.loads(self._path.read_text()) if self._path.exists() else None

    @lines.setter
    def lines(self, lines: list[str] | None) -> None:
        if lines is None:
            self._path.unlink()
        else:
            whole = self._path.with_suffix(".written")
            whole.write_text(json.dumps(lines))
            whole.replace(self._path)  # replicas read it at any moment


def script_path(llm: LLM) -> Path:
    assert llm.path is not None
    return llm.path.with_suffix(".script")


def load_scripted(kind: type[LLM], source: str, **options: Any) -> LLM:
    """A model of this class that writes what its `Script` says."""

    async def aparts(self: LLM, prompts: Any, **options: Any) -> AsyncGenerator[TextDelta, None]:
        lines, parts = Script(self).lines, await kind.aparts(self, prompts, **options)
        return parts if lines is None else written(lines)

    scripted = type("Scripted", (kind,), {"aparts": aparts})
    return scripted(source, **options)


async def written(lines: list[str]) -> AsyncGenerator[TextDelta, None]:
    for line in lines:
        yield TextDelta(0, line, [1])
    yield TextDelta(0, "", [], completion=Completion("".join(lines), [1] * len(lines), "stop"))


@cache
def join_cluster() -> None:
    """A cluster for this process, until its end."""
    stack = ExitStack()
    stack.enter_context(two_nodes())
    atexit.register(stack.close)


class RayLive:
    """A server over replicas of a model, on the cluster of the tests."""

    def __init__(self, llm: LLM, **settings: Any) -> None:
        from ray import serve

        from fewbit.cluster.app import application
        from fewbit.cluster.options import ClusterOptions

        join_cluster()
        start_http()
        Settings(**settings)
        self.llm, self.url = llm, URL
        kind = type(llm)
        loading = {"ctx": llm.ctx, "threads": 1, "batch_invariant": kind is LLM}
        options = ClusterOptions({llm.model_name: str(llm.path)}, 2, cpus=0.5, loading=loading, settings=settings)
        serve.run(application(options, partial(load_scripted, kind)), name="fewbit", route_prefix="/")
        wait_until(lambda: num_replicas() == 2)

    def is_idle(self) -> bool:
        found = stats()
        return not (found["running"] or found["waiting"] or found["pages_used"])

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        wait_until(is_so)

    def close(self) -> None:
        delete()
