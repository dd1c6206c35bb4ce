// Makes DOM nodes. Text only ever becomes text nodes: there is no way in for HTML.

const OVERRIDES = /[\u202a-\u202e\u2066-\u2069]/;
const MOST_SHOWN = 1000; // of them in one text; where there are more, they are left out

export const hasOverrides = (text) => OVERRIDES.test(text);

export const $ = (id) => document.getElementById(id);

/** An element: `on` holds its listeners, `text` its text, the rest are attributes (false and null leave one out).
 *  Children are nodes, strings and arrays of them; there may be more than a call takes arguments. */
export function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (name === "on") for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    else if (name === "text") node.textContent = value;
    else if (value !== false && value !== null) node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat()) node.append(child);
  return node;
}

const SVG = "http://www.w3.org/2000/svg";

export function svg(tag, props = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(props)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

export const icon = (name) => svg("svg", { "aria-hidden": "true" }, svg("use", { href: `#i-${name}` }));

/** A button with an icon and a name for those who do not see it. */
export function iconButton(name, label, onClick) {
  return el("button", { type: "button", class: "icon small", "aria-label": label, title: label, on: { click: onClick } },
    icon(name));
}

/** Text as nodes. Characters that turn the reading order round are shown instead of obeyed. */
export function textNodes(text) {
  if (!OVERRIDES.test(text)) return [document.createTextNode(text)];
  const parts = text.split(/([\u202a-\u202e\u2066-\u2069])/);
  if (parts.length > 2 * MOST_SHOWN) return [document.createTextNode(parts.filter((_, i) => i % 2 === 0).join(""))];
  return parts.filter(Boolean).map((part) => {
    if (!OVERRIDES.test(part)) return document.createTextNode(part);
    return el("span", { class: "control", text: `U+${part.charCodeAt(0).toString(16).toUpperCase()}` });
  });
}

/** One line without control characters, for titles and names. */
export function oneLine(text, most = 200) {
  return text.slice(0, 4 * most).replace(/[\u0000-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]+/g, " ")
    .replace(/ {2,}/g, " ").trim().slice(0, most);
}

/** Copies text; also where the page has no secure address and so no clipboard API. */
export async function copy(text) {
  if (navigator.clipboard) {
    await navigator.clipboard.writeText(text);
    return;
  }
  const area = el("textarea", { class: "unseen", "aria-hidden": "true" });
  area.value = text;
  const before = document.activeElement;
  document.body.append(area);
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  before?.focus();
  if (!copied) throw new Error("the browser does not allow it");
}

let timer = 0;

/** A short note at the bottom, with at most one thing to do about it. */
export function toast(text, action = null, onAction = null) {
  const node = $("toast");
  clearTimeout(timer);
  const hide = () => node.replaceChildren();
  const button = action && el("button", { type: "button", text: action, on: { click: () => { hide(); onAction(); } } });
  node.replaceChildren(el("div", {}, textNodes(text), button ? [button] : []));
  timer = setTimeout(hide, action ? 10000 : 5000);
}

export function announce(text) {
  $("announce").textContent = text;
}
