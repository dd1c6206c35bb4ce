// The page begins here: it joins the parts, and has the keys and the message box.
import { onKeyNeeded } from "./api.js";
import { Chat } from "./chat.js";
import { $, announce, el, textNodes, toast } from "./dom.js";
import { Attachments } from "./files.js";
import { Models } from "./models.js";
import { defaults, editKey, editSettings, fill, switchTheme } from "./settings.js";
import { Sidebar } from "./sidebar.js";
import { StatsPanel } from "./stats.js";
import * as store from "./store.js";
import { newConversation, path } from "./tree.js";

const STARTERS = ["Explain a KV cache to a friend", "Write a Python function that merges two sorted lists",
  "A table of the planets, with their moons"];

const input = $("input");
const models = new Models();
const attachments = new Attachments();

const chat = new Chat({
  model: () => models.chosen,
  onChange: () => { showTitle(); sidebar.refresh(); },
  onShow: () => showContext(),
  onRunning: (isRunning) => {
    const hasEnded = !isRunning && $("send").hidden;
    $("send").hidden = isRunning;
    $("stop").hidden = !isRunning;
    if (hasEnded) models.load().then(showContext); // the answer may have loaded its model
  },
  onRemoved: () => newChat(),
});

const sidebar = new Sidebar({
  current: () => chat.conversation?.id,
  open: (conversation) => open(conversation),
  rename: async (id, title) => {
    const found = id === chat.conversation.id ? chat.conversation : await store.get(id);
    found.title = title;
    await store.put(found);
    showTitle();
  },
  onRemove: async (id) => {
    chat.drop(id);
    if (id === chat.conversation.id) newChat();
  },
});

function showTitle() {
  const title = chat.conversation.title || "New chat";
  $("title").replaceChildren(...textNodes(title));
  document.title = chat.conversation.title ? `${title} - fewbit` : "fewbit";
}

function showContext() {
  models.showContext(path(chat.conversation).findLast((one) => one.usage)?.usage);
}

function open(conversation) {
  models.choose(conversation.model);
  chat.show(conversation);
  history.replaceState(null, "", conversation.messages.length ? `#${conversation.id}` : location.pathname);
  showTitle();
  sidebar.show();
  toggleSidebar(false);
  input.focus();
}

function newChat() {
  open(newConversation(defaults(), models.chosen));
}

async function send() {
  const text = input.value.trim();
  if (chat.isRunning || (!text && !attachments.files.length)) return;
  if (chat.isElsewhere) {
    toast("Another tab is answering in this chat: wait for it, or stop it there.");
    return;
  }
  if (!models.chosen) await models.load();
  input.value = "";
  fit();
  const sending = chat.send(text, attachments.take());
  history.replaceState(null, "", `#${chat.conversation.id}`);
  await sending;
}

/** The box is as high as its text, up to a point. */
function fit() {
  input.style.height = "auto";
  input.style.height = `${Math.min(input.scrollHeight, innerHeight * 0.4)}px`;
}

function toggleSidebar(isOpen) {
  document.body.classList.toggle("sidebar-open", isOpen);
  $("open-sidebar").setAttribute("aria-expanded", String(isOpen));
  if (isOpen) $("new-chat").focus();
}

async function openSettings() {
  const { conversation } = chat;
  const form = $("settings").querySelector("form");
  models.showDefaults(form);
  models.load().then(() => models.showDefaults(form));
  const saved = await editSettings(conversation.settings);
  if (!saved) return;
  conversation.settings = saved;
  if (conversation.messages.length) await chat.save(conversation);
  announce("Settings saved");
}

function onKey(event) {
  if ((event.ctrlKey || event.metaKey) && !event.shiftKey && event.key.toLowerCase() === "k") {
    event.preventDefault();
    if (!document.querySelector("dialog[open]")) newChat();
  } else if (event.key === "Escape" && !document.querySelector("dialog[open], :popover-open")) {
    if (document.body.classList.contains("sidebar-open")) {
      toggleSidebar(false);
      $("open-sidebar").focus();
    } else chat.stop();
  }
}

function onInputKey(event) {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    send();
  } else if (event.key === "ArrowUp" && !input.value && !chat.isRunning) {
    const last = chat.views.findLast((view) => view.isUser);
    if (!last) return;
    event.preventDefault();
    last.edit();
  }
}

function wire() {
  document.addEventListener("keydown", onKey);
  input.addEventListener("keydown", onInputKey);
  input.addEventListener("input", fit);
  $("composer").addEventListener("submit", (event) => { event.preventDefault(); send(); });
  $("stop").addEventListener("click", () => { chat.stop(); input.focus(); });
  $("new-chat").addEventListener("click", newChat);
  $("open-sidebar").addEventListener("click", () => toggleSidebar(true));
  $("close-sidebar").addEventListener("click", () => toggleSidebar(false));
  $("shade").addEventListener("click", () => toggleSidebar(false));
  $("theme").addEventListener("click", () => announce(`The page is ${switchTheme()} now`));
  $("open-settings").addEventListener("click", openSettings);
  $("reset-settings").addEventListener("click", () => fill($("settings").querySelector("form"), {}));
  $("change-key").addEventListener("click", () => editKey("Sent with each request, if there is one."));
  for (const button of document.querySelectorAll("[data-close]")) {
    button.addEventListener("click", () => button.closest("dialog").close());
  }
  $("model").addEventListener("change", () => { showContext(); input.focus(); });
  wireFiles();
}

function wireFiles() {
  const picker = $("attach-file");
  $("attach").addEventListener("click", () => picker.click());
  picker.addEventListener("change", async () => {
    await attachments.add([...picker.files]);
    picker.value = "";
    input.focus();
  });
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    if (event.dataTransfer.files.length) attachments.add([...event.dataTransfer.files]);
  });
  input.addEventListener("paste", (event) => {
    if (!event.clipboardData.files.length) return;
    event.preventDefault();
    attachments.add([...event.clipboardData.files]);
  });
}

async function begin() {
  wire();
  onKeyNeeded(() => editKey());
  $("starters").append(...STARTERS.map((text) => el("button", {
    type: "button", text, on: { click: () => { input.value = text; fit(); input.focus(); } },
  })));
  await store.recover();
  const wanted = location.hash.slice(1);
  const found = wanted ? await store.get(wanted) : null;
  if (found) open(found);
  else newChat();
  new StatsPanel(() => models.chosen);
  await Promise.all([models.load(chat.conversation.model).then(showContext), sidebar.refresh()]);
  if (!(await store.isKept())) toast("This browser keeps no conversations: export what you need.");
}

begin();
