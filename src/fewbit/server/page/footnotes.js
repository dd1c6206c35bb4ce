// Footnotes: `[^1]` in the text and `[^1]: what it says` below. A mark without a note stays as it was written.
import { el, textNodes } from "./dom.js";

export const NOTE = /^ {0,3}\[\^([^\]\s[]{1,40})\]:[ \t]*/;

/** The mark at a place, or null. */
export function noteMark(text) {
  const found = /^\[\^([^\]\s[]{1,40})\](?![(:])/.exec(text);
  if (!found) return null;
  return { node: el("span", { class: "noteref", "data-note": found[1] }, textNodes(found[0])), length: found[0].length };
}

export function makeNote(label, children) {
  const node = el("div", { class: "footnote", "data-label": label, tabindex: "-1" },
    el("span", { class: "label" }, textNodes(label)), el("div", {}, children));
  const back = () => find(node, ".noteref", "note", label)?.querySelector("button")?.focus();
  node.append(el("button", { type: "button", class: "icon small", "aria-label": `Back to mark ${label}`, text: "\u21a9",
    on: { click: back } }));
  return node;
}

const find = (node, kind, name, label) =>
  [...node.closest(".markdown").querySelectorAll(kind)].find((one) => one.dataset[name] === label);

/** Marks whose note is there become buttons that go to it. */
export function linkNotes(root) {
  const labels = new Set([...root.querySelectorAll(".footnote")].map((one) => one.dataset.label));
  if (!labels.size) return;
  for (const mark of root.querySelectorAll(".noteref:not(.linked)")) {
    const label = mark.dataset.note;
    if (!labels.has(label)) continue;
    mark.classList.add("linked");
    mark.replaceChildren(el("button", { type: "button", "aria-label": `Footnote ${label}`,
      on: { click: () => goTo(mark, label) } }, textNodes(label)));
  }
}

function goTo(mark, label) {
  const note = find(mark, ".footnote", "label", label);
  if (!note) return;
  note.scrollIntoView({ block: "nearest" });
  note.focus({ preventScroll: true });
}
