// One message on the page: its text, what can be done with it, and what it cost.
import { copy, el, iconButton, textNodes, toast } from "./dom.js";
import { chip } from "./files.js";
import { MarkdownView } from "./markdown.js";

const THINK = ["<think>", "</think>"];

/** What a model thought before it answered, and its answer; the end of a text that may be half a tag waits. */
export function splitThought(text) {
  const begin = text.trimStart();
  if (!begin.startsWith(THINK[0])) return THINK[0].startsWith(begin) ? ["", ""] : ["", text];
  const inside = begin.slice(THINK[0].length);
  const end = inside.indexOf(THINK[1]);
  if (end >= 0) return [inside.slice(0, end), inside.slice(end + THINK[1].length).replace(/^\s{1,9}/, "")];
  const cut = inside.lastIndexOf("<");
  return [cut >= 0 && THINK[1].startsWith(inside.slice(cut)) ? inside.slice(0, cut) : inside, ""];
}

/** Markdown that is given as a whole each time, and whose new part alone is read. */
class Growing {
  constructor(root) {
    this.root = root;
    this.clear();
  }

  clear() {
    this.root.replaceChildren();
    this.view = new MarkdownView(this.root);
    this.length = 0;
  }

  show(text) {
    if (text.length > this.length) this.view.append(text.slice(this.length));
    this.length = text.length;
  }
}

/** `act` has what the buttons do: edit, regenerate, pick. */
export class MessageView {
  constructor(message, act) {
    this.message = message;
    this.act = act;
    this.isUser = message.role === "user";
    this.body = el("div", { class: "body" });
    this.foot = el("div", { class: "foot" });
    this.name = el("h2", { class: this.isUser ? "unseen" : "who" });
    this.node = el("article", { class: `message ${this.isUser ? "user" : "assistant"}` }, this.name, this.body, this.foot);
    this.reset();
  }

  reset() {
    const { message } = this;
    this.name.replaceChildren(...textNodes(this.isUser ? "You" : message.model || "Answer"));
    if (this.isUser) {
      const files = (message.files ?? []).map((file) => chip(file));
      this.body.replaceChildren(...(files.length ? [el("div", { class: "files" }, files)] : []),
        el("div", { class: "said", dir: "auto" }, textNodes(message.content)));
    } else {
      this.thought = new Growing(el("div", { class: "markdown" }));
      this.thinking = el("details", { class: "thought" }, el("summary", { text: "Thoughts" }), this.thought.root);
      this.answer = new Growing(el("div", { class: "markdown" }));
      this.body.replaceChildren(this.answer.root);
      this.grow();
    }
    this.finish();
  }

  /** Shows what came since the last time. */
  grow() {
    const [thought, answer] = splitThought(this.message.content);
    if (thought.trim() && !this.thinking.parentNode) this.body.prepend(this.thinking);
    this.thought.show(thought);
    this.answer.show(answer);
  }

  set isRunning(value) {
    this.node.classList.toggle("running", value);
    if (value) this.foot.replaceChildren();
    else this.finish();
  }

  finish() {
    this.foot.replaceChildren(...[this.problem(), this.buttons(), this.cost()].filter(Boolean));
  }

  problem() {
    const { error } = this.message;
    if (!error) return null;
    return el("div", { class: "error", role: "alert" }, el("span", {}, textNodes(error)),
      el("button", { type: "button", text: "Try again", on: { click: () => this.act.regenerate(this.message) } }));
  }

  buttons() {
    const { message } = this;
    const more = this.isUser
      ? [iconButton("edit", "Edit and send again", () => this.edit())]
      : [iconButton("again", "Regenerate", () => this.act.regenerate(message)), ...this.versions()];
    return el("div", { class: "actions" }, iconButton("copy", "Copy the message", () => this.copy()), more);
  }

  versions() {
    const { versions, version } = this.message;
    if (!versions || versions.length < 2) return [];
    const step = (by, sign, label) => el("button", {
      type: "button", class: "icon small", "aria-label": label, disabled: !versions[version + by], text: sign,
      on: { click: () => this.act.pick(this, version + by) },
    });
    return [el("span", { class: "versions" }, step(-1, "\u2039", "Earlier answer"),
      el("span", { text: `${version + 1}/${versions.length}` }), step(1, "\u203a", "Later answer"))];
  }

  cost() {
    const { usage, seconds, reason } = this.message;
    const parts = [];
    if (usage) parts.push(usage.completion_tokens === 1 ? "1 token" : `${usage.completion_tokens} tokens`);
    if (usage && seconds > 0 && usage.completion_tokens > 1) {
      parts.push(`${((usage.completion_tokens - 1) / seconds).toFixed(1)} tokens/s`);
    }
    if (usage?.prompt_tokens_details?.cached_tokens) {
      parts.push(`${usage.prompt_tokens_details.cached_tokens} of ${usage.prompt_tokens} prompt tokens from the cache`);
    }
    if (reason === "length") parts.push("cut at the token limit");
    if (reason === "stopped") parts.push("stopped");
    return parts.length ? el("span", { class: "cost", text: parts.join(" \u00b7 ") }) : null;
  }

  async copy() {
    try {
      await copy(this.message.content);
      toast("Copied");
    } catch (error) {
      toast(`It could not be copied: ${error.message}`);
    }
  }

  edit() {
    const area = el("textarea", { "aria-label": "Edit the message", rows: "3", dir: "auto" });
    area.value = this.message.content;
    const leave = () => {
      this.reset();
      this.foot.querySelector("button")?.focus();
    };
    const save = () => (area.value.trim() || this.message.files?.length ? this.act.edit(this.message, area.value.trim()) : leave());
    area.addEventListener("keydown", (event) => {
      if (event.key === "Escape") leave();
      else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) save();
      else return;
      event.preventDefault();
      event.stopPropagation();
    });
    this.body.replaceChildren(area);
    this.foot.replaceChildren(el("div", { class: "edit-buttons" },
      el("button", { type: "button", text: "Cancel", on: { click: leave } }),
      el("button", { type: "button", class: "primary", text: "Send", on: { click: save } })));
    area.rows = Math.min(12, area.value.split("\n").length + 1);
    area.focus();
  }
}
