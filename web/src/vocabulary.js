// The vocabulary in the metadata of a GGUF file: tokens, what kind each is, and which of them have a role.

import { FewbitError } from "./errors.js";

export const [NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE] = [1, 2, 3, 4, 5, 6];
const UNSET = [-1, 2 ** 32 - 1];
const END_ROLES = ["eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep"];
const DEFAULT_ROLES = { llama: { bos: 1, eos: 2, unknown: 0 } };

export class Vocabulary {
  constructor(metadata, rules) {
    this.model = metadata["tokenizer.ggml.model"];
    this.tokens = texts(metadata, "tokenizer.ggml.tokens");
    if (!this.tokens.length) throw new FewbitError("tokenizer.ggml.tokens is empty");
    this.ids = new Map(this.tokens.map((text, id) => [text, id]));
    this.kinds = numbers(metadata, "tokenizer.ggml.token_type", this.tokens.length) ?? this.tokens.map(() => NORMAL);
    this.markControl(rules.control_texts);
    this.roles = this.readRoles(metadata);
    this.ends = this.findEnds(rules.end_texts);
  }

  ofKind(...kinds) {
    return new Map([...this.ids].filter(([, id]) => kinds.includes(this.kinds[id])));
  }

  /** Files do not always say which tokens are control tokens. */
  markControl(known) {
    for (const text of known) if (this.ids.has(text)) this.kinds[this.ids.get(text)] = CONTROL;
    if (this.closes()) this.kinds[this.ids.get("</s>")] = CONTROL;
  }

  /** Whether "</s>" ends a text. In some vocabularies it is a piece of HTML. */
  closes() {
    const { ids } = this;
    if (!ids.has("</s>") || ids.has("<|tool_response>") || ids.has("<|plamo:eos|>")) return false;
    return this.kinds[ids.get("</s>")] !== NORMAL;
  }

  findEnds(known) {
    const { ids } = this;
    const ends = new Set(known.filter((text) => ids.has(text)).map((text) => ids.get(text)));
    if (this.closes()) ends.add(ids.get("</s>"));
    const all = (...names) => names.every((name) => ids.has(name));
    if (all("<|return|>", "<|call|>") || all("<|calls|>", "<|flush|>")) ends.delete(ids.get("<|end|>"));
    for (const role of END_ROLES) if (this.roles[role] !== undefined) ends.add(this.roles[role]);
    return ends;
  }

  readRoles(metadata) {
    const count = this.tokens.length;
    const roles = Object.fromEntries(
      Object.entries(DEFAULT_ROLES[this.model] ?? {}).filter(([, token]) => token < count));
    for (const role of ["bos", "unknown", ...END_ROLES]) {
      const key = `tokenizer.ggml.${role}_token_id`;
      const value = metadata[key];
      if (value === undefined) continue;
      if (UNSET.includes(value)) delete roles[role];
      else if (Number.isInteger(value) && value >= 0 && value < count) roles[role] = value;
      else throw new FewbitError(`${key} is ${value}, but the vocabulary has the tokens 0 to ${count - 1}`);
    }
    return roles;
  }
}

export function texts(metadata, key) {
  const values = metadata[key];
  if (!Array.isArray(values) || !values.every((text) => typeof text === "string")) {
    throw new FewbitError(values === undefined ? `the metadata has no ${key}` : `${key} is not a list of strings`);
  }
  return values;
}

export function numbers(metadata, key, count) {
  const values = metadata[key];
  if (values === undefined) return null;
  if (!Array.isArray(values) || values.length !== count || !values.every(Number.isFinite)) {
    throw new FewbitError(`${key} must be a list of ${count} numbers, one for each token`);
  }
  return [...values];
}

export function flag(metadata, key, standard) {
  const value = metadata[key] ?? standard;
  if (value !== true && value !== false && value !== 0 && value !== 1) throw new FewbitError(`${key} is no flag`);
  return Boolean(value);
}
