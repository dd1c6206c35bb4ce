// Calls of functions that a model asks for. The page runs none: the next message is their result.
import { el, textNodes } from "./dom.js";
import { highlight } from "./highlight.js";

/** Adds a part of a call, as it is streamed, to a message. */
export function addCall(message, { index = 0, id, function: part = {} }) {
  message.calls ??= [];
  message.calls[index] ??= { id: id ?? `call_${index}`, name: "", arguments: "" };
  const call = message.calls[index];
  if (part.name) call.name = part.name;
  call.arguments += part.arguments ?? "";
}

/** A message as a request has it: what follows calls is their result. */
export function messagesOf(message, content, before) {
  if (message.role === "user") {
    if (!before?.calls?.length) return [{ role: "user", content }];
    return before.calls.map((call) => ({ role: "tool", tool_call_id: call.id, content }));
  }
  if (!message.calls?.length) return content ? [{ role: "assistant", content }] : [];
  const calls = message.calls.map(({ id, name, arguments: text }) =>
    ({ id, type: "function", function: { name, arguments: text || "{}" } }));
  return [{ role: "assistant", content: content || null, tool_calls: calls }];
}

/** JSON with an indent, or the text as it is. */
export function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

/** Whether a text is a JSON object or list. */
export function isJson(text) {
  if (!/^\s*[{[]/.test(text)) return false;
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

/** The calls of a message; they are replaced while they grow. */
export class CallsView {
  constructor() {
    this.root = el("div", { class: "calls" });
    this.shown = "";
  }

  show(calls, isRunning) {
    const state = JSON.stringify([calls, isRunning]);
    if (state === this.shown) return;
    this.shown = state;
    const hint = "This page runs no functions. Your next message is the result of the call.";
    this.root.replaceChildren(...calls.filter(Boolean).map(callNode),
      ...(isRunning ? [] : [el("p", { class: "call-hint", text: hint })]));
  }
}

function callNode({ name, arguments: text }) {
  return el("div", { class: "code call" },
    el("div", { class: "code-head" }, el("span", {}, textNodes(`Calls ${name}`))),
    el("pre", { tabindex: "0" }, el("code", {}, highlight(pretty(text || "{}"), "json"))));
}
