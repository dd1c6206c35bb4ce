// Files in a message: texts, written for the model as fenced blocks, and images, which it is sent as data URLs.
import { $, el, icon, iconButton, oneLine, textNodes, toast } from "./dom.js";

const MOST_FILES = 20;
const LARGEST_BYTES = 1 << 20;
const LARGEST_TOTAL = 4 << 20;
const LARGEST_IMAGES = 11 << 20; // of a message; with base64 a request stays below the server's 16 MiB
const IMAGE = /^image\/(png|jpeg|webp|gif|bmp|tiff)$/;

export const isImageUrl = (text) => typeof text === "string" && /^data:image\/(png|jpeg|webp|gif|bmp|tiff);base64,[A-Za-z0-9+/=]+$/.test(text);

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
        const name = oneLine(file.name, 100) || "file";
        this.files.push(IMAGE.test(file.type) ? { name, text: "", image: await readImage(file) } : { name, text: await readText(file) });
      } catch (error) {
        toast(error.message);
      }
    }
    this.show();
  }

  check(file) {
    if (IMAGE.test(file.type)) return this.checkImage(file);
    const total = this.files.reduce((sum, one) => sum + one.text.length, file.size);
    if (file.size > LARGEST_BYTES) throw new Error(`${oneLine(file.name, 100)} is larger than 1 MB; attach a part of it.`);
    if (this.files.length >= MOST_FILES) throw new Error(`A message takes ${MOST_FILES} files; send these first.`);
    if (total > LARGEST_TOTAL) throw new Error("The files of a message are larger than 4 MB; send some of them first.");
  }

  checkImage(file) {
    const total = this.files.reduce((sum, one) => sum + imageBytes(one), file.size);
    if (this.files.length >= MOST_FILES) throw new Error(`A message takes ${MOST_FILES} files; send these first.`);
    if (total > LARGEST_IMAGES) throw new Error("The images of a message are larger than 11 MB; attach smaller ones.");
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

function readImage(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(new Error(`${oneLine(file.name, 100)} could not be read.`));
    reader.readAsDataURL(file);
  });
}

const imageBytes = ({ image }) => (image ? Math.floor(image.length * 3 / 4) : 0);

/** A file as a small label; where nothing else is said, it opens to its text. Of an image it is the image. */
export function chip(file, button = null) {
  if (isImageUrl(file.image)) {
    const preview = el("img", { src: file.image, alt: file.name, title: file.name });
    return el("span", { class: "chip picture" }, preview, button ? [button] : []);
  }
  const label = [icon("file"), el("span", {}, textNodes(file.name)), el("small", { text: size(file.text.length) })];
  if (button) return el("span", { class: "chip" }, label, button);
  return el("details", { class: "chip" }, el("summary", {}, label),
    el("pre", { tabindex: "0", "aria-label": file.name }, textNodes(file.text)));
}

const size = (chars) => (chars < 1024 ? `${chars} B` : `${(chars / 1024).toFixed(chars < 10240 ? 1 : 0)} KB`);

/** What the model reads: the files first, then what was written; with images, parts. A fence is longer than any in
 *  the file. */
export function contentOf(message) {
  const files = message.files ?? [];
  const images = files.filter((file) => isImageUrl(file.image));
  const text = textOf(message);
  if (!images.length) return text;
  const parts = images.map((file) => ({ type: "image_url", image_url: { url: file.image } }));
  return text ? [...parts, { type: "text", text }] : parts;
}

/** The same without the images. */
export function textOf(message) {
  const blocks = (message.files ?? []).filter((file) => !file.image).map((file) => {
    const longest = file.text.match(/`{3,}/g)?.reduce((most, run) => Math.max(most, run.length), 2) ?? 2;
    const fence = "`".repeat(longest + 1);
    return `${file.name}:\n${fence}\n${file.text.replace(/\n$/, "")}\n${fence}`;
  });
  return [...blocks, message.content].filter(Boolean).join("\n\n");
}
