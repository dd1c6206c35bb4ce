// The browser's WebGPU device, with errors in one sentence.

import { FewbitError } from "./errors.js";

const MAX_BINDINGS = 10; // storage buffers of the kernel that has most

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

  /** Runs GPU calls and waits for what they report. */
  async reported(what, work) {
    if (this.lost) throw new FewbitError(this.lost);
    const { device } = this;
    device.pushErrorScope("validation");
    device.pushErrorScope("out-of-memory");
    let thrown = null;
    let found;
    try {
      found = await work();
    } catch (error) {
      thrown = error;
    }
    const memory = await device.popErrorScope();
    const invalid = await device.popErrorScope();
    if (thrown instanceof FewbitError) throw thrown;
    await Promise.resolve(); // `lost` is told after the calls that fail by it
    if (this.lost) throw new FewbitError(this.lost);
    if (memory) throw new FewbitError(`${what}: the GPU is out of memory; take a smaller model or context`);
    if (thrown ?? invalid) throw new FewbitError(`${what}: ${oneLine((thrown ?? invalid).message)}`);
    return found;
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
