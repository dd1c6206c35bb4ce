// The live panel: what the server does now.
import { getStats } from "./api.js";
import { $, el, svg, textNodes } from "./dom.js";
import { read, write } from "./settings.js";

const OPEN = "fewbit.stats";
const EVERY_MS = 1000;
const RETRY_MS = 10000; // where the server tells nothing
const MOST_POINTS = 60;

const count = (value) => Math.round(value).toLocaleString("en");

const percent = (part, whole) => (whole ? `${Math.round((100 * part) / whole)} %` : "\u2013");

/** Figures of the loaded models as one: sums, and the hit rate of the one that is chosen. */
export function summary(stats, model) {
  const loaded = stats.models.filter((one) => one.loaded);
  const sum = (name) => loaded.reduce((total, one) => total + (one[name] ?? 0), 0);
  const chosen = loaded.find((one) => one.model === model) ?? loaded[0];
  const names = ["running", "waiting", "generated_tokens", "draft_tokens", "accepted_tokens", "pages_total", "pages_used", "pages_shared", "pages_cached"];
  return { ...Object.fromEntries(names.map((name) => [name, sum(name)])), time: stats.time,
    prefix_hit_rate: chosen?.prefix_hit_rate ?? 0, loaded: loaded.map((one) => one.model) };
}

export class StatsPanel {
  constructor(model) {
    this.model = model;
    this.panel = $("stats");
    this.button = $("toggle-stats");
    this.rates = [];
    this.before = null;
    this.build();
    this.button.addEventListener("click", () => this.toggle(this.panel.hidden));
    document.addEventListener("visibilitychange", () => this.plan(0));
    this.toggle(read(OPEN) === "open");
  }

  build() {
    this.values = {};
    const figure = (name, label) => {
      this.values[name] = el("dd", { text: "\u2013" });
      return el("div", {}, el("dt", { text: label }), this.values[name]);
    };
    this.line = svg("polyline", { class: "line" });
    this.bars = { used: el("span", { class: "used" }), cached: el("span", { class: "cached" }) };
    this.note = el("p", { class: "note", hidden: true });
    this.panel.append(
      el("dl", {}, figure("rate", "Tokens/s"), figure("batch", "Batch"), figure("waiting", "Waiting"),
        figure("pages", "Pages used"), figure("shared", "Pages shared"), figure("hits", "Prefix hits"),
        figure("guesses", "Guesses right"), figure("gain", "Steps saved")),
      el("div", { class: "pages", title: "Pages of the KV cache: used, kept for prompts to come, free" },
        this.bars.used, this.bars.cached),
      svg("svg", { class: "spark", viewBox: "0 0 60 20", preserveAspectRatio: "none", "aria-hidden": "true" }, this.line),
      this.note,
    );
  }

  toggle(isOpen) {
    this.panel.hidden = !isOpen;
    this.button.setAttribute("aria-expanded", String(isOpen));
    write(OPEN, isOpen ? "open" : "closed");
    this.plan(0);
  }

  plan(milliseconds) {
    clearTimeout(this.timer);
    if (!this.panel.hidden && !document.hidden) this.timer = setTimeout(() => this.ask(), milliseconds);
  }

  async ask() {
    try {
      this.show(summary(await getStats(AbortSignal.timeout(5000)), this.model()));
      this.note.hidden = true;
      this.plan(EVERY_MS);
    } catch (error) {
      this.note.replaceChildren(...textNodes(error.status === 404 ? "This server tells no figures." : `No figures: ${error.message}`));
      this.note.hidden = false;
      this.before = null;
      for (const value of Object.values(this.values)) value.textContent = "\u2013";
      this.plan(RETRY_MS);
    }
  }

  show(now) {
    const seconds = this.before ? now.time - this.before.time : 0;
    const made = this.before ? now.generated_tokens - this.before.generated_tokens : 0;
    const rate = seconds > 0 && made > 0 ? made / seconds : 0; // a model that was put away takes its count with it
    if (this.before) this.rates = [...this.rates, rate].slice(-MOST_POINTS);
    this.before = now;
    this.values.rate.textContent = rate.toFixed(1);
    this.values.batch.textContent = count(now.running);
    this.values.waiting.textContent = count(now.waiting);
    this.values.pages.textContent = `${count(now.pages_used)} / ${count(now.pages_total)}`;
    this.values.shared.textContent = count(now.pages_shared);
    this.values.hits.textContent = `${Math.round(100 * now.prefix_hit_rate)} %`;
    this.values.guesses.textContent = percent(now.accepted_tokens, now.draft_tokens);
    this.values.gain.textContent = percent(now.accepted_tokens, now.draft_tokens && now.generated_tokens);
    this.draw(now);
  }

  draw(now) {
    const share = (part) => `${(100 * part) / Math.max(1, now.pages_total)}%`;
    this.bars.used.style.width = share(now.pages_used);
    this.bars.cached.style.width = share(now.pages_cached);
    const top = Math.max(1, ...this.rates);
    const from = MOST_POINTS - this.rates.length;
    this.line.setAttribute("points", this.rates.map((rate, i) => `${from + i + 0.5},${19 - (18 * rate) / top}`).join(" "));
  }
}
