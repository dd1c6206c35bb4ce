// What a model thinks before it answers.

const BEGIN = "<think>";
const END = "</think>";

/** The thought and the answer in a text; the end of a text that may be half a tag waits. */
export function splitThought(text) {
  const begin = text.trimStart();
  if (!begin.startsWith(BEGIN)) return BEGIN.startsWith(begin) ? ["", ""] : splitAtEnd(text);
  const inside = begin.slice(BEGIN.length);
  const end = inside.indexOf(END);
  if (end >= 0) return [inside.slice(0, end), answerIn(inside, end)];
  const cut = inside.lastIndexOf("<");
  return [cut >= 0 && END.startsWith(inside.slice(cut)) ? inside.slice(0, cut) : inside, ""];
}

/** Some templates write the tag that begins a thought: then the text has its end only, on a line of its own. */
function splitAtEnd(text) {
  const found = /^[ \t]*<\/think>[ \t]*$/m.exec(text);
  return found ? [text.slice(0, found.index), answerIn(text, found.index + found[0].indexOf(END))] : ["", text];
}

const answerIn = (text, end) => text.slice(end + END.length).replace(/^\s{1,9}/, "");

/** Both of a message: servers may send the thought apart. */
export const partsOf = ({ reasoning, content }) => (reasoning ? [reasoning, content] : splitThought(content));

/** What stands over a thought. */
export function thoughtTitle({ thought_seconds: seconds, usage }, isThinking) {
  const time = seconds > 0 ? duration(seconds) : "";
  if (isThinking) return `Thinking\u2026 ${time}`.trim();
  const tokens = usage?.completion_tokens_details?.reasoning_tokens;
  return [time ? `Thought for ${time}` : "Thoughts", ...(tokens ? [`${tokens} tokens`] : [])].join(" \u00b7 ");
}

function duration(seconds) {
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  return whole < 60 ? `${whole} s` : `${Math.floor(whole / 60)} min ${whole % 60} s`;
}
