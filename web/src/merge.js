// Merging of pairs: the best one first, the leftmost of equals.

/** Merges symbols until no two neighbours have a rank. `rank(left, right)` is {order: numbers, to: symbol} or null. */
export function merge(symbols, rank) {
  const next = symbols.map((_, i) => (i + 1 < symbols.length ? i + 1 : -1));
  const before = symbols.map((_, i) => i - 1);
  const heap = new Heap();
  const offer = (at) => {
    if (at < 0 || next[at] < 0) return;
    const found = rank(symbols[at], symbols[next[at]]);
    if (found) heap.push({ ...found, at, left: symbols[at], right: symbols[next[at]] });
  };
  for (let at = 0; at < symbols.length; at++) offer(at);
  for (let top = heap.pop(); top; top = heap.pop()) {
    const { at } = top;
    if (symbols[at] !== top.left || next[at] < 0 || symbols[next[at]] !== top.right) continue;
    const gone = next[at];
    symbols[at] = top.to;
    symbols[gone] = null;
    next[at] = next[gone];
    if (next[at] >= 0) before[next[at]] = at;
    offer(before[at]);
    offer(at);
  }
  return symbols.filter((symbol) => symbol !== null);
}

const isBefore = (a, b) => {
  for (let i = 0; i < a.order.length; i++) if (a.order[i] !== b.order[i]) return a.order[i] < b.order[i];
  return a.at < b.at;
};

class Heap {
  items = [];

  push(item) {
    const { items } = this;
    let at = items.push(item) - 1;
    while (at > 0) {
      const above = (at - 1) >> 1;
      if (!isBefore(item, items[above])) break;
      items[at] = items[above];
      at = above;
    }
    items[at] = item;
  }

  pop() {
    const { items } = this;
    const top = items[0];
    const last = items.pop();
    if (items.length) this.sink(last);
    return top;
  }

  sink(item) {
    const { items } = this;
    let at = 0;
    for (;;) {
      let below = 2 * at + 1;
      if (below >= items.length) break;
      if (below + 1 < items.length && isBefore(items[below + 1], items[below])) below++;
      if (!isBefore(items[below], item)) break;
      items[at] = items[below];
      at = below;
    }
    items[at] = item;
  }
}
