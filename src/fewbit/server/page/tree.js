// A conversation is a tree of messages: an edit or another answer is a new branch, and nothing is removed.

export const newId = () =>
  Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");

/** `{ id, title, created, updated, model, settings, messages, leaf }`; `leaf` is the id of the last message shown. */
export function newConversation(settings, model) {
  const now = Date.now();
  return { id: newId(), title: "", created: now, updated: now, model, settings: { ...settings }, messages: [], leaf: null };
}

/** Adds a message below `parent` (null: a first one) and shows the branch that ends with it. */
export function add(conversation, parent, fields) {
  const now = Math.max(Date.now(), (parent?.created ?? 0) + 1); // messages are sorted by it
  const message = { id: newId(), parent: parent?.id ?? null, created: now, updated: now, ...fields };
  conversation.messages.push(message);
  conversation.leaf = message.id;
  return message;
}

export const parentOf = ({ messages }, { parent }) => (parent === null ? null : messages.find((one) => one.id === parent) ?? null);

/** The messages that are shown, from the first to the leaf. */
export function path(conversation) {
  const byId = new Map(conversation.messages.map((one) => [one.id, one]));
  const found = [];
  for (let one = byId.get(conversation.leaf); one; one = byId.get(one.parent)) found.push(one);
  return found.reverse();
}

/** The versions of a message, the oldest first: all that stand below the same one. */
export const versions = ({ messages }, { parent }) => messages.filter((one) => one.parent === parent);

/** Shows the branch of a message, down to the newest of its leaves. */
export function select(conversation, message) {
  const below = (one) => conversation.messages.findLast(({ parent }) => parent === one.id);
  let leaf = message;
  for (let next = below(leaf); next; next = below(leaf)) leaf = next;
  conversation.leaf = leaf.id;
}

/** Brings messages of another copy of a conversation into this one; of two states of a message the later one stays.
 *  Gives the messages that changed. */
export function merge(conversation, { messages, leaf }) {
  const byId = new Map(conversation.messages.map((one) => [one.id, one]));
  const changed = messages.filter((one) => !(byId.get(one.id)?.updated >= one.updated));
  for (const one of changed) {
    const mine = byId.get(one.id);
    if (!mine) conversation.messages.push(structuredClone(one));
    else {
      for (const name of Object.keys(mine)) delete mine[name];
      Object.assign(mine, structuredClone(one));
    }
  }
  conversation.messages.sort((a, b) => a.created - b.created || (a.id < b.id ? -1 : 1));
  const isLonger = path({ messages, leaf }).some((one) => one.id === conversation.leaf);
  if (isLonger || conversation.leaf === null) conversation.leaf = leaf;
  return changed;
}

/** A list of messages that names no parents is one branch. What is no tree is refused: it gives null. */
export function asTree(messages, leaf) {
  const found = [];
  const ids = new Set();
  for (const one of messages) {
    const isLinked = typeof one.id === "string";
    const id = isLinked ? one.id : `m${found.length}`;
    const parent = isLinked ? one.parent ?? null : found.at(-1)?.id ?? null;
    if (ids.has(id) || (parent !== null && !ids.has(parent))) return null;
    ids.add(id);
    found.push({ created: found.length, updated: 0, ...one, id, parent });
  }
  return { messages: found, leaf: ids.has(leaf) ? leaf : found.at(-1)?.id ?? null };
}
