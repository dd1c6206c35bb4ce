"""The prefix tree: full pages, found by their tokens.

The path from a root to a node is a text, one page of tokens at each node. The node has the page that holds them, for
each group of layers. Each namespace has its own root. Nodes are found by all tokens from the first position to the end
of the page, compared in full, never by hash alone.

A node stays while it has a page, a child, or a sequence whose last page in the tree it is.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator


def make_key(data: bytes) -> bytes:
    return data


class PrefixNode:
    """A page of tokens after those of its ancestors, and the pages that hold it, by group; None where there is none."""

    __slots__ = ("children", "depth", "digest", "holders", "is_long", "key", "pages", "parent")

    def __init__(self, parent: PrefixNode | None, key: bytes, groups: int) -> None:
        self.parent = parent
        self.key = key
        self.pages: list[int | None] = [None] * groups
        self.children: dict[bytes, PrefixNode] = {}
        self.holders = 0  # sequences whose last page in the tree this is
        self.depth: int = -1 if parent is None else parent.depth + 1  # from the root of its namespace
        self.digest = b""  # for the disk, see spill.py
        self.is_long = False  # a page below was written there
        if parent is not None:
            parent.children[key] = self

    def prune(self) -> None:
        """Remove this node if it is unused, and then its unused ancestors."""
        node = self
        while node.parent is not None and node.is_unused:
            del node.parent.children[node.key]
            node = node.parent

    @property
    def is_unused(self) -> bool:
        return not self.holders and not self.children and all(page is None for page in self.pages)


class PrefixTree:
    """All namespaces.

    >>> tree = PrefixTree(groups=1, page_tokens=2)
    >>> a = PrefixNode(tree.root("mine"), array("I", [1, 2]).tobytes(), 1)
    >>> tree.find("mine", array("I", [1, 2, 3])) == [a], tree.find("", array("I", [1, 2, 3]))
    (True, [])
    """

    def __init__(self, groups: int, page_tokens: int) -> None:
        self.groups = groups
        self.page_tokens = page_tokens
        self._top = PrefixNode(None, b"", groups)

    def root(self, namespace: str) -> PrefixNode:
        """The root of a namespace, which is added if there is none."""
        key = name_key(namespace)
        return self._top.children.get(key) or PrefixNode(self._top, key, self.groups)

    def find(self, namespace: str, tokens: array[int]) -> list[PrefixNode]:
        """The nodes of the full pages of a text, up to the first that is missing."""
        node = self._top.children.get(name_key(namespace))
        data, width = tokens.tobytes(), self.page_tokens * tokens.itemsize
        found: list[PrefixNode] = []
        for end in range(width, len(data) + 1, width):
            node = node and node.children.get(make_key(data[end - width : end]))
            if node is None:
                break
            found.append(node)
        return found

    def goes_on(self, namespace: str, nodes: list[PrefixNode]) -> bool:
        """Whether a text is known that begins with these nodes and has pages after them."""
        node = nodes[-1] if nodes else self._top.children.get(name_key(namespace))
        return node is not None and bool(node.children)

    def nodes(self) -> Iterator[PrefixNode]:
        """All nodes, parents before children."""
        stack = [self._top]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def key(self, tokens: array[int], number: int) -> bytes:
        """The key of a page of tokens."""
        return make_key(tokens[number * self.page_tokens : (number + 1) * self.page_tokens].tobytes())


def name_key(namespace: str) -> bytes:
    return namespace.encode(errors="surrogatepass")  # any str will do


def path(node: PrefixNode, depth: int) -> list[PrefixNode]:
    """The last `depth` nodes of the path to a node, the node itself included."""
    nodes: list[PrefixNode] = []
    while len(nodes) < depth:
        assert node.parent is not None
        nodes.append(node)
        node = node.parent
    return nodes[::-1]
