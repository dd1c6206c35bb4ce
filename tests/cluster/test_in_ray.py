"""The examples of docs/cluster.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from fewbit.llm import LLM

pytestmark = [pytest.mark.cluster, pytest.mark.filterwarnings("ignore")]

PAGE = Path(__file__).parents[2] / "docs/cluster.md"


def examples() -> Any:
    """The Python of the page, as a module that Ray sends by its source."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)

    names: dict[str, Any] = {"__name__": "__main__"}
    exec("\n".join(blocks), names)
    return names


def test_an_llm_in_an_actor_and_in_map_batches(cluster: Any, path: Path) -> None:
    import ray

    names, prompts = examples(), [f"prompt {number}" for number in range(20)]
    with LLM(path, threads=1, batch_invariant=True) as llm:
        expected = [llm.generate(prompt, max_tokens=8, temperature=0).text for prompt in prompts]
    model = names["Model"].remote(str(path))
    assert ray.get([model.generate.remote(prompt) for prompt in prompts[:4]]) == expected[:4]
    ray.kill(model)
    found = names["complete"](prompts, str(path))
    assert sorted(found) == sorted(expected)
