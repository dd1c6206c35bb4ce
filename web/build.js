// Bundles the runtime into one module: dist/fewbit.js for the package, and the same for the server's page at /local.

import { build } from "esbuild";
import { copyFileSync, mkdirSync } from "node:fs";
import { fileURLToPath } from "node:url";

const here = (path) => fileURLToPath(new URL(path, import.meta.url));
const OUTPUTS = [here("dist/fewbit.js"), here("../src/fewbit/server/page/fewbit.js")];
const BANNER = "/* fewbit: made by `make web` from web/src. It holds @huggingface/jinja, whose license is jinja.LICENSE. */";

const only = process.argv[2]; // another file to write
for (const outfile of only ? [only] : OUTPUTS) {
  await build({
    entryPoints: [here("src/index.js")], outfile, bundle: true, minify: true, format: "esm", target: "es2022",
    charset: "utf8", legalComments: "none", banner: { js: BANNER },
  });
}
mkdirSync(here("dist"), { recursive: true });
copyFileSync(here("../src/fewbit/server/page/jinja.LICENSE"), here("dist/jinja.LICENSE"));
