// Colours code a little: comments, strings, numbers and words that many languages share.
import { el, textNodes } from "./dom.js";

const LONGEST = 100_000; // characters; longer code is shown plain
const HASH = new Set(["python", "py", "sh", "bash", "shell", "console", "yaml", "yml", "toml", "ruby", "rb", "r", "make",
  "makefile", "dockerfile", "perl", "ini", "conf", "cmake"]);
const DASH = new Set(["sql", "lua", "haskell", "hs", "ada"]);
const PLAIN = new Set(["", "text", "txt", "plain", "output", "markdown", "md", "diff", "csv"]);
const WORDS = new Set(`abstract and as assert async await bool break case catch char class const continue crate def default
  del delete do double elif else end enum except export extends extern False false final finally float fn for foreach
  from func function global goto if impl implements import in int interface is lambda let local long loop match mod module
  mut namespace new nil None nonlocal not null nullptr operator or override package pass private protected pub public
  raise ref return select Self self short signed sizeof static string struct super switch template then this throw throws
  trait True true try type typedef typename typeof undefined union unsafe unsigned use using var virtual void volatile
  where while with yield SELECT FROM WHERE INSERT INTO UPDATE DELETE CREATE TABLE JOIN LEFT ON GROUP ORDER BY LIMIT AND OR
  NOT NULL AS VALUES SET`.split(/\s+/));

const STRING = String.raw`"""[^]*?(?:"""|$)|'''[^]*?(?:'''|$)|"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'|` +
  "`(?:\\\\[^]|[^`\\\\])*`?";
const NUMBER = String.raw`\b(?:0[xX][\da-fA-F_]+|0[bB][01_]+|\d[\d_]*(?:\.\d[\d_]*)?(?:[eE][+-]?\d+)?)\b`;
const WORD = String.raw`[A-Za-z_]\w*`;

function pattern(language) {
  const slashes = String.raw`\/\/[^\n]*|\/\*[^]*?(?:\*\/|$)`;
  const comment = HASH.has(language) ? "#[^\\n]*" : DASH.has(language) ? "--[^\\n]*" : slashes;
  return new RegExp(`(?<comment>${comment})|(?<string>${STRING})|(?<number>${NUMBER})|(?<word>${WORD})`, "g");
}

/** Code as nodes. */
export function highlight(source, language) {
  const name = language.toLowerCase();
  if (PLAIN.has(name) || source.length > LONGEST) return textNodes(source);
  const nodes = [];
  let plain = 0;
  for (const found of source.matchAll(pattern(name))) {
    const { comment, string, number, word } = found.groups;
    const isCall = word && source[found.index + word.length] === "(";
    const kind = comment ? "comment" : string ? "string" : number ? "number"
      : WORDS.has(word) ? "word" : isCall ? "call" : null;
    if (!kind) continue;
    if (found.index > plain) nodes.push(...textNodes(source.slice(plain, found.index)));
    nodes.push(el("span", { class: `hl-${kind}` }, textNodes(found[0])));
    plain = found.index + found[0].length;
  }
  if (plain < source.length) nodes.push(...textNodes(source.slice(plain)));
  return nodes;
}
