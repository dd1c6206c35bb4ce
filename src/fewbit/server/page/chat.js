// A conversation on the page: sends, streams, stops, continues; edits and new answers are branches.
import { ApiError, streamChat } from "./api.js";
import { addCall, messagesOf } from "./calls.js";
import { $, announce, oneLine, toast } from "./dom.js";
import { contentOf } from "./files.js";
import { MessageView } from "./message.js";
import { Scroll } from "./scroll.js";
import { samplerFields, schemaOf } from "./settings.js";
import * as store from "./store.js";
import { partsOf, splitThought } from "./thought.js";
import * as tree from "./tree.js";

const SAVE_MS = 1000; // between two savings of an answer that runs
const REPLY_MS = 1000; // that a tab has to say that it runs an answer

/** `hooks` are told of changes: `onChange(conversation)` when it was saved, `onShow()` when messages were shown,
 *  `onRunning(isRunning)`, `onRemoved()` when another tab deleted what is shown. */
export class Chat {
  constructor(hooks) {
    this.hooks = hooks;
    this.running = new Map(); // by the conversation's id; it goes on when another one is shown
    this.views = [];
    this.log = $("log");
    this.scroll = new Scroll();
    store.onTold({
      changed: (id) => this.onChanged(id),
      removed: (id) => this.onRemoved(id),
      asks: (id) => this.running.has(id) && store.tell("runs", id),
      runs: (id) => this.onRuns(id),
    });
    addEventListener("pagehide", () => this.leave());
    addEventListener("pageshow", ({ persisted }) => persisted && location.reload());
    document.addEventListener("visibilitychange", () => document.hidden && this.saveRunning());
  }

  get isRunning() {
    return this.running.has(this.conversation.id);
  }

  /** A conversation that runs is the one in memory, not the one that was saved. */
  show(conversation) {
    this.conversation = this.running.get(conversation.id)?.conversation ?? conversation;
    this.render();
    this.scroll.toEnd();
  }

  /** A message that did not change keeps its view. */
  render() {
    const shown = tree.path(this.conversation);
    const old = new Map(this.views.map((view) => [view.key, view]));
    this.views = shown.map((message, at) => {
      const all = tree.versions(this.conversation, message);
      const place = { version: all.indexOf(message), versions: all, isLast: at === shown.length - 1 };
      const kept = old.get(MessageView.key(message, place));
      return kept?.message === message ? kept : new MessageView(message, place, this.actions());
    });
    const nodes = this.views.map((view) => view.node);
    if (nodes.some((node, at) => node !== this.log.childNodes[at]) || nodes.length !== this.log.childNodes.length) {
      this.log.replaceChildren(...nodes);
    }
    $("welcome").hidden = shown.length > 0;
    this.showRunning();
    this.findRunner();
    this.hooks.onShow();
  }

  showRunning() {
    const run = this.running.get(this.conversation.id);
    this.log.setAttribute("aria-busy", String(Boolean(run)));
    if (run) {
      run.view = this.views.find((view) => view.message === run.message);
      if (run.view) run.view.state = "running";
    }
    this.hooks.onRunning(Boolean(run));
  }

  actions() {
    return {
      edit: (message, content) => this.edit(message, content),
      regenerate: (message) => this.regenerate(message),
      resume: (message) => this.resume(message),
      pick: (message) => this.pick(message),
      done: () => this.isStale && this.onChanged(this.conversation.id),
    };
  }

  async send(content, files) {
    const { conversation } = this;
    conversation.title ||= oneLine(content || files[0].name, 60);
    const message = tree.add(conversation, tree.path(conversation).at(-1), { role: "user", content, ...(files.length ? { files } : {}) });
    await this.answer(message);
  }

  /** The message before the edit stays, and what was said after it. */
  async edit(message, content) {
    const { conversation } = this;
    this.stop();
    const files = message.files ? { files: message.files } : {};
    await this.answer(tree.add(conversation, tree.parentOf(conversation, message), { role: "user", content, ...files }));
  }

  /** A new answer beside the old one; an answer that never began is tried again in its place. */
  async regenerate(message) {
    const question = tree.parentOf(this.conversation, message);
    this.stop();
    if (message.content || message.reasoning || message.calls) await this.answer(question);
    else await this.resume(message);
  }

  async pick(message) {
    tree.select(this.conversation, message);
    this.render();
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

  /** Asks the model to answer a message. */
  async answer(question) {
    const { conversation } = this;
    await this.run(conversation, tree.add(conversation, question, { role: "assistant", content: "" }));
  }

  /** Goes on with an answer that ended too early: it is the last message of the request. */
  async resume(message) {
    delete message.calls;
    for (const name of ["usage", "seconds", "reason", "error"]) delete message[name];
    if (!message.content) for (const name of ["reasoning", "thought_seconds"]) delete message[name];
    await this.run(this.conversation, message);
  }

  async run(conversation, message) {
    const model = this.hooks.model();
    Object.assign(message, { model, isPartial: true, isJson: schemaOf(conversation.settings) !== null });
    const body = { ...(model ? { model } : {}), messages: requestOf(conversation), ...samplerFields(conversation.settings) };
    conversation.model = model;
    conversation.updated = Date.now();
    const run = { conversation, message, controller: new AbortController(), view: null };
    this.running.set(conversation.id, run);
    this.render();
    this.scroll.toEnd();
    await this.save(conversation);
    await this.stream(run, body);
    await this.end(run);
  }

  async stream(run, body) {
    const { message, controller } = run;
    let saved = 0;
    const clock = new Clock(message);
    try {
      for await (const part of streamChat(body, controller.signal)) {
        if (controller.signal.aborted) break;
        if (part.thought) message.reasoning = (message.reasoning ?? "") + part.thought;
        if (part.text) message.content += part.text;
        if (part.call) addCall(message, part.call);
        if (part.problem) message.error = part.problem;
        if (part.text || part.thought || part.call) {
          clock.tick();
          this.schedule(run);
        }
        if (part.reason) message.reason = part.reason;
        if (part.usage) message.usage = part.usage;
        if (Date.now() - saved > SAVE_MS && this.isCurrent(run)) {
          saved = Date.now();
          await this.saveRun(run);
        }
      }
    } catch (error) {
      if (!controller.signal.aborted) message.error = error instanceof ApiError ? error.message : `It failed: ${error.message}`;
    }
    if (controller.signal.aborted) message.reason = "stopped";
  }

  async end(run) {
    const { conversation, message, view } = run;
    if (!this.isCurrent(run)) return this.endReplaced(run);
    this.running.delete(conversation.id);
    delete message.isPartial;
    message.updated = conversation.updated = Date.now();
    if (this.conversation === conversation) {
      view?.settle();
      this.render();
      this.scroll.follow();
      announce(message.error ? "The answer failed" : message.reason === "stopped" ? "Stopped" : "The answer is complete");
    }
    await this.save(conversation);
  }

  /** Another answer of the conversation took its place, or the conversation was deleted. */
  async endReplaced({ conversation, message }) {
    delete message.isPartial;
    message.updated = Date.now();
    if (this.running.has(conversation.id)) await this.save(conversation);
  }

  saveRun({ conversation, message }) {
    message.updated = Date.now();
    return this.save(conversation);
  }

  saveRunning() {
    for (const run of this.running.values()) this.saveRun(run);
  }

  /** The tab is closed: what came so far is kept, and other tabs learn that nobody writes on. */
  leave() {
    const runs = [...this.running.values()];
    this.running.clear();
    for (const { conversation, message } of runs) {
      store.keepDraft(conversation.id, { ...message, updated: Date.now() });
      store.tell("changed", conversation.id);
    }
  }

  async save(conversation) {
    try {
      await store.put(conversation);
    } catch (error) {
      toast(`The conversation could not be saved: ${error?.message ?? "the storage is full"}. Export it, or delete others.`);
    }
    this.hooks.onChange(conversation);
  }

  /** Another tab saved a conversation: what it added is added here too. A message that is being edited is left alone. */
  async onChanged(id) {
    const here = this.running.get(id)?.conversation ?? (id === this.conversation.id ? this.conversation : null);
    const stored = here && await store.get(id);
    if (!stored) return;
    this.isStale = id === this.conversation.id && this.log.querySelector("textarea") !== null;
    if (this.isStale) return;
    const [{ leaf }, before] = [here, here.messages.length];
    const changed = tree.merge(here, stored);
    Object.assign(here, { title: stored.title, settings: stored.settings });
    if (here !== this.conversation) return;
    if (changed.length) this.render();
    if (here.messages.length > before && here.leaf === leaf) {
      toast("Another tab added to this chat. The arrows below a message show its versions.");
    }
    this.hooks.onChange(here);
  }

  onRemoved(id) {
    this.drop(id);
    if (id !== this.conversation.id) return;
    toast("This chat was deleted in another tab.");
    this.hooks.onRemoved();
  }

  /** An answer that is half there is written on by another tab, or it was interrupted. */
  findRunner() {
    clearTimeout(this.asking);
    const { id } = this.conversation;
    const view = this.views.at(-1);
    if (this.isRunning || !view?.message.isPartial) return;
    this.runner = null;
    store.tell("asks", id);
    this.asking = setTimeout(async () => {
      const isAlive = this.runner === id;
      if (!isAlive) await this.recover(id);
      if (this.views.includes(view)) view.state = isAlive ? "elsewhere" : "interrupted";
      if (isAlive) this.findRunner();
    }, REPLY_MS);
  }

  /** Takes over what the tab that wrote an answer kept when it was closed. */
  async recover(id) {
    await store.recover();
    const stored = await store.get(id);
    if (stored && id === this.conversation.id && tree.merge(this.conversation, stored).length) this.render();
  }

  onRuns(id) {
    this.runner = id;
    const view = this.views.at(-1);
    if (id === this.conversation.id && view?.message.isPartial) view.state = "elsewhere";
  }

  get isElsewhere() {
    return this.views.at(-1)?.state === "elsewhere";
  }

  /** Shows new text at the next frame; where that takes long, less often, so that the page stays quick. */
  schedule(run) {
    if (run.isScheduled) return;
    run.isScheduled = true;
    const show = () => requestAnimationFrame(() => {
      const begin = performance.now();
      run.isScheduled = false;
      if (this.conversation !== run.conversation || !run.view || !this.isCurrent(run)) return;
      run.view.grow();
      this.scroll.follow();
      run.pause = Math.min(2000, 4 * (performance.now() - begin) - 16);
    });
    if (run.pause > 0) setTimeout(show, run.pause);
    else show();
  }
}

/** The messages of a request. Models are not told again what they thought, but for an answer that is continued. */
function requestOf(conversation) {
  const { settings } = conversation;
  const shown = tree.path(conversation);
  const system = settings.system ? [{ role: "system", content: settings.system }] : [];
  const said = shown.flatMap((one, at) => {
    const isWhole = one.role === "user" || at === shown.length - 1;
    return messagesOf(one, isWhole ? contentOf(one) : splitThought(one.content)[1], shown[at - 1]);
  });
  return [...system, ...said];
}

/** How long an answer takes from its first token on, and its thought. */
class Clock {
  constructor(message) {
    this.message = message;
    this.before = message.thought_seconds ?? 0;
    this.first = 0;
  }

  tick() {
    const now = performance.now();
    this.first ||= now;
    this.message.seconds = (now - this.first) / 1000;
    this.isAnswering ||= Boolean(partsOf(this.message)[1]);
    if (!this.isAnswering) this.message.thought_seconds = this.before + this.message.seconds;
  }
}
