// Markdown as DOM nodes. Text may come in parts: only the last blocks are made again.
import { el, icon, copy, textNodes, toast } from "./dom.js";
import { linkNotes, makeNote, NOTE } from "./footnotes.js";
import { highlight } from "./highlight.js";
import { inline } from "./inline.js";
import { formula, formulaAt } from "./maths.js";

const MOST_NESTED = 8;
const MOST_COLUMNS = 64;
const MOST_MATH_LINES = 200;
const FENCE = /^( {0,3})(`{3,}|~{3,})\s*([^`\s]{0,40})/;
const HEADING = /^ {0,3}(#{1,6})[ \t]+(?=\S)/;
const QUOTE = /^ {0,3}> ?/;
const MATH = /^ {0,3}(?:\$\$(?!\$)|\\\[)/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?: +|$)/;

const isBlank = (line) => !/\S/.test(line);
const indentOf = (line) => line.length - line.trimStart().length;
const isRule = (line) => line.length < 200 && /^ {0,3}([-*_])(?: *\1){2,} *$/.test(line);
const isDivider = (line) =>
  line !== undefined && line.length < 2000 && line.includes("|") && /^[\s|:-]*-[\s|:-]*$/.test(line);
const isTable = (lines, at) => lines[at].includes("|") && isDivider(lines[at + 1]);

function beginsBlock(lines, at) {
  const line = lines[at];
  return FENCE.test(line) || HEADING.test(line) || QUOTE.test(line) || NOTE.test(line) || isRule(line) ||
    isTable(lines, at) || mathAt(lines, at) !== null;
}

/** A list may begin right below a line of text, but a number other than 1 there is just a number. */
const interrupts = (line) => {
  const found = ITEM.exec(line);
  return found !== null && found[0].length < line.length && (found[2].length === 1 || /^1[.)]$/.test(found[2]));
};

/** The blocks from a line on: `{ kind, first, end, ... }` in numbers of lines, `end` is the line after. */
export function parse(lines, from = 0) {
  const blocks = [];
  for (let at = from; at < lines.length;) {
    if (isBlank(lines[at])) at++;
    else {
      const block = blockAt(lines, at);
      blocks.push(block);
      at = block.end;
    }
  }
  return blocks;
}

function blockAt(lines, first) {
  const line = lines[first];
  const fence = FENCE.exec(line);
  if (fence) return codeAt(lines, first, fence);
  if (HEADING.test(line)) return { kind: "heading", first, end: first + 1 };
  if (isRule(line)) return { kind: "rule", first, end: first + 1 };
  if (QUOTE.test(line)) return { kind: "quote", first, end: endWhere(lines, first, (one) => !QUOTE.test(one)) };
  if (ITEM.test(line)) return listAt(lines, first);
  if (isTable(lines, first)) {
    return { kind: "table", first, end: endWhere(lines, first + 1, (one) => isBlank(one) || !one.includes("|")) };
  }
  if (NOTE.test(line)) return noteAt(lines, first);
  return mathAt(lines, first) ?? { kind: "text", first, end: paragraphEnd(lines, first + 1) };
}

function paragraphEnd(lines, from) {
  let end = from;
  while (end < lines.length && !isBlank(lines[end]) && !beginsBlock(lines, end) && !interrupts(lines[end])) end++;
  return end;
}

/** A note goes on in lines that are indented, and in the paragraph that it begins with. */
function noteAt(lines, first) {
  let end = paragraphEnd(lines, first + 1);
  for (let at = end; at < lines.length && (isBlank(lines[at]) || indentOf(lines[at]) >= 2); at++) {
    if (!isBlank(lines[at])) end = at + 1;
  }
  return { kind: "note", first, end };
}

/** Maths that begins a line, whatever its other lines look like. While nothing closes it, it is text. */
function mathAt(lines, first) {
  if (!MATH.test(lines[first])) return null;
  const most = Math.min(lines.length, first + MOST_MATH_LINES);
  let until = first + 1;
  while (until < most && !isBlank(lines[until])) until++;
  const text = lines.slice(first, until).join("\n").trimStart();
  const found = formulaAt(text, 0);
  if (!found) return until === lines.length ? { kind: "text", first, end: until } : null;
  const end = first + found.source.split("\n").length;
  const tail = text.slice(found.end).split("\n", 1)[0];
  if (/^[\s.,;:!?]*$/.test(tail)) return { kind: "math", first, end, formula: found, tail };
  return { kind: "text", first, end: paragraphEnd(lines, end) };
}

function endWhere(lines, first, isOver) {
  let end = first + 1;
  while (end < lines.length && !isOver(lines[end])) end++;
  return end;
}

function codeAt(lines, first, [, indent, mark, language]) {
  const closing = new RegExp(`^ {0,3}${mark[0]}{${Math.min(mark.length, 1000)},}\\s*$`);
  const end = endWhere(lines, first, (one) => one.length < 2000 && closing.test(one));
  const closed = end < lines.length;
  return { kind: "code", first, end: end + (closed ? 1 : 0), closed, language, indent: indent.length };
}

/** A list is read item by item: each is the lines that belong to it, without their indent. */
function listAt(lines, first) {
  const base = indentOf(lines[first]);
  const ordered = /\d/.test(ITEM.exec(lines[first])[2]);
  const block = { kind: "list", first, end: first, ordered, start: parseInt(lines[first].trim(), 10), items: [] };
  let item = null;
  let wasBlank = false;
  for (let at = first; at < lines.length; at++) {
    const line = lines[at];
    if (isBlank(line)) {
      item.lines.push("");
      wasBlank = true;
      continue;
    }
    const found = ITEM.exec(line);
    const isItem = found && Math.abs(found[1].length - base) < 2 && /\d/.test(found[2]) === ordered && !isRule(line);
    if (isItem) {
      item = { inner: found[0].length, lines: [line.slice(found[0].length)] };
      block.loose ||= wasBlank && block.items.length > 0;
      block.items.push(item);
    } else if (indentOf(line) >= base + 2) item.lines.push(line.slice(Math.min(indentOf(line), item.inner)));
    else if (!wasBlank && !found && !beginsBlock(lines, at)) item.lines.push(line);
    else break;
    wasBlank = false;
    block.end = at + 1;
  }
  return block;
}

const MAKERS = {
  heading: (block, lines) => {
    const mark = HEADING.exec(lines[block.first]);
    const level = Math.min(6, mark[1].length + 2); // the page has an h1, a message an h2
    return el(`h${level}`, { class: `level-${mark[1].length}` },
      inline(lines[block.first].slice(mark[0].length).replace(/ #{1,6} {0,9}$/, "")));
  },
  rule: () => el("hr"),
  text: (block, lines) => el("p", { dir: "auto" }, inline(linesOf(block, lines).join("\n").trim())),
  quote: (block, lines, depth) =>
    el("blockquote", {}, render(linesOf(block, lines).map((line) => line.replace(QUOTE, "")), depth + 1)),
  math: (block) => el("div", { class: "formula" }, formula(block.formula), block.tail.trim()),
  note: (block, lines, depth) => {
    const [mark, label] = NOTE.exec(lines[block.first]);
    const [begin, ...rest] = linesOf(block, lines);
    return makeNote(label, render([begin.slice(mark.length), ...rest.map((line) => line.replace(/^ {1,4}/, ""))], depth + 1));
  },
  list: makeList,
  table: makeTable,
  code: (block, lines) => makeCode(block, codeOf(block, lines)),
};

const linesOf = (block, lines) => lines.slice(block.first, block.end);

function render(lines, depth = 0) {
  if (depth > MOST_NESTED) return [el("p", { dir: "auto" }, textNodes(lines.join("\n")))];
  return parse(lines).map((block) => MAKERS[block.kind](block, lines, depth));
}

function makeList(block, _, depth) {
  const props = { dir: "auto", ...(block.ordered && block.start !== 1 ? { start: block.start } : {}) };
  return el(block.ordered ? "ol" : "ul", props, block.items.map((item) => {
    const task = /^\[([ xX])\] /.exec(item.lines[0]);
    if (task) item.lines[0] = item.lines[0].slice(4);
    const [first, ...more] = render(item.lines, depth + 1);
    const isTight = !block.loose && first?.tagName === "P";
    const begin = isTight ? [...first.childNodes] : first ?? [];
    const box = task ? [task[1] === " " ? "\u2610 " : "\u2611 "] : [];
    return el("li", task ? { class: "task" } : {}, box, begin, more);
  }));
}

/** The cells of a row: `|` parts them, but not in code and not after a backslash. */
function cells(line) {
  const found = [""];
  let inCode = false;
  for (const part of line.trim().replace(/^\|/, "").split(/(\\\||`+|\|)/)) {
    if (part.startsWith("`")) inCode = !inCode;
    if (part === "|" && !inCode) found.push("");
    else found[found.length - 1] += part === "\\|" ? "|" : part;
  }
  if (isBlank(found[found.length - 1])) found.pop();
  return found.slice(0, MOST_COLUMNS).map((cell) => cell.trim());
}

function makeTable(block, lines) {
  const [head, divider, ...rows] = linesOf(block, lines);
  const align = cells(divider).map((cell) =>
    (cell.endsWith(":") ? (cell.startsWith(":") ? "center" : "right") : null));
  const row = (line, tag) => {
    const found = cells(line);
    return el("tr", {}, align.map((side, i) => el(tag, { class: side, dir: "auto" }, inline(found[i] ?? ""))));
  };
  return el("div", { class: "table", tabindex: "0", role: "region", "aria-label": "Table" },
    el("table", {}, el("thead", {}, row(head, "th")), el("tbody", {}, rows.map((line) => row(line, "td")))));
}

function codeOf(block, lines) {
  const inside = lines.slice(block.first + 1, block.end - (block.closed ? 1 : 0));
  if (!block.indent) return inside.join("\n");
  return inside.map((line) => line.slice(Math.min(block.indent, indentOf(line)))).join("\n");
}

function makeCode(block, source) {
  const code = el("code", {}, (block.closed ? highlight(source, block.language) : textNodes(source)));
  const node = el("div", { class: "code" });
  const button = el("button", { type: "button", class: "copy", on: { click: () => copyCode(node, button) } },
    icon("copy"), "Copy");
  node.append(el("div", { class: "code-head" }, el("span", {}, textNodes(block.language || "text")), button),
    el("pre", { tabindex: "0", "aria-label": "Code" }, code));
  node.source = source;
  return node;
}

async function copyCode(node, button) {
  try {
    await copy(node.source);
    button.lastChild.textContent = "Copied";
    setTimeout(() => { button.lastChild.textContent = "Copy"; }, 2000);
  } catch (error) {
    toast(`It could not be copied: ${error.message}`);
  }
}

/** Markdown that grows. `append` takes what is new; a block that did not change keeps its nodes. */
export class MarkdownView {
  constructor(root) {
    this.root = root;
    this.lines = [""];
    this.blocks = [];
  }

  append(text) {
    const changed = this.lines.length - 1; // the first line that is not as it was
    const [head, ...rest] = text.split(/\r?\n/);
    this.lines[changed] += head;
    for (const line of rest) this.lines.push(line);
    this.update(changed);
  }

  /** A line that is not complete may belong to the block before, so the last two are read again. */
  update(changed) {
    const keep = Math.max(0, this.blocks.length - 2);
    const old = this.blocks.splice(keep);
    for (const block of parse(this.lines, old.length ? old[0].first : 0)) {
      const before = old.find((one) => one.first === block.first && one.kind === block.kind);
      block.node = this.reuse(before, block, changed) ?? MAKERS[block.kind](block, this.lines, 0);
      this.blocks.push(block);
    }
    const kept = new Set(this.blocks.slice(keep).map((block) => block.node));
    for (const { node } of old) if (!kept.has(node)) node.remove();
    for (const { node } of this.blocks.slice(keep)) if (!node.parentNode) this.root.append(node);
    linkNotes(this.root);
  }

  reuse(before, block, changed) {
    if (!before) return null;
    if (before.end === block.end && block.end <= changed) return before.node;
    if (block.kind !== "code" || block.closed || before.closed || block.language !== before.language) return null;
    const source = codeOf(block, this.lines);
    const { node } = before;
    if (!source.startsWith(node.source)) return null;
    node.querySelector("code").append(...textNodes(source.slice(node.source.length)));
    node.source = source;
    return node;
  }
}
