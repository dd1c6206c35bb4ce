"""Models in a browser: the plan that the JavaScript runtime in `web/` runs, made from what a GGUF file's header says.

The runtime knows WebGPU and no model: `described.py` takes what it read of a file, `plan.py` answers with shaders,
buffers and dispatches (`ops.webgpu.export`), and `rules.py` with how text becomes tokens.
"""

from .described import DescribedFile, Description
from .plan import AdapterLimits, make_plan

__all__ = ["AdapterLimits", "DescribedFile", "Description", "make_plan"]
