// The header of a GGUF file. Every size is checked before something is read or allocated for it.

import { FewbitError, short } from "./errors.js";

const MAGIC = 0x46554747; // "GGUF"
const [BOOL, STRING, ARRAY] = [7, 8, 9];
const SIZES = { 0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, [BOOL]: 1, 10: 8, 11: 8, 12: 8 };
const FIRST_BYTES = 1 << 20;
const MAX_HEADER_BYTES = 1 << 27;
const MAX_KEY_BYTES = (1 << 16) - 1;
const MAX_KEYS = 1 << 16;
const MAX_TENSORS = 1 << 20;
const MAX_DEPTH = 4;
const MAX_DIMS = 4;
const utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** Metadata and tensors of a GGUF file: {metadata, tensors: Map of name to {name, type, shape, offset}}.
 *  `shape` is row-major, `offset` counts from the start of the file. */
export async function readGguf(source) {
  let bytes = await source.read(0, Math.min(FIRST_BYTES, source.size));
  for (;;) {
    try {
      return new Header(bytes, source).parse();
    } catch (error) {
      if (!(error instanceof CutShort)) throw error;
      const size = Math.min(source.size, MAX_HEADER_BYTES, bytes.length * 4);
      if (size === bytes.length) throw new FewbitError(error.message);
      bytes = await source.read(0, size);
    }
  }
}

/** More bytes are needed than were read. */
class CutShort extends FewbitError {}

class Header {
  constructor(bytes, source) {
    this.bytes = bytes;
    this.source = source;
    this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    this.at = 0;
  }

  parse() {
    this.checkStart();
    const tensorCount = this.count(32, MAX_TENSORS, "tensors");
    const metadata = this.metadata(this.count(13, MAX_KEYS, "metadata pairs"));
    if ((metadata["split.count"] ?? 1) > 1) {
      this.fail(`it is one of ${metadata["split.count"]} files of a model; join them first, with llama-gguf-split --merge`);
    }
    const alignment = metadata["general.alignment"] ?? 32;
    if (!Number.isInteger(alignment) || alignment < 1 || alignment & (alignment - 1)) {
      this.fail(`general.alignment is ${short(alignment)}, not a power of two`);
    }
    const records = this.tensors(tensorCount, alignment);
    const start = Math.ceil(this.at / alignment) * alignment;
    for (const tensor of records.values()) {
      tensor.offset += start;
      if (tensor.offset >= this.source.size) this.fail(`the file is truncated or damaged: tensor ${short(tensor.name)} begins past its end`);
    }
    return { metadata, tensors: records };
  }

  fail(what) {
    throw new FewbitError(`${this.source.name}: ${what} (byte ${this.at})`);
  }

  need(size, what) {
    if (size <= this.bytes.length - this.at) return;
    if (this.at + size > Math.min(this.source.size, MAX_HEADER_BYTES)) {
      this.fail(`the file is truncated or damaged: ${what} of ${size} bytes reaches past its end`);
    }
    throw new CutShort(`${this.source.name}: the header is too long`);
  }

  take(size, what) {
    this.need(size, what);
    this.at += size;
    return this.bytes.subarray(this.at - size, this.at);
  }

  u32(what) {
    this.need(4, what);
    this.at += 4;
    return this.view.getUint32(this.at - 4, true);
  }

  u64(what) {
    this.need(8, what);
    const found = Number(this.view.getBigUint64(this.at, true));
    if (!Number.isSafeInteger(found)) this.fail(`${what} is ${found}, which no file has`);
    this.at += 8;
    return found;
  }

  /** A number of things that take at least `each` bytes. */
  count(each, limit, what) {
    const found = this.u64(`the number of ${what}`);
    if (found > limit || found * each > this.source.size - this.at) {
      this.fail(`the file is truncated or damaged: ${found} ${what} do not fit`);
    }
    return found;
  }

  text(what, limit = MAX_HEADER_BYTES) {
    const length = this.u64(`the length of ${what}`);
    if (length > limit) this.fail(`${what} has ${length} bytes, at most ${limit} are allowed`);
    try {
      return utf8.decode(this.take(length, what));
    } catch (error) {
      if (error instanceof FewbitError) throw error;
      return this.fail(`${what} is not UTF-8 text`);
    }
  }

  checkStart() {
    if (this.bytes.length < 24 || this.u32("the start") !== MAGIC) {
      const start = new TextDecoder().decode(this.bytes.subarray(0, 4));
      throw new FewbitError(`${this.source.name} is not a GGUF file (it starts with ${short(start)})`);
    }
    const version = this.u32("the version");
    if (version !== 2 && version !== 3) this.fail(`unsupported GGUF version ${version}; versions 2 and 3 are read`);
  }

  metadata(count) {
    const out = Object.create(null);
    for (let i = 0; i < count; i++) {
      const key = this.text(`the key of metadata pair ${i}`, MAX_KEY_BYTES);
      if (key in out) this.fail(`metadata key ${short(key)} occurs twice`);
      const what = `metadata key ${short(key)}`;
      out[key] = this.value(this.u32(`the type of ${what}`), what, 0);
    }
    return out;
  }

  value(kind, what, depth) {
    if (kind === STRING) return this.text(what);
    if (kind !== ARRAY) return this.numbers(kind, 1, what)[0];
    if (depth === MAX_DEPTH) this.fail(`${what} has arrays in arrays more than ${MAX_DEPTH} deep`);
    const each = this.u32(`the element type of ${what}`);
    const count = this.count(SIZES[each] ?? (each === ARRAY ? 12 : 8), MAX_HEADER_BYTES, `entries of ${what}`);
    if (each !== STRING && each !== ARRAY) return this.numbers(each, count, what);
    const out = [];
    for (let i = 0; i < count; i++) out.push(this.value(each, what, depth + 1));
    return out;
  }

  numbers(kind, count, what) {
    const size = SIZES[kind];
    if (!size) this.fail(`${what} has the unknown type ${kind}`);
    this.need(size * count, what);
    const out = new Array(count);
    for (let i = 0; i < count; i++, this.at += size) out[i] = this.number(kind, what);
    return out;
  }

  number(kind, what) {
    const { view, at } = this;
    switch (kind) {
      case 0: return view.getUint8(at);
      case 1: return view.getInt8(at);
      case 2: return view.getUint16(at, true);
      case 3: return view.getInt16(at, true);
      case 4: return view.getUint32(at, true);
      case 5: return view.getInt32(at, true);
      case 6: return view.getFloat32(at, true);
      case BOOL:
        if (view.getUint8(at) > 1) this.fail(`${what} holds a bool that is ${view.getUint8(at)}, not 0 or 1`);
        return view.getUint8(at) === 1;
      case 10: return Number(view.getBigUint64(at, true));
      case 11: return Number(view.getBigInt64(at, true));
      default: return view.getFloat64(at, true);
    }
  }

  tensors(count, alignment) {
    const out = new Map();
    for (let i = 0; i < count; i++) {
      const name = this.text(`the name of tensor ${i}`, MAX_KEY_BYTES);
      const what = `tensor ${short(name)}`;
      if (out.has(name)) this.fail(`${what} occurs twice`);
      const dims = this.u32(`the number of dimensions of ${what}`);
      if (dims < 1 || dims > MAX_DIMS) this.fail(`${what} has ${dims} dimensions, from 1 to ${MAX_DIMS} are allowed`);
      const shape = [];
      for (let n = 0; n < dims; n++) shape.unshift(this.u64(`a dimension of ${what}`));
      const type = this.u32(`the type of ${what}`);
      const offset = this.u64(`the offset of ${what}`);
      if (offset % alignment) this.fail(`${what} begins at ${offset}, not at a multiple of ${alignment}`);
      out.set(name, { name, type, shape, offset });
    }
    return out;
  }
}
