// Conversations as files: Markdown and JSON out, JSON in.
import { el, oneLine } from "./dom.js";
import { isImageUrl, textOf } from "./files.js";
import { clean } from "./settings.js";
import { partsOf } from "./thought.js";
import { asTree, newId, path } from "./tree.js";

const VERSION = 1;
const LARGEST_BYTES = 100 << 20;

/** The branch that is shown, without thoughts. */
export function toMarkdown(conversation) {
  const { settings, title } = conversation;
  const system = settings.system ? [`**System**\n\n${settings.system}`] : [];
  const said = path(conversation).map((one) => (one.role === "user" ? `**You**\n\n${textOf(one)}`
    : `**${one.model || "Answer"}**\n\n${partsOf(one)[1]}`));
  return `# ${title || "New chat"}\n\n${[...system, ...said].join("\n\n---\n\n")}\n`;
}

export function toJson(conversations) {
  return `${JSON.stringify({ fewbit: VERSION, conversations }, null, 1)}\n`;
}

export function download(name, text, type) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const link = el("a", { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

export function fileName(conversation, ending) {
  const name = oneLine(conversation.title, 60).replace(/[^\p{L}\p{N} _-]+/gu, "").trim().replaceAll(" ", "-");
  return `${name || "chat"}.${ending}`;
}

/** The conversations of a file, checked field by field, with new ids where theirs are taken. */
export async function fromFile(file, taken) {
  if (file.size > LARGEST_BYTES) throw new Error(`${oneLine(file.name, 100)} is larger than 100 MB; export fewer chats.`);
  let found;
  try {
    found = JSON.parse(await file.text());
  } catch {
    throw new Error(`${oneLine(file.name, 100)} is not JSON; import a file that this page exported.`);
  }
  if (found?.fewbit !== VERSION || !Array.isArray(found.conversations)) {
    throw new Error(`${oneLine(file.name, 100)} holds no conversations; import a file that this page exported.`);
  }
  return found.conversations.map((one) => conversationOf(one, file.name, taken));
}

function conversationOf(found, name, taken) {
  if (!Array.isArray(found?.messages) || !found.messages.every(isMessage)) {
    throw new Error(`${oneLine(name, 100)} has a message without role or text; import a file that this page exported.`);
  }
  const tree = asTree(found.messages.map(messageOf), found.leaf);
  if (!tree) throw new Error(`${oneLine(name, 100)} has a message without its parent; import a file that this page exported.`);
  const isFree = typeof found.id === "string" && /^[0-9a-f]{1,64}$/.test(found.id) && !taken.has(found.id);
  const id = isFree ? found.id : newId();
  taken.add(id);
  return {
    id,
    title: oneLine(String(found.title ?? ""), 200),
    created: Number(found.created) || Date.now(),
    updated: Number(found.updated) || Date.now(),
    model: typeof found.model === "string" ? found.model : "",
    settings: clean(found.settings),
    ...tree,
  };
}

const isText = (value) => typeof value === "string";
const isMessage = (one) => ["user", "assistant"].includes(one?.role) && isText(one.content);

const fileOf = ({ name, text, image }) => ({ name: oneLine(name, 100), text, ...(isImageUrl(image) ? { image } : {}) });

function messageOf({ role, content, files, ...rest }) {
  const message = { role, content };
  const texts = Array.isArray(files) ? files.filter((one) => isText(one?.name) && isText(one?.text)) : [];
  if (texts.length) message.files = texts.map(fileOf);
  for (const name of ["id", "parent", "model", "reason"]) if (isText(rest[name])) message[name] = oneLine(rest[name], 200);
  for (const name of ["created", "updated", "thought_seconds"]) if (Number.isFinite(rest[name])) message[name] = rest[name];
  if (isText(rest.reasoning)) message.reasoning = rest.reasoning;
  const calls = Array.isArray(rest.calls) ? rest.calls.filter((one) => ["id", "name", "arguments"].every((key) => isText(one?.[key]))) : [];
  if (calls.length) message.calls = calls.map(({ id, name, arguments: text }) => ({ id: oneLine(id, 200), name: oneLine(name, 200), arguments: text }));
  for (const name of ["isJson", "isPartial"]) if (rest[name] === true) message[name] = true;
  return message;
}
