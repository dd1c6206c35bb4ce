// A model in the browser: load it from a file or an address, and let it write.

import { Gpu } from "./device.js";
import { FewbitError } from "./errors.js";
import { readGguf } from "./gguf.js";
import { Runner } from "./runner.js";
import { TokenCounts, hasPenalties, randomNumbers, samplingParams } from "./sample.js";
import { BlobSource, UrlSource } from "./source.js";
import { StateSlots } from "./states.js";
import { ChatTemplate } from "./template.js";
import { TextStream, Tokenizer } from "./tokenizer.js";
import { CONTROL, UNKNOWN } from "./vocabulary.js";

export class Model {
  /** Loads a model.
   *  `from`: a File, or the address of a file. `planner`: where its plan comes from (`serverPlanner`, `fixedPlanner`).
   *  Options: `ctx`, `headers` of requests for the file, `progress(what, done, total)`, an AbortSignal `signal`, `gpu`. */
  static async load(from, planner, { ctx = null, headers = {}, progress = () => {}, signal, gpu } = {}) {
    const own = gpu ?? (await Gpu.open());
    try {
      const source = typeof from === "string" ? await UrlSource.open(from, headers) : new BlobSource(from);
      progress("header", 0, 1);
      const gguf = await readGguf(source);
      signal?.throwIfAborted();
      progress("plan", 0, 1);
      const plan = await planner(gguf, source, own.limits, ctx);
      const tokenizer = new Tokenizer(gguf.metadata, plan.tokenizer);
      const runner = await Runner.load(own, plan, source, gguf.tensors, { progress, signal });
      return new Model(runner, tokenizer, gguf.metadata, own);
    } catch (error) {
      if (!gpu) own.close();
      throw error;
    }
  }

  constructor(runner, tokenizer, metadata, gpu) {
    this.runner = runner;
    this.tokenizer = tokenizer;
    this.gpu = gpu;
    this.ctx = runner.plan.model.ctx;
    this.name = String(metadata["general.name"] ?? runner.plan.model.architecture);
    this.template = findTemplate(metadata, tokenizer, runner.plan.tokenizer.chatml);
    this.kept = []; // tokens whose K and V are on the GPU
    this.states = runner.plan.cache.slots ? new StateSlots(runner.plan.cache.slots) : null;
    this.isBusy = false;
  }

  /** Writes the answer to messages, [{role, content}], as pieces of text. Options: those of `generate`, and `names`
   *  for the template, such as {enable_thinking: false}. */
  chat(messages, { names, ...options } = {}) {
    if (!this.template) throw new FewbitError("the model has no chat template: it continues text, see generate");
    const { text, mark } = this.template.render(messages, names);
    return this.write(this.tokenizer.encode(text, { special: true, mark }), options);
  }

  /** Continues a text, as pieces of text. Options: `maxTokens`, `temperature`, `topK`, `topP`, `minP`,
   *  `repetitionPenalty`, `presencePenalty`, `frequencyPenalty`, `seed`, `signal`, and `onToken(token)`. */
  generate(prompt, options = {}) {
    return this.write(this.tokenizer.encode(prompt, { addSpecial: true }), options, true);
  }

  async *write(prompt, { maxTokens = Infinity, seed, signal, onToken = () => {}, ...rest } = {}, continues = false) {
    if (!prompt.length) throw new FewbitError("the prompt is empty");
    if (prompt.length >= this.ctx) {
      throw new FewbitError(`the conversation has ${prompt.length} tokens, and the context ${this.ctx}: begin a new one`);
    }
    if (this.isBusy) throw new FewbitError("the model is writing another answer: stop it, or wait for its end");
    this.isBusy = true;
    try {
      const params = samplingParams(rest);
      const stream = new TextStream(this.tokenizer, { continues });
      const random = randomNumbers(seed);
      const seen = hasPenalties(params) ? new TokenCounts(prompt) : null;
      const sampled = () => ({ params, uniform: random(), seen });
      let token = await this.read(prompt, { signal, sample: sampled() });
      for (let count = 0; count < maxTokens && !signal?.aborted; count++) {
        onToken(token);
        if (this.tokenizer.isEnd(token)) break;
        const text = stream.feed(token);
        if (text) yield text;
        if (this.kept.length + 1 >= this.ctx || count + 1 >= maxTokens || signal?.aborted) break;
        seen?.add(token);
        token = await this.step([token], { sample: sampled() });
      }
      const end = stream.finish();
      if (end) yield end;
    } finally {
      this.isBusy = false;
    }
  }

  /** What follows a prompt: a token if there is something to `sample` by, else logits. What the prompt shares with the
   *  tokens before is not run again. */
  async read(prompt, { signal, sample = null } = {}) {
    let shared = 0;
    while (shared < prompt.length - 1 && this.kept[shared] === prompt[shared]) shared++;
    if (this.states) shared = this.states.cut(shared);
    this.kept.length = shared;
    this.reused = shared;
    const most = this.runner.plan.model.step_tokens;
    for (let at = shared; ; at += most) {
      signal?.throwIfAborted();
      const isLast = at + most >= prompt.length;
      const found = await this.step(prompt.slice(at, at + most), isLast ? { sample, logits: !sample } : {});
      if (isLast) return found;
    }
  }

  async step(tokens, wanted) {
    const { vocab } = this.runner.plan.model;
    if (tokens.some((token) => token >= vocab)) throw new FewbitError(`the model has the tokens 0 to ${vocab - 1} only`);
    const length = this.kept.length + tokens.length;
    try {
      const slots = this.states?.step(length, tokens.length > 1);
      const found = await this.runner.step(tokens, this.kept.length, { ...wanted, slots });
      this.kept.push(...tokens);
      return found;
    } catch (error) {
      this.kept.length = this.states?.cut(0) ?? this.kept.length; // states may have been written
      throw error;
    }
  }

  /** Gives the GPU's memory back. */
  free() {
    this.runner.free();
  }
}

function findTemplate(metadata, tokenizer, chatml) {
  const { ids, roles } = tokenizer.vocabulary;
  const hasChatml = ids.has("<|im_start|>") && ids.has("<|im_end|>");
  const source = metadata["tokenizer.chat_template"] ?? (hasChatml ? chatml : null);
  if (typeof source !== "string") return null;
  const control = tokenizer.vocabulary.ofKind(CONTROL, UNKNOWN).keys();
  return new ChatTemplate(source, tokenizer.tokenText(roles.bos), tokenizer.tokenText(roles.eos), control);
}
