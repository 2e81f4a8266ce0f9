// Run an export with transformers.js in Node, and compare it with the predictions of vitft.
//
// vitft export --transformers-js --out web
// vitft predict IMAGES --dtype fp32 --format jsonl > predictions.jsonl
// npm install @huggingface/transformers
// node run_transformers_js.mjs web predictions.jsonl [fp32|q8]

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";
import { pathToFileURL } from "node:url";

// Found from the current folder, not from the folder of this file.
const require = createRequire(pathToFileURL(path.resolve("package.json")));
const library = async (name) => import(pathToFileURL(require.resolve(name)));
const { env, pipeline, RawImage } = await library("@huggingface/transformers");
const sharp = (await library("sharp")).default;

const [folder, predictions, dtype = "fp32"] = process.argv.slice(2);
env.allowRemoteModels = false;
env.localModelPath = path.dirname(path.resolve(folder));
const classifier = await pipeline("image-classification", path.basename(folder), { dtype });

// Open an image as 8-bit RGB, rotated according to EXIF and composited on white.
async function openRgb(file) {
  const upright = sharp(file, { ignoreIcc: true }).rotate().flatten({ background: "white" });
  const rgb = upright.toColourspace("srgb").removeAlpha().raw();
  const { data, info } = await rgb.toBuffer({ resolveWithObject: true });
  return new RawImage(new Uint8ClampedArray(data), info.width, info.height, info.channels);
}

const rows = readFileSync(predictions, "utf8").trim().split("\n").map((line) => JSON.parse(line));
const started = performance.now();
let changed = 0, largest = 0;
for (const row of rows) {
  const found = await classifier(await openRgb(row.path), { top_k: null });
  if (found[0].label !== row.classes[0].class) changed += 1;
  for (const one of row.classes) {
    const same = found.find(({ label }) => label === one.class);
    largest = Math.max(largest, Math.abs(same.score - one.probability));
  }
}
const speed = (1000 * rows.length) / (performance.now() - started);
console.log(
  `transformers.js ${env.version}, ${dtype}: ${rows.length} images, largest difference of a `
  + `probability ${largest.toExponential(1)}, ${changed} changed labels, ${speed.toFixed(1)} images/s`,
);
