/** What was wrong, and what was expected, in one sentence. */
export class FewbitError extends Error {
  name = "FewbitError";
}

/** Text of a file or of a driver, short enough for a sentence. */
export const short = (text) => JSON.stringify(String(text).slice(0, 80));
