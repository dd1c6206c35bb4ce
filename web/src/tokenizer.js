// Text to token ids and back, from the metadata of a GGUF file and the rules in a plan.

import { FewbitError } from "./errors.js";
import { merge } from "./merge.js";
import { Splitter } from "./splitter.js";
import { BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED, Vocabulary, flag, numbers, texts } from "./vocabulary.js";

const SPACE = "\u2581"; // a space, where tokens are plain text
const utf8 = new TextEncoder();
const byteToken = (byte) => `<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`;

/** The character that stands for each byte, where tokens are byte-level. */
const BYTE_CHARS = (() => {
  const seen = (byte) => (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte !== 0xad);
  let hidden = 0;
  return Array.from({ length: 256 }, (_, byte) => String.fromCharCode(seen(byte) ? byte : 256 + hidden++));
})();
const CHAR_BYTES = new Map(BYTE_CHARS.map((char, byte) => [char, byte]));

export class Tokenizer {
  constructor(metadata, rules) {
    this.vocabulary = new Vocabulary(metadata, rules);
    const { roles } = this.vocabulary;
    this.encoder = rules.kind === "byte_pairs"
      ? new BytePairs(this.vocabulary, metadata, rules) : new SentencePiece(this.vocabulary, metadata);
    const has = (key, standard, token) => (flag(metadata, key, standard) && token !== undefined ? [token] : []);
    this.before = has("tokenizer.ggml.add_bos_token", rules.add_bos, roles.bos);
    this.after = has("tokenizer.ggml.add_eos_token", false, roles.eos);
    this.special = new Splitter(this.vocabulary.ofKind(CONTROL, UNKNOWN, USER_DEFINED));
    this.userDefined = new Splitter(this.vocabulary.ofKind(USER_DEFINED));
  }

  /** The token ids of a text. With `special`, text that spells a control token becomes that token: not for text from
   *  others. A control token with the character `mark` inside stays text; the mark is no part of the text. */
  encode(text, { addSpecial = false, special = false, mark = "" } = {}) {
    if (!text.isWellFormed?.() && /[\ud800-\udfff]/u.test(text)) throw new FewbitError("the text holds half a character");
    const ids = [];
    for (const part of (special ? this.special : this.userDefined).split(text)) {
      if (typeof part === "number") ids.push(part);
      else if (mark) for (const id of this.encode(part.replaceAll(mark, ""))) ids.push(id);
      else for (const id of this.encoder.encode(part)) ids.push(id);
    }
    return addSpecial ? [...this.before, ...ids, ...this.after] : ids;
  }

  /** Whether a token ends the output. */
  isEnd(token) {
    return this.vocabulary.ends.has(token);
  }

  tokenText(token) {
    return token === undefined ? "" : this.vocabulary.tokens[token];
  }

  /** The bytes that a token adds to a text, and whether the next one begins a text: [bytes, starts]. */
  decodeNext(token, starts, skipSpecial) {
    const { kinds, tokens } = this.vocabulary;
    if (!(token < tokens.length)) return [new Uint8Array(), starts];
    const kind = kinds[token];
    if (kind === CONTROL || kind === UNKNOWN || kind === USER_DEFINED) {
      return [skipSpecial && kind !== USER_DEFINED ? new Uint8Array() : utf8.encode(tokens[token]), true];
    }
    if (skipSpecial && kind === UNUSED) return [new Uint8Array(), starts];
    const data = kind === BYTE && /^<0x[0-9A-F]{2}>$/.test(tokens[token])
      ? Uint8Array.of(parseInt(tokens[token].slice(3, 5), 16)) : this.encoder.decode(tokens[token]);
    return [starts && this.encoder.addsSpace && data[0] === 0x20 ? data.subarray(1) : data, false];
  }

  /** The text of token ids. */
  decode(ids, { skipSpecial = false } = {}) {
    const stream = new TextStream(this, { skipSpecial });
    return ids.map((id) => stream.feed(id)).join("") + stream.finish();
  }
}

/** Turns token ids into text, as soon as characters are complete. */
export class TextStream {
  constructor(tokenizer, { skipSpecial = true, continues = false } = {}) {
    this.tokenizer = tokenizer;
    this.skipSpecial = skipSpecial;
    this.starts = !continues;
    this.decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  }

  feed(token) {
    const [data, starts] = this.tokenizer.decodeNext(token, this.starts, this.skipSpecial);
    this.starts = starts;
    return this.decoder.decode(data, { stream: true });
  }

  finish() {
    return this.decoder.decode();
  }
}

/** Vocabularies with `tokenizer.ggml.merges`: text is cut into words, whose pairs are merged in the file's order. */
class BytePairs {
  addsSpace = false;

  constructor(vocabulary, metadata, rules) {
    this.ids = vocabulary.ids;
    this.ranks = new Map(texts(metadata, "tokenizer.ggml.merges").map((pair, rank) => [pair, rank]));
    this.splits = rules.splits.map((split) => new RegExp(split, "gu"));
    this.wholeWords = rules.whole_words;
    this.words = new Map();
  }

  encode(text) {
    const out = [];
    for (const word of cut(text, this.splits)) for (const id of this.word(word)) out.push(id);
    return out;
  }

  word(text) {
    const known = this.words.get(text);
    if (known) return known;
    const chars = Array.from(utf8.encode(text), (byte) => BYTE_CHARS[byte]);
    const found = this.wholeWords && this.ids.has(chars.join("")) ? [this.ids.get(chars.join(""))] : this.merged(chars);
    if (this.words.size > 1 << 16) this.words.clear();
    if (text.length < 64) this.words.set(text, found);
    return found;
  }

  merged(chars) {
    const symbols = chars.map((char) => (this.ids.has(char) ? char : ""));
    const rank = (left, right) => {
      const order = left && right ? this.ranks.get(`${left} ${right}`) : undefined;
      return order === undefined ? null : { order: [order], to: left + right };
    };
    return merge(symbols, rank).filter(Boolean).map((symbol) => this.ids.get(symbol));
  }

  decode(text) {
    const bytes = Array.from(text, (char) => CHAR_BYTES.get(char));
    return bytes.includes(undefined) ? utf8.encode(text) : Uint8Array.from(bytes);
  }
}

/** What the expressions match, and what lies between, one expression after another. */
function cut(text, splits) {
  let parts = [text];
  for (const split of splits) {
    parts = parts.flatMap((part) => {
      const out = [];
      let at = 0;
      for (const found of part.matchAll(split)) {
        if (!found[0]) continue;
        if (at < found.index) out.push(part.slice(at, found.index));
        out.push(found[0]);
        at = found.index + found[0].length;
      }
      if (at < part.length) out.push(part.slice(at));
      return out;
    });
  }
  return parts;
}

/** Vocabularies of `tokenizer.ggml.model` "llama": two symbols that are a token together are merged, highest score
 *  first. A character without a token becomes its bytes. */
class SentencePiece {
  constructor(vocabulary, metadata) {
    this.vocabulary = vocabulary;
    this.ids = vocabulary.ids;
    this.addsSpace = flag(metadata, "tokenizer.ggml.add_space_prefix", true);
    this.scores = numbers(metadata, "tokenizer.ggml.scores", vocabulary.tokens.length);
    const merges = this.scores ? [] : texts(metadata, "tokenizer.ggml.merges");
    this.ranks = new Map(merges.map((pair, rank) => [pair, rank]));
  }

  encode(text) {
    if (!text && !this.addsSpace) return [];
    const shown = (this.addsSpace ? ` ${text}` : text).replaceAll(" ", SPACE);
    const symbols = Array.from(shown).flatMap((char) => this.symbols(char));
    return merge(symbols, this.scores ? this.byScore : this.byMerges).map((symbol) => this.ids.get(symbol));
  }

  symbols(char) {
    if (this.ids.has(char)) return [char];
    const bytes = Array.from(utf8.encode(char), byteToken);
    if (bytes.every((byte) => this.ids.has(byte))) return bytes;
    const { unknown } = this.vocabulary.roles;
    return unknown === undefined ? [] : [this.vocabulary.tokens[unknown]];
  }

  byScore = (left, right) => {
    const to = left + right;
    const id = this.ids.get(to);
    if (id === undefined || ![NORMAL, USER_DEFINED, UNUSED].includes(this.vocabulary.kinds[id])) return null;
    return { order: [-this.scores[id], id, left.length], to };
  };

  byMerges = (left, right) => {
    const order = this.ranks.get(`${left} ${right}`);
    return order === undefined ? null : { order: [order], to: left + right };
  };

  decode(text) {
    return utf8.encode(text.replaceAll(SPACE, " "));
  }
}
