"""A batch of 2,000 requests on a Ray cluster of two nodes; a worker is killed twice, then the driver, then it goes on.

    python benchmarks/batch_killed.py [--requests 2000]

It compares the output with that of one process that nobody disturbed, byte by byte, and prints what was resumed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=2000)
    requests = parser.parse_args().requests
    from fewbit.llm import LLM
    from tests.cli.tiny import write_tiny
    from tests.cluster.conftest import two_nodes
    from tests.cluster.test_batch import LOADING, kill_and_compare

    with tempfile.TemporaryDirectory() as name, two_nodes() as cluster:
        folder = Path(name)
        model = write_tiny(folder / "tiny.gguf")
        begun = time.perf_counter()
        with LLM(model, **LOADING) as llm:
            summary = kill_and_compare(cluster.address, folder, model, llm, requests)
        summary |= {"same_bytes": True, "all_seconds": round(time.perf_counter() - begun, 1)}
        print(json.dumps(summary, indent=2))


if __name__ == "__main__":
    main()
