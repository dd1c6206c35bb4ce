"""The adapters of a model: loaded and unloaded while it runs."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any

from ..engine.adapters import check_adapter_name
from ..errors import DtypeError, RequestError

if TYPE_CHECKING:
    from ..engine.engine import Engine
    from ..engine.worker import Worker
    from ..loading import Loaded


class AdapterMethods:
    """What an `LLM` does with adapters. Any thread may call it, while requests run."""

    engine: Engine
    loaded: Loaded
    _worker: Worker

    @property
    def adapters(self) -> dict[str, str]:
        """The names of the loaded adapters, and where each came from."""
        return self.engine.adapters.sources

    def load_adapter(self, name: str, path: str | PathLike[str] | None, *, replace: bool = False) -> None:
        """Load a LoRA adapter, so that requests can name it.

            llm.load_adapter("sql", "adapters/sql")
            llm.generate("List all users:", adapter="sql")

        Args:
            name: What requests call it: letters, digits and `._/-`. A name is free again after `unload_adapter`.
            path: A folder that PEFT wrote, or a GGUF file of llama.cpp's `convert_lora_to_gguf.py`. None: the name
                stands for the model without an adapter.
            replace: Take the name from the adapter that has it, between two steps. Requests that use that one go on
                with it to their end.
        """
        self.engine.adapters.check_free(name, replace)
        if self.loaded.adapters is None:
            raise RequestError("this model takes no adapters: it was not loaded from a file")
        if path is None:
            self._worker.call(lambda engine: engine.adapters.add(name, "", None, replace=replace))
            return
        found = self.loaded.adapters.read(path)
        self._worker.call(lambda engine: engine.adapters.add(name, found.key, found.terms, str(path), replace))

    def unload_adapter(self, name: str) -> None:
        """Forget an adapter: no further request can name it. Those that use it go on to their end.

        Args:
            name: Its name.
        """
        self._worker.call(lambda engine: engine.adapters.remove(name))


def check_adapters(adapters: Any) -> dict[str, str | PathLike[str]]:
    """The option `adapters`: paths by name.

    >>> check_adapters({"sql": "adapters/sql"})
    {'sql': 'adapters/sql'}
    """
    if adapters is None:
        return {}
    if not isinstance(adapters, Mapping):
        raise DtypeError(f'adapters must be a dict such as {{"sql": "adapters/sql"}}, not {type(adapters).__name__}')
    for name in adapters:
        check_adapter_name(name)
    return {**adapters}
