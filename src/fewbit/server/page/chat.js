// A conversation on the page: sends, streams, stops, edits, regenerates.
import { ApiError, streamChat } from "./api.js";
import { $, announce, oneLine, toast } from "./dom.js";
import { contentOf } from "./files.js";
import { MessageView } from "./message.js";
import { samplerFields } from "./settings.js";
import * as store from "./store.js";

const SAVE_MS = 2000; // between two savings of an answer that runs
const OF_AN_ANSWER = ["content", "model", "usage", "seconds", "reason", "error"];

/** `hooks` are told of changes: `onChange(conversation)` when it was saved, `onRunning(isRunning)`. */
export class Chat {
  constructor(hooks) {
    this.hooks = hooks;
    this.running = new Map(); // by the conversation's id; it goes on when another one is shown
    this.views = [];
    this.log = $("log");
    this.scroller = $("scroll");
    this.isAtEnd = true;
    this.scroller.addEventListener("scroll", () => this.onScroll(), { passive: true });
    const observer = new ResizeObserver(() => this.follow());
    for (const node of [this.scroller, this.log]) observer.observe(node);
    $("to-end").addEventListener("click", () => this.toEnd());
  }

  get isRunning() {
    return this.running.has(this.conversation.id);
  }

  /** A conversation that runs is the one in memory, not the one that was saved. */
  show(conversation) {
    this.conversation = this.running.get(conversation.id)?.conversation ?? conversation;
    this.render();
    this.toEnd();
  }

  render() {
    const { messages } = this.conversation;
    this.views = messages.map((message) => new MessageView(message, this.actions()));
    this.log.replaceChildren(...this.views.map((view) => view.node));
    $("welcome").hidden = messages.length > 0;
    this.showRunning();
  }

  showRunning() {
    const run = this.running.get(this.conversation.id);
    this.log.setAttribute("aria-busy", String(Boolean(run)));
    if (run) {
      run.view = this.views.find((view) => view.message === run.message);
      run.view.isRunning = true;
    }
    this.hooks.onRunning(Boolean(run));
  }

  actions() {
    return {
      edit: (message, content) => this.edit(message, content),
      regenerate: (message) => this.regenerate(message),
      pick: (view, version) => this.pick(view, version),
    };
  }

  async send(content, files) {
    const { conversation } = this;
    conversation.title ||= oneLine(content || files[0].name, 60);
    conversation.messages.push({ role: "user", content, ...(files.length ? { files } : {}) });
    await this.answer();
  }

  async edit(message, content) {
    this.cutAfter(message);
    message.content = content;
    await this.answer();
  }

  /** A new answer; the ones before stay, and can be picked again. */
  async regenerate(message) {
    const { messages } = this.conversation;
    const before = messages[messages.indexOf(message) - 1];
    this.cutAfter(message);
    messages.pop();
    if (!before) return;
    const versions = message.versions ?? [];
    if (message.content) versions[message.version ?? versions.length] = snapshot(message);
    await this.answer(versions);
  }

  /** Removes what comes after a message; it can be brought back for a moment. */
  cutAfter(message) {
    this.stop();
    const { conversation } = this;
    const { messages } = conversation;
    const at = messages.indexOf(message);
    const count = messages.length - at - 1 - (message.role === "user" ? 1 : 0);
    if (count > 0) {
      const saved = structuredClone(messages);
      const text = count === 1 ? "A later message was removed." : `${count} later messages were removed.`;
      toast(text, "Undo", () => this.restore(conversation, saved));
    }
    messages.length = at + 1;
  }

  async restore(conversation, messages) {
    this.drop(conversation.id);
    conversation.messages = messages;
    if (this.conversation === conversation) this.render();
    await this.save(conversation);
  }

  async pick(view, version) {
    const { message } = view;
    message.versions[message.version] = snapshot(message);
    for (const name of OF_AN_ANSWER) delete message[name];
    Object.assign(message, message.versions[version], { version });
    view.reset();
    await this.save(this.conversation);
  }

  stop() {
    this.running.get(this.conversation.id)?.controller.abort();
  }

  /** Ends an answer without keeping it. */
  drop(id) {
    this.running.get(id)?.controller.abort();
    this.running.delete(id);
  }

  isCurrent(run) {
    return this.running.get(run.conversation.id) === run;
  }

  /** Asks the model to answer all that was said. */
  async answer(versions = []) {
    const { conversation } = this;
    const model = this.hooks.model();
    const message = { role: "assistant", content: "", model };
    if (versions.length) Object.assign(message, { versions, version: versions.length });
    const body = { ...(model ? { model } : {}), messages: this.request(conversation), ...samplerFields(conversation.settings) };
    conversation.model = model;
    conversation.updated = Date.now();
    conversation.messages.push(message);
    const run = { conversation, message, controller: new AbortController(), view: null };
    this.running.set(conversation.id, run);
    this.render();
    this.toEnd();
    await this.save(conversation);
    await this.stream(run, body);
    await this.end(run);
  }

  request({ settings, messages }) {
    const system = settings.system ? [{ role: "system", content: settings.system }] : [];
    const said = messages.filter((one) => one.role === "user" || one.content);
    return [...system, ...said.map((one) => ({ role: one.role, content: contentOf(one) }))];
  }

  async stream(run, body) {
    const { message, controller } = run;
    let first = 0;
    let saved = Date.now();
    try {
      for await (const part of streamChat(body, controller.signal)) {
        if (controller.signal.aborted) break;
        if (part.text) {
          first ||= performance.now();
          message.content += part.text;
          message.seconds = (performance.now() - first) / 1000;
          this.schedule(run);
        }
        if (part.reason) message.reason = part.reason;
        if (part.usage) message.usage = part.usage;
        if (Date.now() - saved > SAVE_MS && this.isCurrent(run)) {
          saved = Date.now();
          await this.save(run.conversation);
        }
      }
    } catch (error) {
      if (!controller.signal.aborted) message.error = error instanceof ApiError ? error.message : `It failed: ${error.message}`;
    }
    if (controller.signal.aborted) message.reason = "stopped";
  }

  async end(run) {
    const { conversation, message, view } = run;
    if (!this.isCurrent(run)) return; // another answer took its place, or the conversation was deleted
    this.running.delete(conversation.id);
    if (message.versions) message.versions[message.version] = snapshot(message);
    if (this.conversation === conversation && view) {
      view.grow();
      view.isRunning = false;
      this.follow();
      this.showRunning();
      announce(message.error ? "The answer failed" : message.reason === "stopped" ? "Stopped" : "The answer is complete");
    }
    conversation.updated = Date.now();
    await this.save(conversation);
  }

  async save(conversation) {
    try {
      await store.put(conversation);
    } catch (error) {
      toast(`The conversation could not be saved: ${error?.message ?? "the storage is full"}. Export it, or delete others.`);
    }
    this.hooks.onChange(conversation);
  }

  /** Shows new text at the next frame; where that takes long, less often, so that the page stays quick. */
  schedule(run) {
    if (run.isScheduled) return;
    run.isScheduled = true;
    const show = () => requestAnimationFrame(() => {
      const begin = performance.now();
      run.isScheduled = false;
      if (this.conversation !== run.conversation || !run.view || !this.running.has(run.conversation.id)) return;
      run.view.grow();
      this.follow();
      run.pause = Math.min(2000, 4 * (performance.now() - begin) - 16);
    });
    if (run.pause > 0) setTimeout(show, run.pause);
    else show();
  }

  follow() {
    if (this.isAtEnd) this.scroller.scrollTop = this.scroller.scrollHeight;
    else this.onScroll();
  }

  toEnd() {
    this.isAtEnd = true;
    this.follow();
  }

  onScroll() {
    const { scrollTop, scrollHeight, clientHeight } = this.scroller;
    this.isAtEnd = scrollHeight - scrollTop - clientHeight < 60;
    $("to-end").hidden = this.isAtEnd;
  }
}

function snapshot(message) {
  return Object.fromEntries(OF_AN_ANSWER.filter((name) => name in message).map((name) => [name, message[name]]));
}
