// Sampling, in the stages of `fewbit.ops.sampling`: top_k, softmax with the temperature, top_p, min_p, and a walk from
// the likeliest token on. Ties go to the lower id.

import { FewbitError } from "./errors.js";

export const DEFAULTS = { temperature: 0.8, topK: 40, topP: 0.95, minP: 0.05 };
const LIMITS = { temperature: [0, 1e6], topK: [0, 2 ** 31 - 1], topP: [0, 1], minP: [0, 1] };

/** Settings with the defaults for what is not given, checked. */
export function samplingParams(given = {}) {
  const params = { ...DEFAULTS };
  for (const [name, [least, most]] of Object.entries(LIMITS)) {
    if (given[name] !== undefined && given[name] !== null) params[name] = Number(given[name]);
    if (!(params[name] >= least && params[name] <= most)) {
      throw new FewbitError(`${name} must be from ${least} to ${most}, got ${given[name]}`);
    }
  }
  return params;
}

/** The next token, for a number `uniform` from 0 to 1. */
export function sample(logits, { temperature, topK, topP, minP }, uniform) {
  if (temperature === 0) return likeliest(logits);
  const { ids, weights } = candidates(logits, topK, temperature);
  let total = 0;
  for (const weight of weights) total += weight;
  let kept = keptBy(weights, topP * total);
  while (kept > 1 && weights[kept - 1] < minP * weights[0]) kept--;
  let sum = 0;
  for (let i = 0; i < kept; i++) sum += weights[i];
  let walked = 0;
  for (let i = 0; i < kept; i++) {
    walked += weights[i];
    if (walked > uniform * sum) return ids[i];
  }
  return ids[kept - 1];
}

export function likeliest(logits) {
  let best = -1;
  for (let i = 0; i < logits.length; i++) {
    if (Number.isNaN(logits[i])) throw new FewbitError("the model's logits are not numbers: the file may be damaged");
    if (best < 0 || logits[i] > logits[best]) best = i;
  }
  return best;
}

/** The ids of the largest logits, likeliest first, and how likely they are beside the first. */
function candidates(logits, topK, temperature) {
  const top = logits[likeliest(logits)];
  let ids = Array.from(logits.keys());
  if (topK && topK < ids.length) ids = ids.filter(largest(logits, topK));
  ids.sort((a, b) => logits[b] - logits[a] || a - b);
  if (topK) ids = ids.slice(0, topK);
  return { ids, weights: ids.map((id) => Math.exp((logits[id] - top) / temperature)) };
}

/** A filter that leaves the `count` largest and what equals the least of them, without sorting all. */
function largest(logits, count) {
  const sorted = Float32Array.from(logits).sort();
  const least = sorted[sorted.length - count];
  return (id) => logits[id] >= least;
}

/** How many of the likeliest together reach a weight; at least one. */
function keptBy(weights, wanted) {
  let sum = 0;
  for (let i = 0; i < weights.length; i++) {
    sum += weights[i];
    if (sum >= wanted) return i + 1;
  }
  return weights.length;
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
