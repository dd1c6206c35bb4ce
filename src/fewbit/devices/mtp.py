"""A model with a layer that predicts a further token (MTP, or an EAGLE head): it keeps K and V of that layer too.

A step has three parts: the layers of the model give a hidden row for each token, the MTP layer keeps its K and V, the
head makes logits of the rows. The MTP layer pairs a token with the hidden row of the token before it, zeros for the
first one. So what it keeps of a token depends on no later one, and lies in the same pages as that of the other layers:
prefixes are shared, copied and evicted with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..arrays import Floats
from ..cache.cache import Cache
from ..cache.view import View
from ..models import LoadedModel
from ..ops.graph import Graph
from ..ops.low_rank import Terms
from . import Device
from .batch import Batch, Handle, Results, Row, RowResult
from .forward import make_batch
from .stage import inner_batch

KEPT_ROWS = 32  # of a sequence, the last ones: guesses that were wrong are fewer


class MtpExecutor:
    """Runs a model's steps, and drafts with its MTP layer.

    Args:
        device: Where all parts run.
        model: The model, loaded with its MTP layer.
        cache: The KV cache, whose store is the device's.
    """

    runs_ahead = False  # the hidden rows of a step come to the host

    def __init__(self, device: Device, model: LoadedModel, cache: Cache) -> None:
        assert model.drafting is not None
        parts, self.vocab, self.cache, self._width = model.drafting, model.config.vocab, cache, model.config.hidden
        layers, layer = (_executor(device, graph, cache, self.vocab) for graph in (parts.rows, parts.layer))
        head, own_head = (_executor(device, one, cache, one.result.width) for one in (parts.head, parts.own_head))
        self._tokens = parts.tokens
        self._layers, self._head, self._layer, self._own_head = layers, head, layer, own_head
        self.max_batched_tokens, self.max_logits = layers.max_batched_tokens, head.max_logits
        self._rows = HiddenRows(cache, model.config.hidden, len(model.specs) - 1)

    def place_adapter(self, terms: Terms) -> tuple[Any, Any]:
        """The terms for the layers, and for the head. Guesses are made without."""
        return self._layers.place_adapter(terms), self._head.place_adapter(terms)

    def launch(self, batch: Batch) -> Handle:
        every = [
            replace(one, adapter=one.adapter[0], logits_rows=one.rows, logits_weights=one.weights)
            for one in batch.adapters
        ]
        inner = inner_batch(batch)
        rows = self._layers.launch(replace(inner, adapters=every)).values().copy()
        nothing = replace(inner, adapters=(), logits_indices=inner.logits_indices[:0])
        paired = np.ascontiguousarray(rows[:, -self._width :])
        self._layer.launch(nothing, self._rows.paired(batch.view, paired))
        head = [replace(one, adapter=one.adapter[1]) for one in batch.adapters]
        hidden = np.ascontiguousarray(rows[:, : self._width])
        handle: Handle = self._head.launch(replace(batch, adapters=head), hidden)
        return handle

    def paired_rows(self, sequence: int, count: int) -> Floats | None:
        """The hidden rows that the next tokens of a sequence are paired with; None if they are not known."""
        return self._rows.find(sequence, self.cache.committed(sequence) - 1, count)

    def draft(self, rows: Sequence[Row], given: Sequence[Floats]) -> tuple[Results, list[Floats], View]:
        """A further token for each row, by the MTP layer.

        Args:
            rows: Tokens, of which the last one gives a sample.
            given: The hidden rows that the tokens of each row are paired with.

        Returns:
            What the rows gave, the MTP layer's own hidden row of the last token of each, and what was reserved.
        """
        batch = make_batch(self.cache, rows)
        try:
            own = self._layer.launch(inner_batch(batch), np.concatenate(given)).values().copy()
            nameless = replace(batch, tokens=np.zeros_like(batch.tokens))  # the head may know fewer tokens
            results = [self._named(one) for one in self._own_head.launch(nameless, own).fetch()]
            return results, [own[[i]] for i in batch.logits_indices], batch.view
        except BaseException:
            self.cache.rollback(batch.view)
            raise

    def _named(self, result: RowResult | Exception) -> RowResult | Exception:
        """A result with tokens as the model calls them."""
        if self._tokens is None or isinstance(result, Exception):
            return result
        return result._replace(tokens=[int(self._tokens[token]) for token in result.tokens])


def _executor(device: Device, graph: Graph, cache: Cache, vocab: int) -> Any:
    return device.make_executor(graph, cache.store, vocab)


class HiddenRows:
    """The hidden rows of the last tokens of sequences, and of the last token of each page: those that the next tokens
    may have to be paired with.

    Args:
        cache: The KV cache with the sequences.
        width: Values of a row.
        layer: The MTP layer.
    """

    def __init__(self, cache: Cache, width: int, layer: int) -> None:
        self._cache, self._group, self._width = cache, cache.layout.group_of[layer], width
        self._page_ends: dict[int, Floats] = {}

    def paired(self, view: View, rows: Floats) -> Floats:
        """For each token of a step the row of the token before it. The rows of the step are kept."""
        given = np.empty_like(rows)
        given[1:] = rows[:-1]
        self._keep_page_ends(view, rows)
        starts = view.q_starts.tolist()
        for number, (sequence, before) in enumerate(zip(view.sequences, view.before.tolist(), strict=True)):
            own, first = rows[starts[number] : starts[number + 1]], self.find(sequence, before - 1, 1)
            given[starts[number]] = first = np.zeros((1, self._width), np.float32) if first is None else first
            kept = np.concatenate([first, own])[-KEPT_ROWS:]
            self._cache.state(sequence).hidden = before + len(own) - len(kept), kept
        return given

    def find(self, sequence: int, position: int, count: int) -> Floats | None:
        """The rows of so many tokens from a position on; None if they are not known."""
        if position < 0:
            return np.zeros((1, self._width), np.float32) if count == 1 else None
        state = self._cache.state(sequence)
        if state.hidden is not None:
            first, rows = state.hidden
            if first <= position and position + count <= first + len(rows):
                return rows[position - first :][:count]
        size = self._cache.page_tokens
        row = self._page_ends.get(state.tables[self._group][position // size])
        return row if row is not None and count == 1 and position % size == size - 1 else None

    def _keep_page_ends(self, view: View, rows: Floats) -> None:
        pages, places = np.divmod(view.slots(self._group), view.page_tokens)
        for number in np.flatnonzero(places == view.page_tokens - 1).tolist():
            self._page_ends[int(pages[number])] = rows[[number]]
