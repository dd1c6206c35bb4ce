// Where the bytes of a model are: a file that was picked, or an address that answers ranges.

import { FewbitError } from "./errors.js";

/** A File or Blob. */
export class BlobSource {
  constructor(blob) {
    this.blob = blob;
    this.size = blob.size;
    this.name = blob.name ?? "file";
  }

  async read(start, length) {
    checkRange(this, start, length);
    try {
      return new Uint8Array(await this.blob.slice(start, start + length).arrayBuffer());
    } catch (error) {
      throw new FewbitError(`${this.name} cannot be read, perhaps it has changed: pick it again (${error.name})`);
    }
  }
}

/** An address whose server answers Range requests. `UrlSource.open` asks for its size. */
export class UrlSource {
  constructor(url, size, headers) {
    this.url = url;
    this.size = size;
    this.headers = headers;
    this.name = new URL(url, "file:///").pathname.split("/").pop() || "file";
  }

  static async open(url, headers = {}) {
    const answer = await request(url, headers, 0, 1);
    const [, size] = /\/(\d+)$/.exec(answer.headers.get("content-range") ?? "") ?? [];
    await answer.body?.cancel();
    if (!size) throw new FewbitError(`the server of ${url} does not tell the size of the file`);
    return new UrlSource(url, Number(size), headers);
  }

  async read(start, length) {
    checkRange(this, start, length);
    const answer = await request(this.url, this.headers, start, length);
    const data = new Uint8Array(await answer.arrayBuffer());
    if (data.length !== length) throw new FewbitError(`${this.url} gave ${data.length} bytes instead of ${length}`);
    return data;
  }
}

async function request(url, headers, start, length) {
  let answer;
  try {
    answer = await fetch(url, { headers: { ...headers, Range: `bytes=${start}-${start + length - 1}` } });
  } catch (error) {
    throw new FewbitError(`${url} cannot be fetched: ${error.message}`);
  }
  if (answer.status === 206) return answer;
  await answer.body?.cancel();
  if (answer.status === 200) throw new FewbitError(`the server of ${url} does not answer ranges of bytes`);
  throw new FewbitError(`${url} cannot be fetched: the server answered ${answer.status}`);
}

function checkRange(source, start, length) {
  const fits = Number.isSafeInteger(start) && Number.isSafeInteger(length) && start >= 0 && length >= 0;
  if (!fits || start + length > source.size) {
    throw new FewbitError(`${source.name} is truncated or damaged: it has ${source.size} bytes, and bytes ${start} to ` +
      `${start + length} are needed`);
  }
}
