// Conversations, kept in the browser's IndexedDB; in memory where there is none. Other tabs are told of changes.
import { asTree, merge } from "./tree.js";

const NAME = "fewbit";
const TABLE = "conversations";
const DRAFT = "fewbit.draft.";
const channel = "BroadcastChannel" in globalThis ? new BroadcastChannel("fewbit") : null;
const memory = new Map();
let opening = null;

function open() {
  opening ??= new Promise((resolve) => {
    try {
      const request = indexedDB.open(NAME, 1);
      request.onupgradeneeded = () => request.result.createObjectStore(TABLE, { keyPath: "id" });
      request.onsuccess = () => resolve(request.result);
      request.onerror = () => resolve(null);
    } catch {
      resolve(null);
    }
  });
  return opening;
}

/** Runs one transaction on the table; without a database, the same on a map. */
async function run(mode, onTable, onMap) {
  const database = await open();
  if (!database) return onMap(memory);
  return new Promise((resolve, reject) => {
    const transaction = database.transaction(TABLE, mode);
    const request = onTable(transaction.objectStore(TABLE));
    transaction.oncomplete = () => resolve(request.result);
    transaction.onerror = transaction.onabort = () => reject(transaction.error);
  });
}

export const isKept = async () => (await open()) !== null;

/** Chats that were kept before there were branches are one. */
const read = (found) => found && ("leaf" in found ? found : { ...found, ...asTree(found.messages, null) });

/** All conversations, the newest first. */
export async function all() {
  const found = await run("readonly", (table) => table.getAll(), (map) => [...map.values()]);
  return found.map(read).sort((a, b) => b.updated - a.updated);
}

export const get = async (id) => read(await run("readonly", (table) => table.get(id), (map) => map.get(id)));

/** Saves a conversation together with what other tabs saved of it meanwhile. */
export async function put(conversation) {
  const plain = structuredClone(conversation);
  const joined = (stored) => {
    const { leaf } = plain;
    if (stored) merge(plain, read(stored));
    return Object.assign(plain, { leaf });
  };
  await run("readwrite", (table) => {
    const request = table.get(plain.id);
    request.onsuccess = () => table.put(joined(request.result));
    return request;
  }, (map) => map.set(plain.id, joined(map.get(plain.id))));
  tell("changed", conversation.id);
}

/** Keeps a message of a tab that is being closed: it has no time for a transaction. */
export function keepDraft(id, message) {
  try {
    localStorage.setItem(DRAFT + id, JSON.stringify(message));
  } catch {
    // storage is off or full: what was saved last stays
  }
}

/** Saves what closed tabs kept. */
export async function recover() {
  try {
    for (const key of Object.keys(localStorage).filter((one) => one.startsWith(DRAFT))) {
      const message = JSON.parse(localStorage.getItem(key));
      const found = message && await get(key.slice(DRAFT.length));
      if (found) {
        merge(found, { messages: [message], leaf: found.leaf });
        await put(found);
      }
      localStorage.removeItem(key);
    }
  } catch {
    // storage is off
  }
}

export async function remove(id) {
  await run("readwrite", (table) => table.delete(id), (map) => map.delete(id));
  tell("removed", id);
}

/** Tells other tabs about a conversation: it "changed", it was "removed"; who "runs" it is told when one "asks". */
export function tell(what, id) {
  channel?.postMessage({ what, id });
}

/** `listeners` by what other tabs tell: each gets the id of a conversation. */
export function onTold(listeners) {
  channel?.addEventListener("message", ({ data }) => listeners[data.what]?.(data.id));
}
