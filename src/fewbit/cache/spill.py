"""Spills pages of a KV cache to a disk when they are evicted, and reads them back before a prompt is run.

The name of a page is a hash chain: of the model, the formats and the layout, then the namespace, then the tokens of one
page after another. So pages are found by exactly the text that they hold, as in the prefix tree. Prompts of less than
`MIN_PAGES` pages are not written.
"""

from __future__ import annotations

import json
import sys
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from time import perf_counter

import numpy as np

from ..errors import OutOfPages
from ..ops.specs import AttentionSpec, RecurrentSpec
from .disk import DiskCache
from .pages import Pages
from .save import agreed
from .space import usable_pages
from .store import KVStore
from .tree import PrefixNode, name_key

MIN_PAGES = 4
DIGEST_BYTES = 32
Payloads = dict[tuple[int, int], bytes | memoryview]  # contents of pages, by group and number
WHOLE = 20  # times the limit for windows and recurrent states, which are useless in part


@dataclass(slots=True)
class _StoredPage:
    """A page of a text: by group its number in memory, -1 on the disk, None where it is missing."""

    digest: bytes
    node: PrefixNode | None
    pages: list[int | None]


class DiskSpill:
    """Writes pages of a cache to a disk, and reads them back."""

    def __init__(self, disk: DiskCache, store: KVStore, fingerprint: str) -> None:
        self.disk, self._store = disk, store
        layout = store.layout
        what = [fingerprint, disk.identity, sys.byteorder, layout.page_tokens, agreed(layout)]
        self._seed = _extend(b"", json.dumps(what, sort_keys=True).encode())

    def write(self, group: int, page: int, node: PrefixNode, wait: bool = False) -> None:
        """Write a page of the prefix tree in the background, if it belongs to a long prompt."""
        if node.depth >= MIN_PAGES:
            above = node.parent
            while above is not None and not above.is_long:
                above.is_long = True
                above = above.parent
        elif not node.is_long:
            return
        key = self._digest(node), group
        if not self.disk.touch(key):
            self.disk.put(key, pack(self._store, group, page), wait)

    def flush(self, pages: Pages) -> None:
        """Write all pages of the tree, ends of texts first: what was written last is kept longest."""
        for node in reversed(list(pages.space.tree.nodes())):
            for group, page in enumerate(node.pages):
                if page is not None:
                    self.write(group, page, node, wait=True)
        self.disk.flush()

    def fetch(
        self,
        pages: Pages,
        tokens: array[int],
        namespace: str,
        seconds: float,
        clock: Callable[[], float] = perf_counter,
    ) -> bool:
        """Read pages of a prompt, for about so many seconds. False if the disk may have more of it."""
        size = pages.page_tokens
        until = clock() + seconds * (1 if all(group.keeps_all for group in pages.groups) else WHOLE)
        known = pages.lookup(tokens, namespace) // size
        texts = list(self._known(pages, tokens, namespace)) if len(tokens) // size >= max(MIN_PAGES, known + 1) else []
        depth = usable_pages(pages.groups, texts, size)
        if depth <= known:
            return True
        found, is_whole = self._read(pages, texts, known, depth, lambda: clock() > until)
        if not is_whole:
            depth = usable_pages(pages.groups, texts, size)
        if depth <= known:
            return True
        return not self._restore(pages, tokens[: depth * size], namespace, found) or is_whole

    def _known(self, pages: Pages, tokens: array[int], namespace: str) -> Iterator[_StoredPage]:
        """The full pages of a prompt, up to the first that is nowhere."""
        nodes = pages.space.tree.find(namespace, tokens)
        digest = _extend(_extend(self._seed, b""), name_key(namespace))
        for number in range(len(tokens) // pages.page_tokens):
            digest = _extend(digest, pages.space.tree.key(tokens, number))
            node = nodes[number] if number < len(nodes) else None
            have = [node.pages[group] if node else None for group in range(len(pages.groups))]
            for group, page in enumerate(have):
                if page is None and self.disk.has((digest, group)):
                    have[group] = -1
            if all(page is None for page in have):
                return
            yield _StoredPage(digest, node, have)

    def _read(
        self, pages: Pages, texts: list[_StoredPage], known: int, depth: int, is_late: Callable[[], bool]
    ) -> tuple[Payloads, bool]:
        """Contents of pages, and whether they are complete. Pages that were not read are removed from `texts`."""
        found: Payloads = {}
        is_whole = True
        for number in range(known, len(texts)):
            for group, spec in enumerate(pages.groups):
                page = texts[number].pages[group]
                needed = page is not None and spec.first_page(depth, pages.page_tokens) <= number < depth
                payload = None
                if needed and is_whole:
                    payload = self._payload(texts[number], group)
                if payload is None:
                    texts[number].pages[group] = None
                    is_whole &= not needed
                else:
                    found[group, number] = payload
            is_whole &= number + 1 >= depth or not is_late()
        return found, is_whole

    def _payload(self, text: _StoredPage, group: int) -> bytes | memoryview | None:
        page = text.pages[group]
        assert page is not None
        if page >= 0:
            return pack(self._store, group, page)
        return self.disk.get((text.digest, group), self._store.layout.groups[group].page_bytes)

    def _restore(self, pages: Pages, tokens: array[int], namespace: str, found: Payloads) -> bool:
        """Put pages into the tree. False if there is no room."""
        size = pages.page_tokens
        depth = len(tokens) // size
        firsts = [max(0, group.first_page(depth, size)) for group in pages.groups]
        starts = [first * size for first, group in zip(firsts, pages.groups, strict=True) if not group.is_recurrent]
        try:
            sequence = pages.restore(tokens, len(tokens), starts, namespace, is_counted=False)
        except OutOfPages:
            return False
        try:
            state = pages.state(sequence)
            known = len(state.tokens)
            for group, first in enumerate(firsts):
                for number in range(max(first, known // size), depth):
                    page = state.tables[group][number] if group < len(starts) else state.next_slot
                    unpack(self._store, group, page, found[group, number])
            pages.commit(sequence, tokens[known:])
        finally:
            pages.free(sequence)
        return True

    def _digest(self, node: PrefixNode) -> bytes:
        chain: list[PrefixNode] = []
        above: PrefixNode | None = node
        while above is not None and not above.digest:
            chain.append(above)
            above = above.parent
        digest = self._seed if above is None else above.digest
        for one in reversed(chain):
            one.digest = digest = _extend(digest, one.key)
        return digest


def pack(store: KVStore, group: int, page: int) -> bytes:
    """The bytes of a page in all layers of a group, or of a slot, for any store with the same layout."""
    count = store.layout.page_tokens
    return b"".join(
        part.tobytes() for layer in store.layout.groups[group].layers for part in store.read(layer, page, count)
    )


def unpack(store: KVStore, group: int, page: int, payload: bytes | memoryview) -> None:
    """Fill a page with what `pack` returned."""
    layout, data, at = store.layout, np.frombuffer(payload, np.uint8), 0
    for layer in layout.groups[group].layers:
        spec = layout.specs[layer]
        if isinstance(spec, RecurrentSpec):
            store.write(layer, page, [data[at : at + spec.nbytes]])
            at += spec.nbytes
        elif isinstance(spec, AttentionSpec):
            parts = []
            for width in layout.row_bytes(spec):
                shape = layout.page_tokens, spec.kv_heads, width
                parts.append(data[at : at + width * shape[0] * shape[1]].reshape(shape))
                at += parts[-1].size
            store.write(layer, page, parts)


def _extend(digest: bytes, key: bytes) -> bytes:
    return blake2b(key, digest_size=DIGEST_BYTES, key=digest).digest()
