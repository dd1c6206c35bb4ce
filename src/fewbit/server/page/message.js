// One message on the page: its text, what can be done with it, and what it cost.
import { CallsView, isJson, pretty } from "./calls.js";
import { copy, el, iconButton, textNodes, toast } from "./dom.js";
import { chip } from "./files.js";
import { MarkdownView } from "./markdown.js";
import { partsOf, thoughtTitle } from "./thought.js";

const STATES = {
  elsewhere: "Another tab is writing this answer.",
  interrupted: "The page was closed while this answer was written.",
};
const CUT = ["stopped", "length"]; // why an answer may go on

/** Markdown that is given as a whole each time; of a text that goes on, the new part alone is read. */
class Growing {
  constructor(root) {
    this.root = root;
    this.clear();
  }

  clear() {
    this.root.replaceChildren();
    this.view = new MarkdownView(this.root);
    this.text = "";
  }

  show(text) {
    if (!text.startsWith(this.text)) this.clear();
    if (text.length > this.text.length) this.view.append(text.slice(this.text.length));
    this.text = text;
  }
}

/** `place` says which of its `versions` a message is and whether it `isLast`; `act` has what the buttons do. */
export class MessageView {
  constructor(message, place, act) {
    Object.assign(this, { message, place, act, key: MessageView.key(message, place) });
    this.isUser = message.role === "user";
    this.body = el("div", { class: "body" });
    this.foot = el("div", { class: "foot" });
    this.name = el("h2", { class: this.isUser ? "unseen" : "who" });
    this.node = el("article", { class: `message ${this.isUser ? "user" : "assistant"}` }, this.name, this.body, this.foot);
    this.reset();
  }

  /** A view with the same key shows the same. */
  static key({ id, updated }, { version, versions, isLast }) {
    return [id, updated, version, versions.length, isLast].join();
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
      this.title = el("summary");
      this.thinking = el("details", { class: "thought" }, this.title, this.thought.root);
      this.answer = new Growing(el("div", { class: "markdown" }));
      this.calls = new CallsView();
      this.body.replaceChildren(this.answer.root);
      this.grow();
    }
    this.finish();
  }

  /** Shows what came since the last time. */
  grow() {
    const [thought, answer] = partsOf(this.message);
    if (thought.trim() && !this.thinking.parentNode) this.body.prepend(this.thinking);
    const isThinking = this.state === "running" && !answer && !this.message.calls;
    const title = thoughtTitle(this.message, isThinking);
    if (this.title.textContent !== title) this.title.textContent = title;
    this.node.classList.toggle("thinking", isThinking && Boolean(thought.trim()));
    this.thought.show(thought);
    this.answer.show(this.shownAnswer(answer));
    const { calls } = this.message;
    if (calls?.length) {
      if (!this.calls.root.parentNode) this.body.append(this.calls.root);
      this.calls.show(calls, this.state === "running");
    }
  }

  /** An answer that is JSON is shown as code, with an indent when it is complete. */
  shownAnswer(text) {
    const isRunning = this.state === "running";
    if (!text || !(this.message.isJson || (!isRunning && isJson(text)))) return text;
    return `\`\`\`json\n${isRunning ? text : `${pretty(text)}\n\`\`\``}`;
  }

  get state() {
    return this.condition ?? "done";
  }

  /** "running", "elsewhere" (in another tab), "interrupted" or "done". */
  set state(value) {
    this.condition = value;
    this.node.classList.toggle("running", value === "running" || value === "elsewhere");
    this.grow();
    if (value === "running") this.foot.replaceChildren();
    else this.finish();
  }

  /** The answer is complete. */
  settle() {
    this.state = "done";
    this.key = MessageView.key(this.message, this.place);
  }

  finish() {
    this.foot.replaceChildren(...[this.problem(), this.buttons(), this.cost()].filter(Boolean));
  }

  /** What went wrong, and what can be done about it. */
  problem() {
    const { message, act } = this;
    const text = message.error ?? STATES[this.state];
    if (!text) return null;
    const button = (label, action) => el("button", { type: "button", text: label, on: { click: () => action(message) } });
    const canResume = message.content && this.place.isLast && this.state !== "elsewhere";
    return el("div", { class: message.error ? "error" : "state", role: message.error ? "alert" : null },
      el("span", {}, textNodes(text)),
      canResume ? [button("Continue", act.resume)] : [],
      this.state === "elsewhere" ? [] : [button("Try again", act.regenerate)]);
  }

  buttons() {
    const { message, act, place } = this;
    if (this.state === "elsewhere") return null;
    const canResume = place.isLast && message.content && !message.error && CUT.includes(message.reason);
    const own = this.isUser
      ? [iconButton("edit", "Edit and send again", () => this.edit())]
      : [iconButton("again", "Regenerate", () => act.regenerate(message)),
        ...(canResume ? [iconButton("go-on", "Continue", () => act.resume(message))] : [])];
    return el("div", { class: "actions" }, iconButton("copy", "Copy the message", () => this.copy()), own, this.versions());
  }

  versions() {
    const { version, versions } = this.place;
    if (versions.length < 2) return [];
    const step = (by, sign, label) => el("button", {
      type: "button", class: "icon small", "aria-label": label, disabled: !versions[version + by], text: sign,
      on: { click: () => this.act.pick(versions[version + by]) },
    });
    return [el("span", { class: "versions" }, step(-1, "\u2039", "Earlier version"),
      el("span", { text: `${version + 1}/${versions.length}` }), step(1, "\u203a", "Later version"))];
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
      await copy(this.isUser ? this.message.content : partsOf(this.message)[1]);
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
      this.act.done();
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
