// Talks to the server: models, figures, and answers that stream.

const KEY = "fewbit.key";
let askForKey = async () => false; // gives whether there is a new key

/** Where a server wants a key, `ask` is called and the request is made again. */
export function onKeyNeeded(ask) {
  askForKey = ask;
}

export class ApiError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

const stores = () => [globalThis.sessionStorage, globalThis.localStorage];

export function getKey() {
  try {
    return stores().map((one) => one.getItem(KEY)).find(Boolean) ?? "";
  } catch {
    return getKey.memory ?? "";
  }
}

/** The key lives as long as the tab, or in the browser if asked to. */
export function setKey(key, keep) {
  getKey.memory = key;
  try {
    const [session, local] = stores();
    for (const one of [session, local]) one.removeItem(KEY);
    if (key) (keep ? local : session).setItem(KEY, key);
  } catch {
    // storage is off: it lives as long as the page
  }
}

export function keepsKey() {
  try {
    return localStorage.getItem(KEY) !== null;
  } catch {
    return false;
  }
}

async function request(path, options = {}, asks = true) {
  const key = getKey();
  const headers = { ...options.headers, ...(key ? { Authorization: `Bearer ${key}` } : {}) };
  let response;
  try {
    response = await fetch(path, { ...options, headers, credentials: "omit", cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server cannot be reached. Is it running?");
  }
  if (response.ok) return response;
  if (response.status === 401 && asks && await askForKey()) return request(path, options, asks);
  throw new ApiError(await reason(response), response.status);
}

async function reason(response) {
  const text = await response.text().catch(() => "");
  const again = response.headers.get("Retry-After");
  const hint = again && /^\d+$/.test(again) ? ` Try again in ${again} s.` : "";
  try {
    const { error } = JSON.parse(text);
    return sentence(error.message ?? error) + hint;
  } catch {
    return `The server answered with status ${response.status}.${hint}`;
  }
}

export function sentence(text) {
  const words = String(text);
  return words.charAt(0).toUpperCase() + words.slice(1) + (/[.!?]$/.test(words) ? "" : ".");
}

export async function listModels() {
  return (await (await request("v1/models")).json()).data;
}

/** What the file of a model says: `{ capabilities, parameters, ... }`. It never asks for a key. */
export async function showModel(model) {
  const options = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ model }) };
  return (await request("api/show", options, false)).json();
}

/** What the server does now. It never asks for a key: that is for those who want an answer. */
export async function getStats(signal) {
  return (await request("stats", { signal }, false)).json();
}

/** Streams an answer: gives `{ text }`, `{ thought }`, `{ call }`, `{ reason }`, `{ problem }` and `{ usage }` as they come. */
export async function* streamChat(body, signal) {
  const response = await request("v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  let isDone = false;
  for await (const data of events(response.body)) {
    if (data === "[DONE]") {
      isDone = true;
      break;
    }
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ApiError(sentence(chunk.error.message ?? chunk.error));
    const choice = chunk.choices?.[0];
    const thought = choice?.delta?.reasoning_content ?? choice?.delta?.reasoning;
    if (thought) yield { thought };
    if (choice?.delta?.content) yield { text: choice.delta.content };
    for (const call of choice?.delta?.tool_calls ?? []) yield { call };
    if (choice?.error) yield { problem: sentence(choice.error.message) };
    if (choice?.finish_reason) yield { reason: choice.finish_reason };
    if (chunk.usage) yield { usage: chunk.usage };
  }
  if (!isDone) throw new ApiError("The connection ended before the answer did.");
}

/** The data of server-sent events. A comment is a ping. */
export async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let data = [];
  try {
    while (true) {
      const { value, done } = await read(reader);
      if (done) return;
      const lines = (rest + value).split(/\r?\n/);
      rest = lines.pop();
      for (const line of lines) {
        if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
        else if (line === "" && data.length) {
          yield data.join("\n");
          data = [];
        }
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

async function read(reader) {
  try {
    return await reader.read();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The connection was lost.");
  }
}
