"""A tiny random model behind a server: in this process for most tests, on a port for those of connections."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from fewbit.llm import LLM
from fewbit.server.app import make_app
from fewbit.server.listening import listen
from fewbit.server.pool import Pool
from fewbit.server.serving import Server, make_config
from fewbit.server.settings import Settings

from ..cli.tiny import write_tiny
from .tool_model import write_tool_model

URL = "http://127.0.0.1"
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 8}


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("models") / "tiny.gguf")


@pytest.fixture(scope="session")
def llm(tiny_path: Path) -> Iterator[LLM]:
    with LLM(tiny_path, ctx=1024, threads=1, batch_invariant=True) as found:
        yield found


@pytest.fixture(scope="module")
def tool_llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    """A model whose chat template takes tools."""
    path = write_tool_model(tmp_path_factory.mktemp("models") / "tiny.gguf")
    with LLM(path, ctx=1024, threads=1, batch_invariant=True) as found:
        yield found


# "": the model in this process; "replicas": two replicas in this process; "ray": two on Ray, for `Live` alone.
BACKEND = os.environ.get("FEWBIT_TEST_BACKEND", "")


def pool_of(llm: LLM) -> Pool:
    """A server's models, by the backend that is to be tested."""
    if BACKEND == "":
        return Pool.of(llm)
    from ..cluster.in_process import replicas_of

    return Pool.of_backends({llm.model_name: replicas_of(llm, llm)})


def client_of(llm: LLM, **settings: Any) -> TestClient:
    """A client of a server in this process. The model is not closed with it."""
    return TestClient(make_app(Settings(**settings), pool_of(llm)), base_url=URL, raise_server_exceptions=False)


@pytest.fixture
def client(llm: LLM) -> TestClient:
    return client_of(llm)


class Live:
    """A server on a port of this machine, in a thread."""

    def __init__(self, llm: LLM, **settings: Any) -> None:
        self.llm = llm
        limits = Settings(port=0, **settings)
        self.app = make_app(limits, pool_of(llm), close_pool=False)
        self.socket = listen(limits)
        self.url = f"{URL}:{self.socket.getsockname()[1]}"
        ready = threading.Event()
        self.server = Server(make_config(self.app), self.app.state.fewbit, ready.set)
        self._thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.socket]})
        self._thread.start()
        assert ready.wait(30)

    def is_idle(self) -> bool:
        """Whether nothing runs, waits or holds a page for itself."""
        engine, cache = self.llm.engine.stats(), self.llm.engine.cache.stats()
        return not (engine.active or engine.waiting or cache.used or self.app.state.fewbit.open_runs)

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        for _ in range(1000):
            if is_so():
                return
            time.sleep(0.02)
        raise AssertionError("it did not come to be")

    def close(self) -> None:
        self.server.should_exit = True
        self._thread.join()
        self.socket.close()


if BACKEND == "ray":
    from ..cluster.live import RayLive as Live  # type: ignore[assignment]


@pytest.fixture
def live(llm: LLM) -> Iterator[Live]:
    found = Live(llm, ping_seconds=0.1)
    yield found
    found.close()


@pytest.fixture(scope="module")
def server(tool_llm: LLM) -> Iterator[Live]:
    found = Live(tool_llm)
    yield found
    found.close()
