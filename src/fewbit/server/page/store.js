// Conversations, kept in the browser's IndexedDB; in memory where there is none.

const NAME = "fewbit";
const TABLE = "conversations";
const others = "BroadcastChannel" in globalThis ? new BroadcastChannel("fewbit") : null;
const memory = new Map();
let opening = null;

export const newId = () =>
  Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");

/** `{ id, title, created, updated, model, settings, messages }`; a message is `{ role, content, files, ... }`. */
export function newConversation(settings, model) {
  const now = Date.now();
  return { id: newId(), title: "", created: now, updated: now, model, settings: { ...settings }, messages: [] };
}

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

/** Runs one operation on the table; without a database, the same on a map. */
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

/** All conversations, the newest first. */
export async function all() {
  const found = await run("readonly", (table) => table.getAll(), (map) => [...map.values()]);
  return found.sort((a, b) => b.updated - a.updated);
}

export const get = (id) => run("readonly", (table) => table.get(id), (map) => map.get(id));

export async function put(conversation) {
  const plain = structuredClone(conversation);
  await run("readwrite", (table) => table.put(plain), (map) => map.set(plain.id, plain));
  others?.postMessage(conversation.id);
}

export async function remove(id) {
  await run("readwrite", (table) => table.delete(id), (map) => map.delete(id));
  others?.postMessage(id);
}

/** Another tab changed a conversation. */
export function onChange(listener) {
  if (others) others.onmessage = ({ data }) => listener(data);
}
