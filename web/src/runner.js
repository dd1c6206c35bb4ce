// Runs a plan: buffers, compiled kernels, and one submission for each step. It knows no model.

import { FewbitError } from "./errors.js";
import { packSample, sampledToken } from "./sample.js";
import { checkParts, fill, fromBase64, weightBytes } from "./weights.js";

const ALIGN = 256; // bytes: where uniforms may begin
const RESULT_BYTES = 8; // of a sample: a token and a status

export class Runner {
  /** Sends the weights and compiles the kernels. `progress(what, done, total)` hears of it. */
  static async load(gpu, plan, source, tensors, { progress = () => {}, signal } = {}) {
    checkParts(plan);
    const runner = new Runner(gpu, plan);
    try {
      await gpu.reported("no memory for the model", () => runner.allocate());
      await runner.send(source, tensors, progress, signal);
      await runner.compile(progress, signal);
      await gpu.reported("the plan cannot be prepared", () => runner.prepare());
    } catch (error) {
      runner.free();
      throw error;
    }
    return runner;
  }

  constructor(gpu, plan) {
    this.gpu = gpu;
    this.plan = plan;
    this.buffers = [];
    this.pipelines = new Map();
    this.programs = {};
    this.submissions = 0;
    this.reads = 0;
  }

  allocate() {
    const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST;
    const { device } = this.gpu;
    for (const one of this.plan.buffers) {
      this.buffers.push(device.createBuffer({ size: Math.ceil(one.bytes / 4) * 4, usage, label: one.name }));
    }
    this.rowBytes = 4 * this.plan.programs.token.result.width;
    this.staging = device.createBuffer({ size: Math.max(this.rowBytes, RESULT_BYTES), usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST });
  }

  async send(source, tensors, progress, signal) {
    const total = weightBytes(this.plan);
    let sent = 0;
    for (const [number, one] of this.plan.buffers.entries()) {
      if (!one.parts.length) continue;
      await this.gpu.reported("the weights cannot be sent to the GPU", () => fill(one, source, tensors, (at, bytes) => {
        signal?.throwIfAborted();
        this.gpu.device.queue.writeBuffer(this.buffers[number], at, bytes);
      }));
      sent += one.parts.reduce((sum, part) => sum + (part.bytes ?? 0), 0);
      progress("weights", sent, total);
    }
  }

  async compile(progress, signal) {
    const kernels = Object.entries(this.plan.kernels);
    let compiled = 0;
    progress("kernels", 0, kernels.length);
    await Promise.all(kernels.map(async ([id, kernel]) => {
      this.pipelines.set(id, await this.compiled(kernel));
      signal?.throwIfAborted();
      progress("kernels", ++compiled, kernels.length);
    }));
  }

  async compiled(kernel) {
    const { device } = this.gpu;
    const kinds = ["uniform", ...kernel.bindings];
    const entries = kinds.map((type, binding) => ({ binding, visibility: GPUShaderStage.COMPUTE, buffer: { type } }));
    const layout = device.createBindGroupLayout({ entries });
    const module = device.createShaderModule({ code: kernel.wgsl, label: kernel.name });
    try {
      const pipeline = await device.createComputePipelineAsync({
        layout: device.createPipelineLayout({ bindGroupLayouts: [layout] }),
        compute: { module, entryPoint: "main" },
      });
      return { pipeline, layout };
    } catch (error) {
      throw new FewbitError(this.gpu.lost || `the kernel ${kernel.name} does not compile here: ${error.message}`);
    }
  }

  /** Bindings of all dispatches; the parameters of a program are one uniform buffer. */
  prepare() {
    const { device } = this.gpu;
    for (const [name, { dispatches }] of Object.entries(this.plan.programs)) {
      const all = [...dispatches, this.plan.sampler.dispatch];
      const size = all.length * ALIGN;
      const uniforms = device.createBuffer({ size, usage: GPUBufferUsage.UNIFORM, mappedAtCreation: true, label: name });
      const bytes = new Uint8Array(uniforms.getMappedRange());
      this.programs[name] = all.map((one, i) => {
        const parameters = fromBase64(one.parameters);
        bytes.set(parameters, i * ALIGN);
        return this.bound(one, uniforms, i * ALIGN, Math.max(16, Math.ceil(parameters.length / 16) * 16));
      });
      uniforms.unmap();
      this.buffers.push(uniforms);
    }
  }

  bound(one, uniforms, offset, size) {
    const { pipeline, layout } = this.pipelines.get(one.kernel);
    const entries = [{ binding: 0, resource: { buffer: uniforms, offset, size } }];
    one.buffers.forEach((number, i) => entries.push({ binding: i + 1, resource: { buffer: this.buffers[number] } }));
    return { pipeline, group: this.gpu.device.createBindGroup({ layout, entries }), grid: one.grid };
  }

  /** The next tokens of the sequence, the first of them at a position, as one submission. Of what is wanted after the
   *  last one it gives the token, for a `sample` of {params, uniform, seen}, or the logits; else null. */
  step(tokens, position, { sample = null, logits = false, slots = null } = {}) {
    return this.gpu.submitted("a step failed", () => {
      const { device } = this.gpu;
      const { sampler, programs, step, model } = this.plan;
      const counts = { tokens: tokens.length, logits: sample || logits ? 1 : 0, sequences: 1, samples: sample ? 1 : 0 };
      device.queue.writeBuffer(this.buffers[step.buffer], 0, this.numbers(tokens, position, counts, slots));
      if (sample) {
        device.queue.writeBuffer(this.buffers[sampler.samples], 0, packSample(sampler.fields, model.vocab, sample));
      }
      const encoder = device.createCommandEncoder();
      const program = tokens.length === 1 ? "token" : "prompt";
      this.encode(encoder, this.programs[program], counts);
      const { result } = programs[program];
      const [from, offset, bytes] = sample ? [sampler.results, 0, RESULT_BYTES] : [result.buffer, 4 * result.offset, this.rowBytes];
      if (counts.logits) encoder.copyBufferToBuffer(this.buffers[from], offset, this.staging, 0, bytes);
      device.queue.submit([encoder.finish()]);
      this.submissions++;
      if (!counts.logits) return null;
      return sample ? this.read(bytes).then((raw) => sampledToken(new Int32Array(raw))) : this.read(bytes).then((raw) => new Float32Array(raw));
    });
  }

  encode(encoder, dispatches, counts) {
    const pass = encoder.beginComputePass();
    for (const { pipeline, group, grid } of dispatches) {
      const sizes = grid.map(([name, per, times]) => (name === "one" ? times : Math.ceil(counts[name] / per) * times));
      if (sizes.includes(0)) continue;
      pass.setPipeline(pipeline);
      pass.setBindGroup(0, group);
      pass.dispatchWorkgroups(...sizes);
    }
    pass.end();
  }

  /** Waits for the copies of a step: the one round trip. */
  async read(bytes) {
    this.reads++;
    await this.staging.mapAsync(GPUMapMode.READ, 0, bytes);
    const found = this.staging.getMappedRange(0, bytes).slice(0);
    this.staging.unmap();
    return found;
  }

  /** The integers of a step: counts, where each array begins, the arrays. One sequence has all pages, in order; `slots`
   *  says where the states of its recurrent layers are read and written. */
  numbers(tokens, position, counts, slots) {
    const { step, cache } = this.plan;
    const length = position + tokens.length;
    const positions = tokens.map((_, i) => position + i);
    const pages = Math.ceil(length / cache.page_tokens);
    const arrays = {
      tokens, positions, sequences: tokens.map(() => 0), q_starts: [0, tokens.length], lengths: [length],
      logits_indices: counts.logits ? [tokens.length - 1] : [], reads: slots ? [slots.read] : [],
      writes: slots ? [slots.write] : [],
    };
    for (let g = 0; g < cache.groups; g++) {
      arrays[`slots${g}`] = positions;
      arrays[`starts${g}`] = [0, pages];
      arrays[`tables${g}`] = Array.from({ length: pages }, (_, page) => page);
    }
    const places = [];
    let at = step.counts.length + step.arrays.length;
    for (const name of step.arrays) {
      places.push(at);
      at += arrays[name].length;
    }
    return Int32Array.from([...step.counts.map((name) => counts[name]), ...places,
      ...step.arrays.flatMap((name) => arrays[name])]);
  }

  free() {
    for (const buffer of this.buffers) buffer.destroy();
    this.staging?.destroy();
    this.buffers = [];
  }
}
