// Sampler settings, system prompt, API key and theme.
import { getKey, keepsKey, setKey } from "./api.js";
import { $ } from "./dom.js";

const SETTINGS = "fewbit.settings";
const THEME = "fewbit.theme";
const NUMBERS = ["temperature", "max_tokens", "top_p", "top_k", "min_p", "seed"];
const TEXTS = ["system", "stop", "schema", "tools"];

export function read(name) {
  try {
    return localStorage.getItem(name);
  } catch {
    return null;
  }
}

export function write(name, value) {
  try {
    localStorage.setItem(name, value);
  } catch {
    // storage is off or full: it lives as long as the page
  }
}

/** What new chats begin with: `{ system, stop, temperature, ... }`; what is not set is left out. */
export function defaults() {
  try {
    return clean(JSON.parse(read(SETTINGS)) ?? {});
  } catch {
    return {};
  }
}

/** Only what is known, and only what is a number or a text; settings may come from a file. */
export function clean(found) {
  const settings = {};
  for (const name of NUMBERS) if (Number.isFinite(found?.[name])) settings[name] = found[name];
  for (const name of TEXTS) {
    if (typeof found?.[name] === "string" && found[name]) settings[name] = found[name];
  }
  return settings;
}

/** The fields of a request. */
export function samplerFields(settings) {
  const fields = {};
  for (const name of NUMBERS) if (name in settings) fields[name] = settings[name];
  const stop = (settings.stop ?? "").split("\n").filter(Boolean).map((one) => one.replaceAll("\\n", "\n"));
  if (stop.length) fields.stop = stop;
  const schema = schemaOf(settings);
  if (schema) fields.response_format = { type: "json_schema", json_schema: { name: "answer", schema } };
  const tools = toolsOf(settings);
  return tools.length ? { ...fields, tools } : fields;
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

/** The schema that answers follow, or null. */
export function schemaOf({ schema }) {
  const found = parsed(schema);
  return isObject(found) ? found : null;
}

/** Tools as a request has them; those of the settings may be functions alone. */
function toolsOf({ tools }) {
  const found = parsed(tools);
  if (!Array.isArray(found)) return [];
  return found.filter(isObject).map((one) => (one.function ? one : { type: "function", function: one }));
}

/** Says under a field of JSON what is wrong with it. */
function checkJson(field, isRight, expected) {
  const check = () => field.setCustomValidity(!field.value.trim() || isRight(parsed(field.value)) ? "" : expected);
  field.addEventListener("input", check);
  check();
}

/** Opens the dialog; gives the new settings, or null where it was left. */
export function editSettings(settings) {
  const dialog = $("settings");
  const form = dialog.querySelector("form");
  fill(form, settings);
  checkJson(form.elements.schema, isObject, "This is not a JSON object.");
  checkJson(form.elements.tools, (found) => Array.isArray(found) && found.every(isObject), "This is not a JSON list of functions.");
  return shown(dialog, () => {
    const found = {};
    for (const name of NUMBERS) if (form.elements[name].value !== "") found[name] = form.elements[name].valueAsNumber;
    for (const name of TEXTS) found[name] = form.elements[name].value;
    const saved = clean(found);
    write(SETTINGS, JSON.stringify(saved));
    return saved;
  });
}

export function fill(form, settings) {
  for (const name of [...NUMBERS, ...TEXTS]) form.elements[name].value = settings[name] ?? "";
}

let asking = null;

/** Asks for the API key; gives whether there is a new one. Many requests may ask at once. */
export function editKey(note = "This server needs an API key. Ask who runs it.") {
  asking ??= openKey(note).finally(() => { asking = null; });
  return asking;
}

async function openKey(note) {
  const form = $("key").querySelector("form");
  $("key-note").textContent = note;
  form.elements.key.value = getKey();
  form.elements.keep.checked = keepsKey();
  return (await shown($("key"), () => {
    setKey(form.elements.key.value.trim(), form.elements.keep.checked);
    return true;
  })) ?? false;
}

function shown(dialog, onSave) {
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "save" ? onSave() : null), { once: true });
  });
}

/** Dark becomes light and the reverse; it stays so in this browser. */
export function switchTheme() {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  root.dataset.theme = (root.dataset.theme ?? system) === "dark" ? "light" : "dark";
  write(THEME, root.dataset.theme);
  return root.dataset.theme;
}
