// Text files in a message: read, checked, and written for the model as fenced blocks.
import { $, el, icon, iconButton, oneLine, textNodes, toast } from "./dom.js";

const MOST_FILES = 20;
const LARGEST_BYTES = 1 << 20;
const LARGEST_TOTAL = 4 << 20;

/** Files that wait for the next message. */
export class Attachments {
  constructor() {
    this.files = [];
    this.list = $("files");
  }

  async add(picked) {
    for (const file of picked) {
      try {
        this.check(file);
        this.files.push({ name: oneLine(file.name, 100) || "file", text: await readText(file) });
      } catch (error) {
        toast(error.message);
      }
    }
    this.show();
  }

  check(file) {
    const total = this.files.reduce((sum, one) => sum + one.text.length, file.size);
    if (file.size > LARGEST_BYTES) throw new Error(`${oneLine(file.name, 100)} is larger than 1 MB; attach a part of it.`);
    if (this.files.length >= MOST_FILES) throw new Error(`A message takes ${MOST_FILES} files; send these first.`);
    if (total > LARGEST_TOTAL) throw new Error("The files of a message are larger than 4 MB; send some of them first.");
  }

  take() {
    const taken = this.files;
    this.set([]);
    return taken;
  }

  set(files) {
    this.files = [...files];
    this.show();
  }

  show() {
    this.list.replaceChildren(...this.files.map((file, index) => {
      const remove = iconButton("close", `Remove ${file.name}`, () => {
        this.files.splice(index, 1);
        this.show();
        $("input").focus();
      });
      return chip(file, remove);
    }));
  }
}

async function readText(file) {
  const bytes = new Uint8Array(await file.arrayBuffer());
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    if (!text.includes("\0")) return text;
  } catch {
    // it is told below
  }
  throw new Error(`${oneLine(file.name, 100)} is no text in UTF-8; attach a text file.`);
}

/** A file as a small label; where nothing else is said, it opens to its text. */
export function chip(file, button = null) {
  const label = [icon("file"), el("span", {}, textNodes(file.name)), el("small", { text: size(file.text.length) })];
  if (button) return el("span", { class: "chip" }, label, button);
  return el("details", { class: "chip" }, el("summary", {}, label),
    el("pre", { tabindex: "0", "aria-label": file.name }, textNodes(file.text)));
}

const size = (chars) => (chars < 1024 ? `${chars} B` : `${(chars / 1024).toFixed(chars < 10240 ? 1 : 0)} KB`);

/** What the model reads: the files first, then what was written. A fence is longer than any in the file. */
export function contentOf(message) {
  const blocks = (message.files ?? []).map((file) => {
    const longest = file.text.match(/`{3,}/g)?.reduce((most, run) => Math.max(most, run.length), 2) ?? 2;
    const fence = "`".repeat(longest + 1);
    return `${file.name}:\n${fence}\n${file.text.replace(/\n$/, "")}\n${fence}`;
  });
  return [...blocks, message.content].filter(Boolean).join("\n\n");
}
