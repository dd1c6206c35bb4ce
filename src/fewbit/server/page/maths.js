// Maths between $, $$, \( \) and \[ \], set by KaTeX, which is loaded from this server when a formula is there.
import { el, hasOverrides, textNodes } from "./dom.js";

const LONGEST = 10_000; // characters of a formula
const CLOSERS = { $: "$", $$: "$$", "\\(": "\\)", "\\[": "\\]" };
const OPTIONS = { throwOnError: true, strict: "ignore", trust: false, maxSize: 20, maxExpand: 1000 };

const NO_MATHML = /\\(?:pmb|fcolorbox)(?![a-zA-Z])/; // there KaTeX writes style attributes, which the policy forbids
const MOST_KEPT = 500;

const kept = new Map(); // formulas that were set: a paragraph that grows shows its own again and again
let katex = null;
let loading = null;

/** The mark at a place that may open a formula, or null. A run of three or more $ opens none. */
export function markAt(text, at) {
  return /^(?:\\[([]|\${1,2}(?!\$))/.exec(text.slice(at, at + 3))?.[0] ?? null;
}

/** The formula that begins at a place: `{ tex, source, isDisplay, end }`, or null. */
export function formulaAt(text, at) {
  const mark = markAt(text, at);
  if (!mark) return null;
  const from = at + mark.length;
  const until = closerOf(text.slice(from, from + LONGEST), mark);
  if (until < 0) return null;
  const tex = text.slice(from, from + until);
  const end = from + until + mark.length;
  if (!tex.trim() || (mark === "$" && !isInline(tex, text[at - 1] ?? " ", text[end] ?? " "))) return null;
  return { tex, source: text.slice(at, end), isDisplay: mark === "$$" || mark === "\\[", end };
}

function closerOf(text, mark) {
  for (const { 0: token, index } of text.matchAll(/\\[^]|\$+/g)) {
    if (token === CLOSERS[mark]) return index;
    if (mark === "$" && token[0] === "$") return -1; // what stands between two $ holds no third
  }
  return -1;
}

/** Whether what stands between two $ is maths: prices and names of variables are not. */
function isInline(tex, before, after) {
  const isWord = /[\p{L}\p{N}]/u;
  if (/^\s|\s$|`/.test(tex) || isWord.test(before) || isWord.test(after)) return false;
  return !/^[\d.,]+[kKMB]?\s+\p{L}{2,}|^\d[^\\^_={}]*\s\p{L}{2,}/u.test(tex); // "$5 for one, 10$ for two"
}

/** A formula as a node; until it is set, and where it cannot be, it is the text as it was written. */
export function formula({ tex, source, isDisplay }) {
  const props = isDisplay ? { class: "math display", tabindex: "0", role: "group", "aria-label": "Formula" } : { class: "math" };
  const node = el("span", props, textNodes(source));
  if (hasOverrides(tex)) return node;
  if (katex) set(node, tex, isDisplay);
  else load().then(() => katex && set(node, tex, isDisplay));
  return node;
}

function load() {
  loading ??= import("./katex/katex.min.js").then(() => { katex = globalThis.katex; }, () => {});
  return loading;
}

function set(node, tex, isDisplay) {
  const key = `${isDisplay} ${tex}`;
  if (kept.size > MOST_KEPT) kept.clear();
  try {
    if (!kept.has(key)) kept.set(key, made(tex, isDisplay));
    node.replaceChildren(kept.get(key).cloneNode(true));
  } catch {
    // the source stays
  }
}

function made(tex, isDisplay) {
  const root = document.createElement("span");
  const output = NO_MATHML.test(tex) ? "html" : "htmlAndMathml";
  katex.render(tex, root, { ...OPTIONS, output, displayMode: isDisplay });
  return root.firstChild;
}
