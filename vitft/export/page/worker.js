// The worker of the page: it loads the model, checks it, and classifies one image at a time.
"use strict";

const MAX_PIXELS = 100_000_000;  // as in `vitft predict`
const STRIP = 4_000_000;  // number of pixels read from a canvas at once: phones limit the size of a canvas
const TOLERANCE = 1e-3;  // largest difference in a logit in the self-test, relative to the largest logit
const WIDE_PNG = "16-bit image, which the browser reduced to 8 bits";

let model = null, reference = null, meta = null;

// Load the model from base64 text, and check that this browser computes the same logits for a test pattern as
// NumPy did when the page was written. Return a warning about this browser, or an empty string.
function load(description, parts) {
  meta = description;
  const tensors = readTensors(meta.tensors, fromBase64(parts).buffer);
  if (meta.limit !== null) {
    const [last, intermediate] = ["", "intermediate_"].map((kind) => {
      const [centre, within, means] = ["centre", "within", "means"].map((name) => tensors[`reference.${kind}${name}`]);
      return { centre, within, means };
    });
    reference = { last, intermediate: meta.intermediate ? intermediate : null };
  }
  for (const name of Object.keys(tensors)) if (name.startsWith("reference.")) delete tensors[name];
  model = new Model(meta.config, tensors);
  const [height, width] = meta.transform.image_size, values = height * width * meta.transform.mean.length;
  const { logits } = scores(Uint8Array.from({ length: values }, (_, i) => (i * 31 + (i >> 5) * 17) % 256));
  const largest = meta.self_test.reduce((most, x) => Math.max(most, Math.abs(x)), 1);
  if (!meta.self_test.every((x, i) => Math.abs(x - logits[i]) <= TOLERANCE * largest)) {
    throw new Error("the self-test failed: the file is damaged, or this browser computes incorrectly");
  }
  return readsPixelsExactly() ? "" : "This browser changes the image pixels that pages read, as a protection "
    + "against tracking. Predictions may be wrong.";
}

function fromBase64(parts) {
  const texts = parts.map((part) => atob(part));
  const bytes = new Uint8Array(texts.reduce((size, text) => size + text.length, 0));
  let at = 0;
  for (const text of texts) for (let i = 0; i < text.length; i++) bytes[at++] = text.charCodeAt(i);
  return bytes;
}

function canvasOf(width, height) {
  return new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true, colorSpace: "srgb" });
}

// Return whether a canvas returns exactly the pixels that were written to it.
function readsPixelsExactly() {
  const context = canvasOf(64, 64), image = context.createImageData(64, 64);
  image.data.forEach((_, i) => { image.data[i] = i % 4 === 3 ? 255 : (i * 7) % 256; });
  context.putImageData(image, 0, 0);
  return context.getImageData(0, 0, 64, 64).data.every((value, i) => value === image.data[i]);
}

// Decode an image file to upright RGB, composited on white and without colour management.
async function decode(file) {
  let bitmap;
  try {
    bitmap = await createImageBitmap(file, { imageOrientation: "from-image", colorSpaceConversion: "none" });
  } catch {
    throw new Error("this browser cannot open the file as an image");
  }
  const { width, height } = bitmap;
  if (width * height > MAX_PIXELS) throw new Error(`image too large: ${width}x${height}, limit ${MAX_PIXELS} pixels`);
  const data = new Uint8Array(3 * width * height), rows = Math.max(1, Math.floor(STRIP / width));
  let at = 0;
  for (let top = 0; top < height; top += rows) {
    const tall = Math.min(rows, height - top), context = canvasOf(width, tall);
    context.fillStyle = "white";
    context.fillRect(0, 0, width, tall);
    context.drawImage(bitmap, 0, -top);
    const strip = context.getImageData(0, 0, width, tall).data;
    for (let i = 0; i < strip.length; i += 4) {
      data[at++] = strip[i];
      data[at++] = strip[i + 1];
      data[at++] = strip[i + 2];
    }
  }
  bitmap.close();
  return { data, width, height, channels: 3 };
}

// Return notes on files that browsers decode differently from vitft.
async function fileNotes(file) {
  const head = new Uint8Array(await file.slice(0, 26).arrayBuffer());
  const isPng = [0x89, 0x50, 0x4e, 0x47].every((byte, i) => head[i] === byte);
  if (!isPng || head[24] !== 16) return [];
  return [meta.transform.grey_range ? `${WIDE_PNG} without the grey range of the training images: the prediction may be wrong` : WIDE_PNG];
}

function scores(view) {
  const { feature, intermediate } = model.features(normalise(view, meta.transform), meta.intermediate);
  return { feature, intermediate, logits: model.classify(feature) };
}

// Return the probabilities of all classes or labels, notes, and seconds for decoding, resizing and the model.
async function classify(file) {
  const times = [performance.now()], lap = () => times.push(performance.now());
  const notes = await fileNotes(file), image = await decode(file);
  lap();
  const view = viewOf(image, meta.transform);
  lap();
  const { feature, intermediate, logits } = scores(view.data);
  lap();
  if (!logits.every(Number.isFinite)) throw new Error("the logits of the model are not finite");
  if (reference && scoreOf(feature, intermediate, reference) > meta.limit) notes.unshift("unlike the training images");
  const probabilities = meta.thresholds.length ? Array.from(logits, (x) => 1 / (1 + Math.exp(-x))) : softmax(logits);
  return { probabilities, notes, seconds: times.slice(1).map((t, i) => (t - times[i]) / 1000) };
}

self.onmessage = async ({ data: { id, file, description, parts } }) => {
  try {
    postMessage(parts ? { warning: load(description, parts) } : { id, ...await classify(file) });
  } catch (error) {
    postMessage({ id, problem: error.message });
  }
};
