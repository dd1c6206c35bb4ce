// Runs what a test asks of the bundled JavaScript runtime: a JSON list of [name, argument] in, one of answers out.
import { createHash } from "node:crypto";
import { openAsBlob, readFileSync, writeFileSync } from "node:fs";

const [bundle, asked, answers] = process.argv.slice(2);
const fewbit = await import(bundle);

const ONES = {
  tokens({ metadata, rules, texts, options }) {
    const tokenizer = new fewbit.Tokenizer(metadata, rules);
    return texts.map((text) => tokenizer.encode(text, options));
  },
  texts({ metadata, rules, ids, options }) {
    const tokenizer = new fewbit.Tokenizer(metadata, rules);
    return ids.map((one) => tokenizer.decode(one, options));
  },
  ends({ metadata, rules }) {
    return [...new fewbit.Tokenizer(metadata, rules).vocabulary.ends].sort((a, b) => a - b);
  },
  async header({ path }) {
    const source = new fewbit.BlobSource(await openAsBlob(path));
    const { metadata, tensors } = await fewbit.readGguf(source);
    return { metadata, tensors: [...tensors.values()], described: await fewbit.describe({ metadata, tensors }, source) };
  },
  /** What is said of damaged copies of a file: its bytes with some of them changed, or cut. */
  async damaged({ path, changes }) {
    const whole = readFileSync(path);
    const found = [];
    for (const { cut, bytes } of changes) {
      const copy = Uint8Array.from(whole.subarray(0, cut));
      for (const [at, value] of bytes) if (at < copy.length) copy[at] = value;
      try {
        const source = new fewbit.BlobSource(new Blob([copy]));
        await fewbit.describe(await fewbit.readGguf(source), source);
        found.push("");
      } catch (error) {
        found.push(error.name === "FewbitError" ? error.message : `UNEXPECTED ${error.stack}`);
      }
    }
    return found;
  },
  samples({ cases, fields, vocab }) {
    return cases.map(({ params, uniform, prompt, output }) => {
      const seen = new fewbit.TokenCounts(prompt);
      for (const token of output) seen.add(token);
      return [...fewbit.packSample(fields, vocab, { params: fewbit.samplingParams(params), uniform, seen })];
    });
  },
  states({ slots, asked }) {
    const states = new fewbit.StateSlots(slots);
    let length = 0;
    return asked.map(([what, number, keeps]) => {
      if (what === "cut") return (length = states.cut(number));
      length += number;
      return states.step(length, keeps);
    });
  },
  chosen(results) {
    return results.map((one) => fewbit.sampledToken(one));
  },
  prompts({ source, bos, eos, control, conversations, names }) {
    const template = new fewbit.ChatTemplate(source, bos, eos, control);
    return conversations.map((messages) => template.render(messages, names));
  },
  /** A hash of the bytes of each buffer of a plan. */
  async buffers({ plan, path }) {
    const source = new fewbit.BlobSource(await openAsBlob(path));
    const { tensors } = await fewbit.readGguf(source);
    const found = [];
    for (const one of JSON.parse(readFileSync(plan)).buffers) {
      if (!one.parts.length) continue;
      const bytes = new Uint8Array(one.bytes);
      await fewbit.fill(one, source, tensors, (at, part) => bytes.set(part, at));
      found.push([one.bytes, createHash("sha256").update(bytes).digest("hex")]);
    }
    return found;
  },
};

const out = [];
for (const [name, given] of JSON.parse(readFileSync(asked))) {
  try {
    out.push({ found: await ONES[name](given) });
  } catch (error) {
    out.push({ error: error.name === "FewbitError" ? error.message : `UNEXPECTED ${error.stack}` });
  }
}
writeFileSync(answers, JSON.stringify(out));
