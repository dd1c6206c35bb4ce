// Finds tokens that are spelled out in text: control tokens and user-defined tokens.

/** Splits text at tokens, a Map of text to id: the leftmost first, and the longest of those. */
export class Splitter {
  constructor(tokens) {
    this.tokens = tokens;
    this.lengths = new Map();
    for (const text of tokens.keys()) {
      if (!text) continue;
      const found = this.lengths.get(text[0]) ?? new Set();
      this.lengths.set(text[0], found.add(text.length));
    }
    for (const [first, found] of this.lengths) this.lengths.set(first, [...found].sort((a, b) => b - a));
  }

  /** Pieces of text, none of them empty, and ids between them. */
  *split(text) {
    let done = 0;
    for (let at = 0; at < text.length;) {
      const length = this.match(text, at);
      if (!length) {
        at++;
        continue;
      }
      if (done < at) yield text.slice(done, at);
      yield this.tokens.get(text.slice(at, at + length));
      at += length;
      done = at;
    }
    if (done < text.length) yield text.slice(done);
  }

  match(text, at) {
    for (const length of this.lengths.get(text[at]) ?? []) {
      if (this.tokens.has(text.slice(at, at + length))) return length;
    }
    return 0;
  }
}
