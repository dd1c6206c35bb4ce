/** Language models from GGUF files in the browser, through WebGPU.
 *
 *    const model = await Model.load(file, serverPlanner("/local/plan"));
 *    for await (const text of model.chat([{ role: "user", content: "Hello" }])) show(text);
 */

export { Gpu } from "./device.js";
export { FewbitError } from "./errors.js";
export { readGguf } from "./gguf.js";
export { Model } from "./model.js";
export { describe, fixedPlanner, serverPlanner } from "./planner.js";
export { Runner } from "./runner.js";
export { DEFAULTS, TokenCounts, packSample, randomNumbers, sampledToken, samplingParams } from "./sample.js";
export { BlobSource, UrlSource } from "./source.js";
export { StateSlots } from "./states.js";
export { ChatTemplate } from "./template.js";
export { TextStream, Tokenizer } from "./tokenizer.js";
export { fill, spread } from "./weights.js";
