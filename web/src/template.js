// Chat templates, and marks that keep messages from spelling control tokens.

import { Template } from "@huggingface/jinja";
import { FewbitError, short } from "./errors.js";

const FIRST_MARK = 0xfdd0; // noncharacters, which hardly any text holds
const MARKS = 32;

export class ChatTemplate {
  constructor(source, bos, eos, control) {
    this.tokens = { bos_token: bos, eos_token: eos };
    this.control = [...control].filter(Boolean).sort((a, b) => b.length - a.length);
    try {
      this.template = new Template(source);
    } catch (error) {
      throw new FewbitError(`the chat template cannot be read: ${error.message}`);
    }
  }

  /** The prompt for messages, and the mark that breaks control tokens in their texts: {text, mark}. */
  render(messages, names = {}) {
    const texts = messages.map((message) => textOf(message.content));
    const mark = chooseMark(texts);
    const marked = messages.map((message, i) => ({ ...message, content: this.marked(texts[i], mark) }));
    try {
      const text = this.template.render({ ...this.tokens, add_generation_prompt: true, tools: null, documents: null,
        ...names, messages: marked });
      return { text, mark };
    } catch (error) {
      throw new FewbitError(`the chat template refuses these messages: ${error.message}`);
    }
  }

  marked(text, mark) {
    let out = text;
    for (const token of this.control) {
      if (out.includes(token)) out = out.replaceAll(token, token.length > 1 ? token[0] + mark + token.slice(1) : mark);
    }
    return out;
  }
}

/** The text of a message: a string, or parts {type: "text", text}. Images and other parts are refused. */
function textOf(content) {
  if (typeof content === "string") return content;
  const parts = Array.isArray(content) ? content : [content];
  const others = parts.filter((part) => part?.type !== "text" || typeof part.text !== "string");
  if (!others.length) return parts.map((part) => part.text).join("");
  throw new FewbitError(`models in the browser read text alone; a message holds ${short(others[0]?.type ?? others[0])}`);
}

function chooseMark(texts) {
  const used = texts.join("");
  for (let code = FIRST_MARK; code < FIRST_MARK + MARKS; code++) {
    if (!used.includes(String.fromCharCode(code))) return String.fromCharCode(code);
  }
  throw new FewbitError("the messages hold every character that could mark them");
}
