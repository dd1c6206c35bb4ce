// The page begins here: it joins the parts, and has the keys and the message box.
import { listModels, onKeyNeeded } from "./api.js";
import { Chat } from "./chat.js";
import { $, announce, el, textNodes, toast } from "./dom.js";
import { Attachments } from "./files.js";
import { defaults, editKey, editSettings, fill, read, switchTheme, write } from "./settings.js";
import { Sidebar } from "./sidebar.js";
import { StatsPanel } from "./stats.js";
import * as store from "./store.js";

const MODEL = "fewbit.model";
const STARTERS = ["Explain a KV cache to a friend", "Write a Python function that merges two sorted lists",
  "A table of the planets, with their moons"];

const input = $("input");
const model = $("model");
const attachments = new Attachments();

const chat = new Chat({
  model: () => model.value,
  onChange: () => { showTitle(); sidebar.refresh(); },
  onRunning: (isRunning) => {
    $("send").hidden = isRunning;
    $("stop").hidden = !isRunning;
  },
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

function open(conversation) {
  chat.show(conversation);
  if ([...model.options].some((one) => one.value === conversation.model)) model.value = conversation.model;
  history.replaceState(null, "", conversation.messages.length ? `#${conversation.id}` : location.pathname);
  showTitle();
  sidebar.show();
  toggleSidebar(false);
  input.focus();
}

function newChat() {
  open(store.newConversation(defaults(), model.value));
}

async function send() {
  const text = input.value.trim();
  if (chat.isRunning || (!text && !attachments.files.length)) return;
  if (!model.value) await loadModels();
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

async function loadModels() {
  try {
    const found = await listModels();
    const last = chat.conversation?.model || read(MODEL);
    model.replaceChildren(...found.map((one) => el("option", { value: one.id }, textNodes(one.id))));
    if (found.some((one) => one.id === last)) model.value = last;
    if (!found.length) toast("This server has no model. Start it with one: fewbit serve MODEL");
  } catch (error) {
    toast(error.message, "Try again", loadModels);
  }
  if (!model.options.length) model.replaceChildren(el("option", { value: "", text: "No model" }));
}

function toggleSidebar(isOpen) {
  document.body.classList.toggle("sidebar-open", isOpen);
  $("open-sidebar").setAttribute("aria-expanded", String(isOpen));
  if (isOpen) $("new-chat").focus();
}

async function openSettings() {
  const { conversation } = chat;
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
  model.addEventListener("change", () => { write(MODEL, model.value); input.focus(); });
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
  const wanted = location.hash.slice(1);
  const found = wanted ? await store.get(wanted) : null;
  if (found) open(found);
  else newChat();
  new StatsPanel(() => model.value);
  await Promise.all([loadModels(), sidebar.refresh()]);
  if (!(await store.isKept())) toast("This browser keeps no conversations: export what you need.");
}

begin();
