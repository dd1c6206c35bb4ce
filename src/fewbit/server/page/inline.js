// Markdown within a line: code, emphasis, links, maths. One pass from left to right, whatever the text is.
import { el, textNodes } from "./dom.js";
import { noteMark } from "./footnotes.js";
import { formula, formulaAt, markAt } from "./maths.js";

const MOST_NESTED = 16;
const LONGEST_URL = 2000;
const LONGEST_TICKS = 100;
const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0", "#39": "'" };
const SPECIAL = /[\\`*_~[\]!<&$h\n]/g;
const TAGS = { "*": "em", _: "em", "**": "strong", __: "strong", "~~": "del" };

/** The address of a link, or null for what is not http or https. */
export function safeUrl(text) {
  if (text.length > LONGEST_URL || !/^https?:\/\//i.test(text)) return null;
  try {
    const url = new URL(text);
    return url.protocol === "http:" || url.protocol === "https:" ? url.href : null;
  } catch {
    return null;
  }
}

export function inline(text) {
  return new Inline(text).run();
}

class Inline {
  constructor(text) {
    this.text = text;
    this.at = 0;
    this.plain = ""; // text that is not a node yet
    this.nodes = [];
    this.openers = []; // { mark, index }: emphasis and brackets that may be closed
    this.missing = new Set(); // lengths of backtick runs, and marks of formulas, that nothing closes from here on
  }

  run() {
    const { text } = this;
    while (this.at < text.length) {
      SPECIAL.lastIndex = this.at;
      const found = SPECIAL.exec(text);
      const next = found ? found.index : text.length;
      this.plain += text.slice(this.at, next);
      this.at = next;
      if (found && !this.special(found[0])) this.plain += text[this.at++];
    }
    this.flush();
    return this.nodes;
  }

  /** Reads what begins here; false if it is a plain character. */
  special(char) {
    if (char === "\\") return this.escape();
    if (char === "`") return this.code();
    if (char === "$") return this.formula();
    if (char === "*" || char === "_" || char === "~") return this.emphasis(char);
    if (char === "[" || char === "!") return this.open(char);
    if (char === "]") return this.close();
    if (char === "<") return this.angle();
    if (char === "&") return this.entity();
    if (char === "\n") return this.lineBreak();
    return this.address();
  }

  flush() {
    if (this.plain) this.nodes.push(...textNodes(this.plain));
    this.plain = "";
  }

  push(node) {
    this.flush();
    this.nodes.push(node);
  }

  escape() {
    const next = this.text[this.at + 1];
    if (next === "(" || next === "[") return this.formula();
    if (next === undefined || !/[!-/:-@[-`{-~]/.test(next)) return false;
    this.plain += next;
    this.at += 2;
    return true;
  }

  /** Maths, or its mark as it was written. */
  formula() {
    const mark = markAt(this.text, this.at) ?? "$".repeat(this.runLength("$"));
    const found = this.missing.has(mark) ? null : formulaAt(this.text, this.at);
    if (found) this.push(formula(found));
    else if (mark !== "$") this.missing.add(mark);
    if (!found) this.plain += mark;
    this.at = found?.end ?? this.at + mark.length;
    return true;
  }

  code() {
    const run = this.runLength("`");
    const from = this.at + run;
    const end = this.missing.has(run) || run > LONGEST_TICKS ? -1 : this.closingTicks(from, run);
    if (end < 0) {
      this.missing.add(run);
      this.plain += "`".repeat(run);
      this.at = from;
      return true;
    }
    let inside = this.text.slice(from, end).replace(/\n/g, " ");
    if (/^ .*[^ ].* $/.test(inside.length < 1000 ? inside : "")) inside = inside.slice(1, -1);
    this.push(el("code", {}, textNodes(inside)));
    this.at = end + run;
    return true;
  }

  closingTicks(from, run) {
    const ticks = /`+/g;
    ticks.lastIndex = from;
    for (let found = ticks.exec(this.text); found; found = ticks.exec(this.text)) {
      if (found[0].length === run) return found.index;
    }
    return -1;
  }

  runLength(char) {
    let end = this.at;
    while (this.text[end] === char) end++;
    return end - this.at;
  }

  emphasis(char) {
    const { text } = this;
    let left = this.runLength(char);
    const before = text[this.at - 1] ?? " ";
    const after = text[this.at + left] ?? " ";
    this.at += left;
    if (left > 3 || (char === "~" && left !== 2)) {
      this.plain += char.repeat(left);
      return true;
    }
    const [opens, closes] = flanks(char, before, after);
    if (closes) left = this.closeEmphasis(char, left);
    while (left > 0) {
      const mark = char.repeat(left >= 2 ? 2 : 1);
      if (opens && this.openers.length < MOST_NESTED) this.opener(mark);
      else this.plain += mark;
      left -= mark.length;
    }
    return true;
  }

  /** Wraps what stands between the marks; gives how many characters of the run are left. */
  closeEmphasis(char, left) {
    while (left > 0) {
      const at = this.openers.findLastIndex((one) => one.mark[0] === char);
      if (at < 0 || this.openers[at].mark.length > left) break;
      const { mark } = this.openers[at];
      if (!this.wrap(at, (children) => el(TAGS[mark], {}, children))) break;
      left -= mark.length;
    }
    return left;
  }

  opener(mark) {
    this.flush();
    this.openers.push({ mark, index: this.nodes.length });
    this.nodes.push(document.createTextNode(mark));
  }

  /** Replaces everything from an opener on by one node; false if there is nothing in it. */
  wrap(at, make) {
    this.flush();
    const { index } = this.openers[at];
    if (this.nodes.length === index + 1) return false;
    const children = this.nodes.splice(index);
    this.openers.length = at;
    this.nodes.push(make(children.slice(1)));
    return true;
  }

  open(char) {
    const mark = char === "!" ? "![" : "[";
    const note = char === "[" ? noteMark(this.text.slice(this.at, this.at + 50)) : null;
    if (note) {
      this.push(note.node);
      this.at += note.length;
      return true;
    }
    if (!this.text.startsWith(mark, this.at) || this.openers.length >= MOST_NESTED) return false;
    this.opener(mark);
    this.at += mark.length;
    return true;
  }

  /** `](address)` makes a link of what stands in brackets. An image is a link too: nothing is fetched by itself. */
  close() {
    const at = this.openers.findLastIndex((one) => one.mark.endsWith("["));
    if (at < 0) return false;
    const target = this.text[this.at + 1] === "(" ? this.target(this.at + 2) : null;
    const url = target && safeUrl(target.url);
    if (!url) {
      this.openers.splice(at, 1); // it stays as plain text
      return false;
    }
    if (!this.wrap(at, (children) => link(url, children))) return false;
    this.at = target.end;
    return true;
  }

  target(from) {
    const part = this.text.slice(from, from + LONGEST_URL + 200);
    const found = /^\s{0,9}<?((?:[^\s()<>]|\([^\s()<>]*\))+)>?(?:\s{1,9}(?:"[^"]*"|'[^']*'))?\s{0,9}\)/.exec(part);
    return found && { url: found[1], end: from + found[0].length };
  }

  angle() {
    const part = this.text.slice(this.at, this.at + LONGEST_URL);
    const line = /^<br ?\/?>/i.exec(part);
    if (line) {
      this.push(el("br"));
      this.at += line[0].length;
      return true;
    }
    const found = /^<(https?:\/\/[^\s<>]+)>/i.exec(part);
    const url = found && safeUrl(found[1]);
    if (!url) return false;
    this.push(link(url, textNodes(found[1])));
    this.at += found[0].length;
    return true;
  }

  entity() {
    const found = /^&(#39|[a-z]{2,4});/.exec(this.text.slice(this.at, this.at + 8));
    const char = found && Object.hasOwn(ENTITIES, found[1]) ? ENTITIES[found[1]] : null;
    if (char === null) return false;
    this.plain += char;
    this.at += found[0].length;
    return true;
  }

  lineBreak() {
    const hard = this.plain.endsWith("  ");
    this.plain = this.plain.trimEnd();
    if (hard) this.push(el("br"));
    else this.plain += "\n";
    this.flush(); // strings stay short: they are read from their end at each line
    this.at++;
    return true;
  }

  /** An address that stands in the text by itself. */
  address() {
    if (/[\p{L}\p{N}]/u.test(this.text[this.at - 1] ?? " ")) return false;
    const found = /^https?:\/\/[^\s<>"'`*|]+/i.exec(this.text.slice(this.at, this.at + LONGEST_URL));
    if (!found) return false;
    let shown = found[0].replace(/[.,:;!?_~]{1,9}$/, "");
    while (shown.endsWith(")") && shown.split(")").length > shown.split("(").length) shown = shown.slice(0, -1);
    if (shown.endsWith("]")) shown = shown.slice(0, -1);
    const url = safeUrl(shown);
    if (!url || this.openers.some((one) => one.mark.endsWith("["))) return false;
    this.push(link(url, textNodes(shown)));
    this.at += shown.length;
    return true;
  }
}

/** Whether a run of marks may open and may close, by what stands beside it. */
function flanks(char, before, after) {
  const [spaceBefore, spaceAfter] = [/\s/.test(before), /\s/.test(after)];
  const [wordBefore, wordAfter] = [/[\p{L}\p{N}]/u.test(before), /[\p{L}\p{N}]/u.test(after)];
  let opens = !spaceAfter && (wordAfter || !wordBefore);
  let closes = !spaceBefore && (wordBefore || !wordAfter);
  if (char === "_") [opens, closes] = [opens && !wordBefore, closes && !wordAfter];
  return [opens, closes];
}

function link(url, children) {
  return el("a", { href: url, target: "_blank", rel: "noopener noreferrer nofollow", title: url }, children);
}
