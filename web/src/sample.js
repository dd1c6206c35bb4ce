// What the sampler on the GPU is told: settings, a random number, and the tokens seen. It samples in the stages of
// `fewbit.ops.sampling`: penalties, top_k, softmax with the temperature, top_p, min_p, and a walk from the likeliest on.

import { FewbitError } from "./errors.js";

export const DEFAULTS = {
  temperature: 0.8, topK: 40, topP: 0.95, minP: 0.05, repetitionPenalty: 1, presencePenalty: 0, frequencyPenalty: 0,
};
const LIMITS = {
  temperature: [0, 1e6], topK: [0, 2 ** 31 - 1], topP: [0, 1], minP: [0, 1], repetitionPenalty: [1e-6, 1e6],
  presencePenalty: [-1e6, 1e6], frequencyPenalty: [-1e6, 1e6],
};
const COLDEST = 1e-30; // temperature; what is colder changes nothing
const REASONS = [
  null, "the model's logits are not numbers: the file may be damaged", "the model's logits allow no token",
  "the penalties leave no token that can be sampled",
];

/** Settings with the defaults for what is not given, checked. */
export function samplingParams(given = {}) {
  const params = { ...DEFAULTS };
  for (const [name, [least, most]] of Object.entries(LIMITS)) {
    if (given[name] !== undefined && given[name] !== null) params[name] = Number(given[name]);
    if (!(params[name] >= least && params[name] <= most)) {
      throw new FewbitError(`${name} must be from ${least} to ${most}, got ${given[name]}`);
    }
  }
  params.topK = Math.floor(params.topK);
  return params;
}

export const hasPenalties = ({ repetitionPenalty, presencePenalty, frequencyPenalty }) =>
  repetitionPenalty !== 1 || presencePenalty !== 0 || frequencyPenalty !== 0;

/** The tokens of a prompt and of the output, with how often each is in the output: what penalties follow from. */
export class TokenCounts {
  constructor(prompt) {
    this.counts = new Map(prompt.map((token) => [token, 0]));
  }

  add(token) {
    this.counts.set(token, (this.counts.get(token) ?? 0) + 1);
  }
}

/** One sample of the first row of logits as the words that the sampler reads: the plan's fields, then what they point at.
 *  `uniform` is a number from 0 to 1, `seen` a TokenCounts or null. */
export function packSample(fields, vocab, { params, uniform, seen = null }) {
  const { temperature, topK } = params;
  const counts = seen && hasPenalties(params) ? seen.counts : new Map();
  const values = {
    row: 0, top_k: topK < vocab ? topK : 0, seen_at: counts.size ? fields.length : 0, seen_count: counts.size,
    bias_at: 0, bias_count: 0, mask_at: 0, uniform, top_p: params.topP, min_p: params.minP,
    by: temperature === 0 ? 0 : 1 / Math.max(temperature, COLDEST), repetition: params.repetitionPenalty,
    presence: params.presencePenalty, frequency: params.frequencyPenalty, greedy: temperature === 0 ? 1 : 0,
  };
  const words = new Uint32Array(fields.length + 2 * counts.size);
  const view = new DataView(words.buffer);
  fields.forEach(([name, type], i) => {
    if (!(name in values)) throw new FewbitError(`the plan's sampler asks for ${name}: it was made by another version`);
    if (type === "f32") view.setFloat32(4 * i, values[name], true);
    else view.setInt32(4 * i, values[name], true);
  });
  words.set([...counts.keys()], fields.length);
  words.set([...counts.values()], fields.length + counts.size);
  return words;
}

/** The token that the sampler has chosen, from the integers of its result. */
export function sampledToken([token, status]) {
  if (status) throw new FewbitError(REASONS[status] ?? "no token can be sampled");
  return token;
}

/** Random numbers from 0 to 1, the same ones for the same seed (mulberry32). */
export function randomNumbers(seed) {
  let state = (seed ?? crypto.getRandomValues(new Uint32Array(1))[0]) >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}
