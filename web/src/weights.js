// Buffers of a plan, filled with bytes of the model's file and of the plan itself.

import { FewbitError, short } from "./errors.js";

const CHUNK_BYTES = 16 << 20; // that are read at once

export const fromBase64 = (text) => Uint8Array.from(atob(text), (char) => char.charCodeAt(0));

/** The bytes of a part in the buffer: its rows lie `stride` bytes apart. */
const placedBytes = (part) => (part.base64 === undefined ? (part.bytes / part.row) * part.stride : 0);

export function weightBytes(plan) {
  return plan.buffers.reduce((sum, one) => sum + one.parts.reduce((own, part) => own + (part.bytes ?? 0), 0), 0);
}

/** Calls `write(offset, bytes)` for all of a buffer's bytes, in whole words. */
export async function fill(buffer, source, tensors, write) {
  const isAligned = buffer.parts.every((part) => part.at % 4 === 0 && (part.base64 !== undefined || part.row % 4 === 0));
  if (isAligned) {
    for (const part of buffer.parts) await chunks(part, source, tensors, (at, bytes) => write(at, wholeWords(bytes)));
    return;
  }
  const all = new Uint8Array(buffer.bytes);
  for (const part of buffer.parts) await chunks(part, source, tensors, (at, bytes) => all.set(bytes, at));
  write(0, all);
}

async function chunks(part, source, tensors, put) {
  if (part.base64 !== undefined) {
    put(part.at, fromBase64(part.base64));
    return;
  }
  const tensor = tensors.get(part.tensor);
  if (!tensor) throw new FewbitError(`${source.name} has no tensor ${short(part.tensor)}, which its plan needs`);
  const rows = part.bytes / part.row;
  const most = Math.max(1, Math.floor(CHUNK_BYTES / part.row));
  for (let first = 0; first < rows; first += most) {
    const held = Math.min(most, rows - first);
    const raw = await source.read(tensor.offset + part.offset + first * part.row, held * part.row);
    put(part.at + first * part.stride, spread(raw, part.row, part.stride));
  }
}

/** Rows of bytes with zeros after each, up to `stride`. */
export function spread(raw, row, stride) {
  if (row === stride) return raw;
  const out = new Uint8Array((raw.length / row) * stride);
  for (let i = 0; i * row < raw.length; i++) out.set(raw.subarray(i * row, (i + 1) * row), i * stride);
  return out;
}

function wholeWords(bytes) {
  if (bytes.length % 4 === 0) return bytes;
  const out = new Uint8Array(Math.ceil(bytes.length / 4) * 4);
  out.set(bytes);
  return out;
}

/** Refuses a plan whose parts reach past their buffers: it was made for something else. */
export function checkParts(plan) {
  for (const buffer of plan.buffers) {
    for (const part of buffer.parts) {
      if (part.at + placedBytes(part) > buffer.bytes) throw new FewbitError("the plan does not fit its buffers");
    }
  }
}
