// The models of the server: which are loaded, which only embed, how they sample by themselves, and how full the context is.
import { listModels, showModel } from "./api.js";
import { $, el, textNodes, toast } from "./dom.js";
import { read, write } from "./settings.js";

const CHOSEN = "fewbit.model";
const FULL = 0.9; // of the context, from where on the meter warns

export class Models {
  constructor() {
    this.select = $("model");
    this.found = [];
    this.select.addEventListener("change", () => write(CHOSEN, this.chosen));
  }

  get chosen() {
    return this.select.value;
  }

  /** What is known of the chosen model: `{ id, loaded, max_model_len, defaults, onlyEmbeds }`. */
  get current() {
    return this.found.find((one) => one.id === this.chosen);
  }

  choose(name) {
    const option = [...this.select.options].find((one) => one.value === name && !one.disabled);
    if (option) this.select.value = name;
  }

  async load(wanted = "") {
    try {
      await this.ask();
      const { chosen } = this;
      this.show();
      for (const name of [this.usable[0]?.id, read(CHOSEN), wanted, chosen]) this.choose(name);
      if (!this.found.length) toast("This server has no model. Start it with one: fewbit serve MODEL");
    } catch (error) {
      toast(error.message, "Try again", () => this.load(wanted));
    }
    if (!this.select.options.length) this.select.replaceChildren(el("option", { value: "", text: "No model" }));
  }

  async ask() {
    const known = new Map(this.found.map((one) => [one.id, one]));
    this.found = await Promise.all((await listModels()).map(async (one) => {
      const before = known.get(one.id);
      return before?.loaded === one.loaded ? { ...before, ...one } : { ...one, ...(await about(one.id)) };
    }));
  }

  get usable() {
    return this.found.filter((one) => !one.onlyEmbeds);
  }

  show() {
    const name = (one) => one.id + (one.onlyEmbeds ? " (embeddings only)" : one.loaded === false ? " (not loaded)" : "");
    this.select.replaceChildren(...this.found.map((one) =>
      el("option", { value: one.id, disabled: Boolean(one.onlyEmbeds) }, textNodes(name(one)))));
  }

  /** Shows in the settings what a field that is left empty means. */
  showDefaults(form) {
    const { defaults = {}, max_model_len: context } = this.current ?? {};
    for (const name of ["temperature", "top_p", "top_k", "min_p"]) form.elements[name].placeholder = defaults[name] ?? "";
    form.elements.max_tokens.placeholder = context ? `to ${context} in all` : "";
    form.elements.seed.placeholder = "random";
    $("model-note").replaceChildren(...textNodes(note(this.current)));
  }

  /** How much of the context the last answer has filled. */
  showContext(usage) {
    const context = this.current?.max_model_len;
    $("context").hidden = !usage || !context;
    if (!usage || !context) return;
    const used = usage.prompt_tokens + usage.completion_tokens;
    const meter = $("context-meter");
    for (const [name, value] of [["max", context], ["now", Math.min(used, context)]]) meter.setAttribute(`aria-value${name}`, value);
    meter.firstChild.style.width = `${Math.min(100, (100 * used) / context)}%`;
    const count = (value) => value.toLocaleString("en");
    $("context-text").textContent = `${count(used)} of ${count(context)} tokens`;
    $("context").classList.toggle("full", used >= FULL * context);
  }
}

function note(model) {
  if (!model) return "";
  if (!model.loaded) return `${model.id} is not loaded yet; its defaults are shown when it is.`;
  return `${model.id} holds ${model.max_model_len.toLocaleString("en")} tokens of context. Grey values are its defaults.`;
}

/** What a model can do and how it samples; nothing where the server does not tell. */
async function about(id) {
  try {
    const { capabilities = [], parameters = "" } = await showModel(id);
    const defaults = Object.fromEntries(parameters.split("\n").filter(Boolean).map((line) => line.split(/\s+/, 2)));
    return { defaults, onlyEmbeds: capabilities.includes("embedding") && !capabilities.includes("completion") };
  } catch {
    return {};
  }
}
