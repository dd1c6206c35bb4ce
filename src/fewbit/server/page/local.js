// The page of models that run in the browser: a file is picked, loaded, and talked to. Nothing but its plan is asked of
// the server.
import { getKey, keepsKey, setKey } from "./api.js";
import { $, announce, copy, el, iconButton, textNodes, toast } from "./dom.js";
import { Gpu, Model, serverPlanner } from "./fewbit.js";
import { MarkdownView } from "./markdown.js";
import { Scroll } from "./scroll.js";
import { switchTheme } from "./settings.js";

const SETTINGS = "fewbit.local";
const NUMBERS = ["temperature", "maxTokens", "topP", "topK", "minP", "repetitionPenalty", "presencePenalty",
  "frequencyPenalty", "seed", "ctx"];
const WHAT = { header: "Reading the header", plan: "Making the plan", weights: "Sending weights", kernels: "Compiling kernels" };

let gpu = null;
let model = null;
let messages = [];
let running = null; // an AbortController
const scroll = new Scroll();

// Loading

async function load(from, name) {
  showProblem("");
  running = new AbortController();
  const { signal } = running;
  try {
    showProgress("header", 0, 1);
    if (!gpu || gpu.lost) gpu = await Gpu.open();
    const planner = serverPlanner("local/plan", authorization());
    model = await Model.load(from, planner, { gpu, signal, ctx: settings().ctx ?? null, headers: headersFor(from),
      progress: showProgress });
    begin(name);
  } catch (error) {
    if (!signal.aborted) showProblem(error.message);
  } finally {
    running = null;
    $("loading").hidden = true;
    showPicker();
  }
}

function showProgress(what, done, total) {
  $("loading").hidden = false;
  const size = what === "weights" ? `, ${megabytes(done)} of ${megabytes(total)}` : "";
  $("loading-text").textContent = `${WHAT[what]}${size}`;
  $("progress").value = total ? done / total : 0;
  showPicker();
}

function showPicker() {
  $("pick").hidden = Boolean(model);
  for (const id of ["choose", "by-url", "shared"]) $(id).hidden = Boolean(running);
  for (const id of ["composer", "unload", "new-chat", "hint"]) $(id).hidden = !model;
}

function begin(name) {
  $("title").replaceChildren(...textNodes(name));
  $("figures").textContent = `${gpu.name || "WebGPU"}, context ${model.ctx}`;
  newChat();
  announce("The model is loaded.");
}

function unload() {
  running?.abort();
  model?.free();
  model = null;
  newChat();
  $("title").textContent = "fewbit in this browser";
  $("figures").textContent = "";
  showPicker();
}

function showProblem(text) {
  $("problem").hidden = !text;
  $("problem").replaceChildren(...textNodes(text));
}

const megabytes = (bytes) => `${Math.round(bytes / 1e6)} MB`;
const authorization = () => (getKey() ? { Authorization: `Bearer ${getKey()}` } : {});

/** The key of this server goes to no other. */
function headersFor(from) {
  const isHere = typeof from === "string" && new URL(from, location.href).origin === location.origin;
  return isHere ? authorization() : {};
}

async function showShared() {
  const answer = await fetch("local/models", { headers: authorization() }).catch(() => null);
  const found = answer?.ok ? (await answer.json()).models : [];
  $("shared").replaceChildren(...found.map(({ name, size }) => {
    const address = new URL(`local/models/${name.split("/").map(encodeURIComponent).join("/")}`, location.href).href;
    return el("button", { type: "button", class: "primary", on: { click: () => load(address, name) } },
      ...textNodes(`Run ${name}`), el("small", { text: megabytes(size) }));
  }));
}

// Talking

function newChat() {
  running?.abort();
  messages = [];
  $("log").replaceChildren();
  if (model) $("input").focus();
}

async function send(text) {
  const settings_ = settings();
  messages.push({ role: "user", content: text });
  addMessage("user", text);
  const answer = addMessage("assistant", "");
  running = new AbortController();
  const own = messages;
  showRunning();
  const begun = { role: "assistant", content: "" };
  let tokens = 0;
  let first = 0;
  const onToken = () => { tokens += 1; first ||= performance.now(); };
  try {
    const asked = settings_.system ? [{ role: "system", content: settings_.system }, ...own] : own;
    const options = { ...settings_, signal: running.signal, onToken, maxTokens: settings_.maxTokens ?? Infinity };
    const pieces = model.template ? model.chat(asked, options) : model.generate(text, options);
    for await (const piece of pieces) {
      begun.content += piece;
      answer.view.append(piece);
      showFigures(tokens, first);
    }
  } catch (error) {
    if (error.name !== "AbortError") addProblem(answer.foot, error.message);
  } finally {
    if (begun.content) own.push(begun);
    else own.pop();
    finish(answer, begun.content);
  }
}

function finish(answer, text) {
  running = null;
  answer.node.classList.remove("running");
  if (text) answer.foot.append(el("div", { class: "actions" }, iconButton("copy", "Copy", () => copy(text).then(
    () => toast("Copied"), (error) => toast(`Not copied: ${error.message}`)))));
  showRunning();
  $("input").focus();
}

function addMessage(role, text) {
  const body = el("div", { class: "body" });
  const foot = el("div", { class: "foot" });
  const isUser = role === "user";
  const name = el("h2", { class: isUser ? "unseen" : "who" }, ...textNodes(isUser ? "You" : $("title").textContent));
  const node = el("article", { class: `message ${role}${isUser ? "" : " running"}` }, name, body, foot);
  let view = null;
  if (isUser) body.append(el("div", { class: "said", dir: "auto" }, ...textNodes(text)));
  else {
    const root = el("div", { class: "markdown" });
    body.append(root);
    view = new MarkdownView(root);
  }
  $("log").append(node);
  scroll.toEnd();
  return { node, foot, view };
}

function addProblem(foot, text) {
  const again = gpu.lost ? [el("button", { type: "button", on: { click: unload }, text: "Load again" })] : [];
  foot.append(el("div", { class: "error", role: "alert" }, el("span", {}, ...textNodes(text)), ...again));
}

function showRunning() {
  $("send").hidden = Boolean(running);
  $("stop").hidden = !running;
}

function showFigures(tokens, first) {
  const seconds = (performance.now() - first) / 1000;
  const speed = tokens > 1 ? `${((tokens - 1) / seconds).toFixed(1)} tok/s, ` : "";
  $("figures").textContent = `${speed}${model.kept.length} of ${model.ctx} tokens, ${gpu.name || "WebGPU"}`;
}

// Settings

function settings() {
  try {
    return JSON.parse(localStorage.getItem(SETTINGS)) ?? {};
  } catch {
    return settings.memory ?? {};
  }
}

function editSettings() {
  const form = $("settings").querySelector("form");
  const known = settings();
  for (const name of [...NUMBERS, "system"]) form.elements[name].value = known[name] ?? "";
  form.elements.key.value = getKey();
  $("settings").returnValue = "";
  $("settings").showModal();
}

function saveSettings() {
  if ($("settings").returnValue !== "save") return;
  const { elements } = $("settings").querySelector("form");
  const given = NUMBERS.filter((name) => elements[name].value !== "").map((name) => [name, Number(elements[name].value)]);
  settings.memory = { ...Object.fromEntries(given), system: elements.system.value };
  try {
    localStorage.setItem(SETTINGS, JSON.stringify(settings.memory));
  } catch {
    // storage is off: they live as long as the page
  }
  setKey(elements.key.value, keepsKey());
  showShared();
}

// The page

$("choose").addEventListener("click", () => $("file").click());
$("file").addEventListener("change", () => {
  const [file] = $("file").files;
  $("file").value = "";
  if (file) load(file, file.name.replace(/\.gguf$/, ""));
});
$("by-url").addEventListener("submit", (event) => {
  event.preventDefault();
  const url = $("url").value.trim();
  if (url) load(url, new URL(url).pathname.split("/").pop().replace(/\.gguf$/, ""));
});
$("cancel").addEventListener("click", () => running?.abort());
$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = $("input").value.trim();
  if (!text || running) return;
  $("input").value = "";
  send(text);
});
$("input").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  $("composer").requestSubmit();
});
for (const kind of ["paste", "drop"]) {
  $("input").addEventListener(kind, (event) => {
    const { files } = event.clipboardData ?? event.dataTransfer;
    if (![...files].some((file) => file.type.startsWith("image/"))) return;
    event.preventDefault();
    toast("Models on this page read text alone: the image was not taken.");
  });
}
document.addEventListener("keydown", (event) => { if (event.key === "Escape" && !$("settings").open) running?.abort(); });
$("stop").addEventListener("click", () => running?.abort());
$("unload").addEventListener("click", unload);
$("new-chat").addEventListener("click", newChat);
$("open-settings").addEventListener("click", editSettings);
$("settings").addEventListener("close", saveSettings);
$("settings").querySelector("[data-close]").addEventListener("click", () => $("settings").close());
$("theme").addEventListener("click", switchTheme);
if (!navigator.gpu) {
  showProblem(isSecureContext ? "This browser has no WebGPU: take a recent Chrome, Edge, Firefox or Safari."
    : "WebGPU needs a secure page: open it by https or from localhost.");
}
showShared();
