// The browser's WebGPU device, with errors in one sentence.

import { FewbitError } from "./errors.js";

const MAX_BINDINGS = 10; // storage buffers of the kernel that has most
const LOSS_MS = 200; // after a failure until the loss that caused it is told

/** An open device: {device, limits, lost}. `lost` is "" until the device is lost, then a sentence. */
export class Gpu {
  static async open(options = {}) {
    if (!globalThis.navigator?.gpu) {
      throw new FewbitError(globalThis.isSecureContext === false
        ? "WebGPU needs a secure page: open it by https or from localhost"
        : "this browser has no WebGPU: take a recent Chrome, Edge, Firefox or Safari");
    }
    const adapter = await navigator.gpu.requestAdapter({ powerPreference: "high-performance", ...options });
    if (!adapter) throw new FewbitError("this browser has WebGPU, but found no GPU that it can use");
    return new Gpu(adapter, await openDevice(adapter));
  }

  constructor(adapter, device) {
    this.device = device;
    this.name = [adapter.info?.vendor, adapter.info?.architecture || adapter.info?.description].filter(Boolean).join(" ");
    this.lost = "";
    device.lost.then((info) => {
      this.lost = `the GPU was lost: load the model again (${info.message || info.reason || "the driver tells no reason"})`;
    });
  }

  /** What a plan is made for. */
  get limits() {
    const { limits, features } = this.device;
    return {
      binding_bytes: limits.maxStorageBufferBindingSize,
      buffer_bytes: limits.maxBufferSize,
      subgroups: features.has("subgroups"),
    };
  }

  /** Runs GPU calls, waits for them, and then for what the driver reports of them. */
  async reported(what, work) {
    this.watch();
    const [done] = await Promise.allSettled([(async () => work())()]);
    return this.checked(what, done, await Promise.all(this.unwatch()));
  }

  /** Runs GPU calls that are all made at once, and waits for their result and for what the driver reports at the same
   *  time: no round trip is added to that of the result. */
  async submitted(what, work) {
    this.watch();
    const pending = (async () => work())();
    const problems = this.unwatch();
    const [done] = await Promise.allSettled([pending]);
    return this.checked(what, done, await Promise.all(problems));
  }

  watch() {
    if (this.lost) throw new FewbitError(this.lost);
    this.device.pushErrorScope("validation");
    this.device.pushErrorScope("out-of-memory");
  }

  unwatch() {
    return [this.device.popErrorScope(), this.device.popErrorScope()];
  }

  async checked(what, done, [memory, invalid]) {
    if (done.reason instanceof FewbitError) throw done.reason;
    if (done.reason ?? memory ?? invalid) { // what fails by a loss may be told before it
      await Promise.race([this.device.lost, new Promise((resolve) => setTimeout(resolve, LOSS_MS))]);
    }
    if (this.lost) throw new FewbitError(this.lost);
    if (memory) throw new FewbitError(`${what}: the GPU is out of memory; take a smaller model or context`);
    const problem = done.reason ?? invalid;
    if (problem) throw new FewbitError(`${what}: ${oneLine(problem.message)}`);
    return done.value;
  }

  close() {
    this.device.destroy();
  }
}

async function openDevice(adapter) {
  const names = ["maxStorageBufferBindingSize", "maxBufferSize", "maxComputeWorkgroupStorageSize"];
  const requiredLimits = Object.fromEntries(names.map((name) => [name, adapter.limits[name]]));
  requiredLimits.maxStorageBuffersPerShaderStage = Math.min(adapter.limits.maxStorageBuffersPerShaderStage, MAX_BINDINGS);
  const requiredFeatures = ["subgroups"].filter((name) => adapter.features.has(name));
  try {
    return await adapter.requestDevice({ requiredLimits, requiredFeatures });
  } catch (error) {
    throw new FewbitError(`WebGPU cannot open the GPU: ${oneLine(error.message)}`);
  }
}

const oneLine = (text) => text.replace(/\s+/g, " ").slice(0, 300);
