// Compiles the shaders of a JSON file, name -> WGSL, with Dawn, the WebGPU of Chromium; prints what it refuses.
// node dawn.mjs FILE, beside a folder node_modules with the package `webgpu`.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const require = createRequire(process.argv[3] + "/");
const { create } = require("webgpu");
const gpu = create(["backend=null"]);
const adapter = await gpu.requestAdapter();
if (!adapter) throw new Error("Dawn finds no adapter");
const wanted = ["shader-f16", "subgroups"].filter((name) => adapter.features.has(name));
const device = await adapter.requestDevice({ requiredFeatures: wanted });
const shaders = JSON.parse(readFileSync(process.argv[2], "utf8"));
const refused = {};
for (const [name, code] of Object.entries(shaders)) {
  device.pushErrorScope("validation");
  const info = await device.createShaderModule({ code }).getCompilationInfo();
  const error = await device.popErrorScope();
  const lines = info.messages.filter((m) => m.type === "error").map((m) => `${m.lineNum}: ${m.message}`);
  if (lines.length || error) refused[name] = lines.length ? lines : [error.message];
}
console.log(JSON.stringify({ features: wanted, refused }));
process.exit(0);
