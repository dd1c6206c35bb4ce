"""A tiny random model whose chat template takes tools."""

from __future__ import annotations

from pathlib import Path

from ..cli.tiny import write_tiny

TOOLS_TEMPLATE = (
    "{% for t in tools or [] %}tool: {{ t | tojson }}\n{% endfor %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c | tojson }}{% endfor %}\n{% endfor %}assistant:"
)


def write_tool_model(path: Path) -> Path:
    return write_tiny(path, template=TOOLS_TEMPLATE)
