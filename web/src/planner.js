// Asks for the plan of a file: a server that has fewbit makes it from the header, or it lies beside the page.

import { FewbitError, short } from "./errors.js";

const VECTOR_TYPES = { 0: 4, 1: 2, 28: 8, 30: 2 }; // bytes of f32, f16, f64, bf16
const MAX_VECTOR_BYTES = 8 << 20;
const MAX_TAPS = 64; // columns of a matrix whose values plans hold: those of convolutions

/** What a plan is made from: hyperparameters, shapes, and the bytes of vectors. */
export async function describe(gguf, source) {
  const architecture = gguf.metadata["general.architecture"];
  if (typeof architecture !== "string") throw new FewbitError(`${source.name} names no architecture`);
  const tensors = [...gguf.tensors.values()];
  return {
    metadata: Object.fromEntries(Object.entries(gguf.metadata).filter(([key, value]) => isNeeded(key, value, architecture))),
    tensors: tensors.map(({ name, type, shape }) => [name, type, shape]),
    vectors: await vectors(tensors.filter(isSmall), source),
  };
}

const isSmall = ({ name, type, shape }) => shape.length === 1
  || (shape.length === 2 && type in VECTOR_TYPES && (shape[1] <= MAX_TAPS || name.endsWith(".bias")));

function isNeeded(key, value, architecture) {
  if (key.startsWith(`${architecture}.`)) return true;
  if (key === "general.architecture" || key === "general.name") return true;
  return key.startsWith("tokenizer.ggml.") && !Array.isArray(value);
}

async function vectors(tensors, source) {
  const out = {};
  let total = 0;
  for (const { name, type, shape, offset } of tensors) {
    const each = VECTOR_TYPES[type];
    if (!each) throw new FewbitError(`tensor ${short(name)} is a vector of the type ${type}, which no model has`);
    const bytes = each * shape.reduce((a, b) => a * b);
    total += bytes;
    if (total > MAX_VECTOR_BYTES) throw new FewbitError(`the vectors of ${source.name}, of which plans are made, have more than 8 MiB`);
    out[name] = toBase64(await source.read(offset, bytes));
  }
  return out;
}

function toBase64(bytes) {
  let text = "";
  for (let at = 0; at < bytes.length; at += 0x8000) text += String.fromCharCode(...bytes.subarray(at, at + 0x8000));
  return btoa(text);
}

/** A function that asks a server for plans: POST of a description, the GPU's limits and the context. */
export function serverPlanner(url, headers = {}) {
  return async (gguf, source, limits, ctx) => {
    const body = JSON.stringify({ ...(await describe(gguf, source)), limits, ctx });
    let answer;
    try {
      answer = await fetch(url, { method: "POST", headers: { "Content-Type": "application/json", ...headers }, body });
    } catch (error) {
      throw new FewbitError(`the server that plans cannot be reached: ${error.message}`);
    }
    const found = await answer.json().catch(() => ({}));
    if (!answer.ok) throw new FewbitError(found.error?.message ?? `the server made no plan: it answered ${answer.status}`);
    return found;
  };
}

/** A function that gives a plan that was made before, by `fewbit.browser.make_plan`. */
export const fixedPlanner = (plan) => async () => plan;
