"""The HTML page of a report: tables and charts, without scripts, fonts or requests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING

from .figures import SECTIONS, Chart
from .svg import STYLES, themes
from .weights import TensorLoss

if TYPE_CHECKING:
    from .measuring import ModelReport, Report

WORST = 12  # matrices of a model that are listed

CSS = """
* { box-sizing: border-box; }
html { color-scheme: light dark; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.55 system-ui, sans-serif; }
main { max-width: 70rem; margin: 0 auto; padding: 2rem 1.25rem 4rem; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .4rem; }
h2 { font-size: 1.2rem; margin: 2.6rem 0 .6rem; padding-top: .8rem; border-top: 1px solid var(--grid); }
h3 { font-size: 1rem; margin: 1.6rem 0 .4rem; }
p { margin: .4rem 0; max-width: 46rem; }
.note, figcaption { color: var(--faint); font-size: .9rem; }
figure { margin: 1.2rem 0; }
.wide { overflow-x: auto; }
svg { display: block; width: 100%; min-width: 34rem; height: auto; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .3rem .5rem; border-bottom: 1px solid var(--grid); white-space: nowrap; }
th { font-weight: 600; color: var(--faint); }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
summary { cursor: pointer; margin: .8rem 0; }
"""

NOTES = {
    "Size and loss": "",
    "Loss by layer": "Errors are relative: the length of the difference over the length of the reference's values.",
    "Weights and codes": "The axis of shares is logarithmic. Rows are sampled from each matrix.",
    "KV cache": "",
}


def page(report: Report, charts: Sequence[Chart]) -> str:
    """The whole page."""
    title = "Quantized models" if len(report.models) > 1 else report.models[0].name
    body = "".join([f"<h1>{escape(title)}</h1>", *_introduction(report), *_sections(report, charts)])
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon" href="data:,">'
        f"<title>{escape(title)}</title><style>{themes(':root')}{CSS}{STYLES}</style>"
    )
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body><main>{body}</main></body></html>\n'


def _introduction(report: Report) -> Iterator[str]:
    if report.text_tokens:
        yield f"<p>Measured by fewbit over a text of {report.text_tokens:,} tokens.</p>"
    if report.reference:
        base = report.reference_evaluation
        suffix = f", with a perplexity of {base.perplexity:.4f}" if base else ""
        yield f"<p>The reference is <b>{escape(report.reference)}</b>{suffix}.</p>"


def _sections(report: Report, charts: Sequence[Chart]) -> Iterator[str]:
    for section in SECTIONS:
        own = [chart for chart in charts if chart.section == section]
        is_first = section == SECTIONS[0]
        if not own and not is_first:
            continue
        yield f"<h2>{section}</h2>"
        if NOTES[section]:
            yield f'<p class="note">{NOTES[section]}</p>'
        if is_first:
            yield from _summary(report)
        yield from map(_figure, own)
        if section == "Loss by layer":
            yield from map(_worst, report.models)
        if section == "KV cache":
            yield _kv_table(report)


def _figure(chart: Chart) -> str:
    caption = f"<figcaption>{escape(chart.caption)}</figcaption>"
    return f'<figure><div class="wide">{chart.drawing.markup()}</div>{caption}</figure>'


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """
    >>> table(["a"], [["<b>"]]).removeprefix('<div class="wide"><table><thead><tr><th>a</th></tr></thead>')
    '<tbody><tr><td>&lt;b&gt;</td></tr></tbody></table></div>'
    """
    first = "".join(f"<th>{escape(head)}</th>" for head in heads)
    lines = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{first}</tr></thead><tbody>{lines}</tbody></table></div>'


def _summary(report: Report) -> Iterator[str]:
    has_text = any(model.evaluation for model in report.models)
    has_reference = any(model.evaluation and model.evaluation.divergence for model in report.models)
    heads = ["model", "MB", "bits a weight"]
    heads += ["perplexity", "±"] if has_text else []
    heads += ["KL", "±", "median", "99%", "max", "same top", "RMS Δp"] if has_reference else []
    yield table(heads, [_row(model) for model in report.models])
    if has_reference:
        yield (
            '<p class="note">KL is the mean divergence from the reference in nats a token. RMS Δp is by how much the '
            "probability of the text's own token changes.</p>"
        )


def _row(model: ModelReport) -> list[str]:
    cells = [model.name, f"{model.file_bytes / 1e6:.1f}", f"{model.weights.bits:.2f}"]
    if model.evaluation:
        cells += [f"{model.evaluation.perplexity:.4f}", f"{model.evaluation.perplexity_error:.4f}"]
        if d := model.evaluation.divergence:
            cells += [f"{value:.5f}" for value in (d.mean, d.error, d.median, d.p99, d.max)]
            cells += [f"{100 * d.top1:.2f}%", f"{100 * d.rms_delta_p:.2f}%"]
    return cells


def _worst(model: ModelReport) -> str:
    """The matrices of a model that lose most."""

    def rank(loss: TensorLoss) -> float:
        return -(loss.error if loss.effect is None else loss.effect)

    losses = sorted(model.weights.losses, key=rank)[:WORST]
    if not losses:
        return ""
    rows = [
        [one.name, one.format, f"{100 * one.error:.2f}%", "-" if one.effect is None else f"{100 * one.effect:.2f}%"]
        for one in losses
    ]
    heads = ["matrix", "format", "error of weights", "error of outputs"]
    name = escape(model.name)
    return f"<details><summary>{name}: the matrices that lose most</summary>{table(heads, rows)}</details>"


def _kv_table(report: Report) -> str:
    ranges = sorted({depth for one in report.kv for depth in one.by_depth()})
    rows = []
    for one in report.kv:
        parts = one.by_depth()
        means = [parts[depth].divergence for depth in ranges]
        rows.append([one.kv, *("-" if values is None else f"{values.mean():.5f}" for values in means)])
    return table(["KL at depth", *(f"{begin}-{end - 1}" for begin, end in ranges)], rows)
