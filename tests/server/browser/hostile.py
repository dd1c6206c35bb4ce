"""Texts that a model might write to break the page, or to reach out of it."""

from __future__ import annotations

HOSTILE = {
    "script": "<script>document.title='owned';alert(1)</script>\n\n<img src=x onerror=alert(1)>",
    "svg": "<svg onload=alert(1)><iframe src='javascript:alert(1)'></iframe><style>*{display:none}</style>",
    "javascript links": "[a](javascript:alert(1)) [b](JaVaScRiPt:alert(1)) [c](data:text/html,<b>x</b>) "
    "[d](vbscript:x) [e](//evil.example) [f](/v1/models) [g](\tjavascript:alert(1)) <javascript:alert(1)> "
    "[h](&#106;avascript:alert(1))",
    "images": "![pixel](https://evil.example/pixel.png) ![x](javascript:alert(1)) "
    "[![a](https://a.example/)](https://b.example/)",
    "fence": "```html\n<script>alert(1)</script>\n``` <b>still code",
    "fence info": '```"onmouseover="alert(1)\nx\n```',
    "table": "|<script>alert(1)</script>|`|`|\n|-|-|\n|<img src=x onerror=alert(1)>|[x](javascript:alert(1))|a|b|c|",
    "heading": "# <img src=x onerror=alert(1)>\n\n###### [x](javascript:alert(1))",
    "overrides": "safe\u202eevil\u2066 text `co\u202ede`\n\n```\nif admin\u202e { \n```",
    "entities": "&lt;script&gt;alert(1)&lt;/script&gt; &#60;img&#62; &amp;lt; &constructor; &toString;",
    "prototype": "[__proto__](https://a.example/) `constructor` **__proto__**",
    "nul": "a\0b \ufffe \ud7ff",
}

LONG = {
    "one line": "x" * (1 << 20),
    "stars": "*a " * 50_000 + "b* " * 50_000,
    "brackets": "[" * 50_000 + "](" * 50_000,
    "ticks": " ".join("`" * n for n in range(1, 500)),
    "quotes": "> " * 20_000 + "x",
    "lists": "\n".join(" " * n + "- x" for n in range(2000)),
    "pipes": "x" + "|" * 50_000 + "\n" + "|-" * 900 + "\n" + "|" * 50_000,
    "overrides": "a\u202e" * 50_000,
    "dollars": "$a " * 50_000,
    "formulas": "\\(" * 50_000 + "$$x " * 999,
    "formula lines": "\\[\n" * 5000,
    "notes": "[^1]: a\n" * 1000 + "[^1]" * 1000,
    "hashes": "#" * 100_000 + " x",
    "spaces": "a" + " " * 100_000 + "b\n" * 2000,
}
