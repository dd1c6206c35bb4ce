// The list of conversations: open, search, rename, export, delete.
import { $, el, icon, oneLine, textNodes, toast } from "./dom.js";
import * as store from "./store.js";
import { download, fileName, fromFile, toJson, toMarkdown } from "./transfer.js";

/** `hooks`: `open(conversation)`, `current()`, `rename(id, title)`, `onRemove(id)`. */
export class Sidebar {
  constructor(hooks) {
    this.hooks = hooks;
    this.list = $("conversations");
    this.search = $("search");
    this.search.addEventListener("input", () => this.show());
    $("import").addEventListener("click", () => $("import-file").click());
    $("import-file").addEventListener("change", (event) => this.import(event.target));
    $("export-all").addEventListener("click", () => this.exportAll());
    store.onTold({ changed: () => this.refresh(), removed: () => this.refresh() });
    this.conversations = [];
  }

  async refresh() {
    this.conversations = await store.all();
    this.show();
  }

  show() {
    if (this.renaming) return; // an open name is not taken away
    const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = this.conversations.filter((one) => matches(one, words));
    const empty = words.length ? "Nothing found." : "No conversations yet.";
    this.list.replaceChildren(...(found.length ? found.map((one) => this.row(one))
      : [el("li", { class: "note", text: empty })]));
  }

  row(conversation) {
    const isCurrent = conversation.id === this.hooks.current();
    const title = conversation.title || "New chat";
    const open = el("button", {
      type: "button", class: "open", "aria-current": isCurrent ? "true" : null,
      on: { click: () => this.hooks.open(conversation) },
    }, el("span", { dir: "auto" }, textNodes(title)));
    const more = el("button", { type: "button", class: "icon small", "aria-label": `More for ${title}` }, icon("more"));
    const row = el("li", {}, open, more);
    more.addEventListener("click", () => this.menu(conversation, row, more));
    return row;
  }

  menu(conversation, row, button) {
    const menu = $("menu");
    const item = (name, text, action) => el("button", {
      type: "button", on: { click: () => { menu.hidePopover(); action(); } },
    }, icon(name), text);
    menu.replaceChildren(
      item("edit", "Rename", () => this.rename(conversation, row)),
      item("out", "Export as Markdown", () =>
        download(fileName(conversation, "md"), toMarkdown(conversation), "text/markdown")),
      item("out", "Export as JSON", () =>
        download(fileName(conversation, "json"), toJson([conversation]), "application/json")),
      item("delete", "Delete", () => this.remove(conversation)),
    );
    menu.showPopover();
    const at = button.getBoundingClientRect();
    menu.style.left = `${Math.max(8, Math.min(at.left, innerWidth - menu.offsetWidth - 8))}px`;
    menu.style.top = `${Math.max(8, Math.min(at.bottom + 4, innerHeight - menu.offsetHeight - 8))}px`;
    menu.firstChild.focus();
  }

  rename(conversation, row) {
    const field = el("input", { "aria-label": "Name of the conversation", maxlength: "200", dir: "auto" });
    field.value = conversation.title;
    this.renaming = true;
    const leave = async (save) => {
      if (!this.renaming) return;
      this.renaming = false;
      if (save && oneLine(field.value)) await this.hooks.rename(conversation.id, oneLine(field.value));
      await this.refresh();
    };
    field.addEventListener("blur", () => leave(true));
    field.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== "Escape") return;
      event.preventDefault();
      event.stopPropagation();
      leave(event.key === "Enter");
    });
    row.replaceChildren(field);
    field.focus();
    field.select();
  }

  async remove(conversation) {
    await this.hooks.onRemove(conversation.id);
    await store.remove(conversation.id);
    await this.refresh();
    toast("The conversation was deleted.", "Undo", async () => {
      await store.put(conversation);
      await this.refresh();
    });
  }

  async exportAll() {
    const found = await store.all();
    if (found.length) download("fewbit-chats.json", toJson(found), "application/json");
    else toast("There is nothing to export yet.");
  }

  async import(input) {
    let count = 0;
    try {
      for (const file of input.files) {
        const taken = new Set(this.conversations.map((one) => one.id));
        for (const one of await fromFile(file, taken)) {
          await store.put(one);
          count++;
        }
        await this.refresh();
      }
      toast(count === 1 ? "1 conversation was imported." : `${count} conversations were imported.`);
    } catch (error) {
      toast(error.message);
    }
    input.value = "";
  }
}

/** Whether every word stands in the title or in a message. */
function matches(conversation, words) {
  if (!words.length) return true;
  const text = [conversation.title, ...conversation.messages.map((one) => one.content)].join("\n").toLowerCase();
  return words.every((word) => text.includes(word));
}
