// Preprocessing of one vitft run in JavaScript, without dependencies: Node, Deno and browsers.
//
// SPDX-License-Identifier: Apache-2.0, like vitft; this file may be copied into other programs.
//
//   import { preprocess } from "./preprocess.mjs";
//   const tensor = preprocess({ samples, width, height, mode: "RGB", depth: "8" });
//
// `node preprocess.mjs` checks all vectors in the folder `vectors` next to this file. Every step is
// described in preprocessing.json. The caller decodes files. A browser's canvas is not suitable for
// images with transparency, because it multiplies colours by alpha and rounds them.

// Constants of the run: begin
const HEIGHT = 224, WIDTH = 224;
const CROP_FRACTION = 0.9;
const FIT = "crop";
const INTERPOLATION = "bicubic";
const MEAN = [0.5, 0.5, 0.5];
const STD = [0.5, 0.5, 0.5];
const GREY_RANGE = [];
// Constants of the run: end

const MODES = { L: 1, LA: 2, RGB: 3, RGBA: 4, CMYK: 4 };
const MAX_SIDE_RATIO = 100, MAX_PIXELS_RESIZED = 2 ** 26;
const FIXED_POINT = 2 ** 22;

/** Return the model's input, a Float32Array of (1, channels, HEIGHT, WIDTH).
 *
 * `pixels` has the fields samples (row by row, channels interleaved), width, height, mode (L, LA,
 * RGB, RGBA or CMYK; L or RGB if the depth is not 8), depth (8, 12 or 16: unsigned bits per sample;
 * i32: signed; f32: floating point), orientation (EXIF, 1 to 8; default 1) and transparent (the value of L pixels with more
 * than 8 bits that is shown as white; default none). */
export function preprocess(pixels) {
  return tensorOf(viewOf(turned(rgbBytesOf(pixels), pixels.orientation ?? 1)));
}

/** Convert pixels to RGB bytes composited on white; grey for a model with one channel. */
export function rgbBytesOf({ samples, width, height, mode, depth, transparent = -1 }) {
  if (depth !== "8") samples = bytesOf(samples, depth, transparent);
  const channels = MODES[mode], data = new Uint8Array(3 * width * height);
  for (let i = 0; i < width * height; i++) {
    const pixel = samples.subarray(i * channels, (i + 1) * channels);
    for (let c = 0; c < 3; c++) {
      let level = pixel[channels < 3 ? 0 : c];
      if (mode === "LA" || mode === "RGBA") {
        const alpha = pixel[channels - 1];
        level = div255(255 * (255 - alpha) + level * alpha);
      } else if (mode === "CMYK") {
        const light = 255 - pixel[3];
        level = Math.max(0, light - div255(level * light));
      }
      data[3 * i + c] = level;
    }
    if (MEAN.length === 1) {
      const [red, green, blue] = data.subarray(3 * i);
      data.fill((19595 * red + 38470 * green + 7471 * blue + 32768) >> 16, 3 * i, 3 * i + 3);
    }
  }
  return { data, width, height };
}

/** Divide an integer from 0 to 255 * 255 by 255, rounded as in Pillow. */
function div255(product) {
  const shifted = product + 128;
  return ((shifted >> 8) + shifted) >> 8;
}

/** Convert grey or RGB with more than 8 bits to bytes. */
function bytesOf(samples, depth, transparent) {
  const grey = new Uint8Array(samples.length), single = Math.fround;
  const unit = depth === "f32" && !GREY_RANGE.length && samples.every((v) => !(v > 1)) ? 255 : 1;
  samples.forEach((value, i) => {
    if (GREY_RANGE.length) {
      const [low, high] = GREY_RANGE, round = depth === "i32" ? (x) => x : single;
      let level = round(round(value) - round(low));
      level = Math.min(Math.max(Number.isNaN(level) ? 0 : level, 0), round(high - low));
      grey[i] = roundHalfEven(round(level * round(255 / (high - low))));
    } else if (depth === "f32") {
      const level = Number.isNaN(value) ? 0 : Math.min(Math.max(value, -1), 255);
      grey[i] = Math.min(Math.max(roundHalfEven(single(level * unit)), 0), 255);
    } else {
      const bits = depth === "12" ? 12 : 16;
      grey[i] = Math.min(Math.max(value, 0), 2 ** bits - 1) >> (bits - 8);
    }
    if (transparent >= 0 && value === transparent && (GREY_RANGE.length || depth !== "f32")) {
      grey[i] = 255;
    }
  });
  return grey;
}

function roundHalfEven(x) {
  const below = Math.floor(x), rest = x - below;
  return rest < 0.5 || (rest === 0.5 && below % 2 === 0) ? below : below + 1;
}

/** Rotate and flip an image so that it is upright. */
export function turned({ data, width, height }, orientation) {
  const swaps = orientation >= 5 && orientation <= 8;
  const [wide, tall] = swaps ? [height, width] : [width, height];
  const flipsRows = [3, 4, 7, 8].includes(orientation);
  const flipsColumns = [2, 3, 6, 7].includes(orientation);
  const result = new Uint8Array(data.length);
  for (let y = 0; y < tall; y++) {
    for (let x = 0; x < wide; x++) {
      const row = flipsRows ? tall - 1 - y : y, column = flipsColumns ? wide - 1 - x : x;
      const source = swaps ? column * width + row : row * width + column;
      for (let c = 0; c < 3; c++) result[3 * (y * wide + x) + c] = data[3 * source + c];
    }
  }
  return { data: result, width: wide, height: tall };
}

/** Return the height and width to which an image is resized before the crop. */
function resizedSidesOf(height, width) {
  const tall = Math.floor(HEIGHT / CROP_FRACTION), wide = Math.floor(WIDTH / CROP_FRACTION);
  if (FIT === "squash") return [tall, wide];
  if (tall === wide) {
    const longer = Math.floor((tall * Math.max(height, width)) / Math.min(height, width));
    return width <= height ? [longer, tall] : [tall, longer];
  }
  const ratio = Math.min(height / tall, width / wide);
  return [
    Math.max(tall, roundHalfEven(height / ratio)), Math.max(wide, roundHalfEven(width / ratio)),
  ];
}

/** Resize and crop an upright image to the view, a Uint8Array of (HEIGHT, WIDTH, 3). */
export function viewOf(image) {
  const sides = [image.height, image.width], crop = [HEIGHT, WIDTH];
  let target = resizedSidesOf(...sides);
  let first = [0, 1].map((i) => roundHalfEven((target[i] - crop[i]) / 2));
  let boxes = sides.map((side) => [0, side]);
  const isLarge = Math.max(...target) / Math.min(...target) > MAX_SIDE_RATIO
    || target[0] * target[1] > MAX_PIXELS_RESIZED;
  if (FIT === "crop" && isLarge) {  // only the part inside the crop is resized
    boxes = [0, 1].map((i) => {
      const scale = sides[i] / target[i];
      return [Math.fround(first[i] * scale), Math.fround((first[i] + crop[i]) * scale)];
    });
    [first, target] = [[0, 0], crop];
  }
  const lost = [sides[0] - target[0], sides[1] - target[1]];
  const rowsFirst = lost[0] > 0 && lost[0] > 2 * lost[1];
  for (const axis of rowsFirst ? [0, 1] : [1, 0]) {
    image = resampled(image, axis, boxes[axis], target[axis], first[axis], crop[axis]);
  }
  return image.data;
}

/** Resize an image along one axis to `size`, computing only `count` positions from `first`. */
function resampled({ data, width, height }, axis, box, size, first, count) {
  const begin = box[0], scale = Math.fround(box[1] - box[0]) / size;
  const length = axis ? width : height, others = axis ? height : width;
  const filters = filtersOf(begin, scale, box, size, first, count, length);
  const result = new Uint8Array(3 * count * others);
  const step = axis ? 3 : 3 * width, across = axis ? 3 * width : 3;
  const newStep = axis ? 3 : 3 * width, newAcross = axis ? 3 * count : 3;
  filters.forEach(([start, weights], position) => {
    for (let other = 0; other < others; other++) {
      for (let c = 0; c < 3; c++) {
        let total = FIXED_POINT / 2, place = start * step + other * across + c;
        for (const weight of weights) {
          total += weight * data[place];
          place += step;
        }
        result[position * newStep + other * newAcross + c] =
          Math.min(Math.max(Math.floor(total / FIXED_POINT), 0), 255);
      }
    }
  });
  return axis
    ? { data: result, width: count, height } : { data: result, width, height: count };
}

/** Return for each position the first pixel that contributes to it, and the integer weights. */
function filtersOf(begin, scale, box, size, first, count, length) {
  const filters = [];
  if (INTERPOLATION === "nearest") {
    let place = begin + scale * 0.5;
    for (let i = 0; i < first + count; i++) {
      if (i >= first) filters.push([Math.floor(place), [FIXED_POINT]]);
      place += scale;
    }
    return filters;
  }
  const isCopy = box[0] === 0 && box[1] === length && size === length;
  for (let i = first; i < first + count; i++) {
    filters.push(isCopy ? [i, [FIXED_POINT]] : filterWeights(begin, scale, i, length));
  }
  return filters;
}

/** Return the first pixel that contributes to a position, and the weights in units of 2^-22. */
function filterWeights(begin, scale, position, length) {
  const wider = Math.max(scale, 1);
  const reach = { bilinear: 1, bicubic: 2, lanczos: 3 }[INTERPOLATION] * wider;
  const centre = begin + (position + 0.5) * scale;
  const start = Math.max(0, Math.trunc(centre - reach + 0.5));
  const end = Math.min(length, Math.trunc(centre + reach + 0.5));
  const weights = [];
  let total = 0;
  for (let x = start; x < end; x++) {
    weights.push(filterAt((x - centre + 0.5) * (1 / wider)));
    total += weights.at(-1);
  }
  return [start, weights.map((weight) => {
    const scaled = (total ? weight / total : weight) * FIXED_POINT;
    return Math.trunc(weight < 0 ? scaled - 0.5 : scaled + 0.5);
  })];
}

/** Return the value of the filter at a distance of `x` pixels. */
function filterAt(x) {
  if (INTERPOLATION === "lanczos") {
    return -3 <= x && x < 3 ? sincAt(x) * sincAt(x / 3) : 0;
  }
  x = Math.abs(x);
  if (INTERPOLATION === "bilinear") return x < 1 ? 1 - x : 0;
  if (x < 1) return (1.5 * x - 2.5) * x * x + 1;  // bicubic with a = -0.5
  return x < 2 ? (((x - 5) * x + 8) * x - 4) * -0.5 : 0;
}

/** Return sin(pi x) / (pi x). */
function sincAt(x) {
  return x ? Math.sin(x * Math.PI) / (x * Math.PI) : 1;
}

/** Normalise a view, and return it as a Float32Array of (1, channels, HEIGHT, WIDTH). */
export function tensorOf(view) {
  const single = Math.fround, size = HEIGHT * WIDTH;
  const tensor = new Float32Array(MEAN.length * size);
  for (let c = 0; c < MEAN.length; c++) {
    const mean = single(MEAN[c]), std = single(STD[c]);
    for (let i = 0; i < size; i++) {
      tensor[c * size + i] = single(single(single(view[3 * i + c] / 255) - mean) / std);
    }
  }
  return tensor;
}

/** Read the bytes of a .pixels file: one line of text, then the samples, little-endian. */
export function readPixels(bytes) {
  const end = bytes.indexOf(10), fields = new TextDecoder().decode(bytes.subarray(0, end));
  const [width, height, mode, depth, orientation, transparent] = fields.split(" ");
  const types = {
    8: Uint8Array, 12: Uint16Array, 16: Uint16Array, i32: Int32Array, f32: Float32Array,
  };
  return {
    samples: new types[depth](bytes.slice(end + 1).buffer), mode, depth,
    width: Number(width), height: Number(height),
    orientation: Number(orientation), transparent: Number(transparent),
  };
}

/** Compare the vectors in a folder bit by bit, and exit with status 1 if any differs. */
async function main() {
  const { readFileSync, readdirSync } = await import("node:fs");
  const { fileURLToPath } = await import("node:url");
  const folder = process.argv[2] ?? fileURLToPath(new URL("./vectors", import.meta.url));
  const names = readdirSync(folder).filter((name) => name.endsWith(".pixels")).sort();
  const wrong = [];
  for (const name of names) {
    const stem = name.slice(0, -".pixels".length);
    const pixels = readPixels(new Uint8Array(readFileSync(`${folder}/${name}`)));
    const view = viewOf(turned(rgbBytesOf(pixels), pixels.orientation));
    const isEqual = (found, suffix) =>
      Buffer.from(found.buffer).equals(readFileSync(`${folder}/${stem}.${suffix}`));
    if (!isEqual(view, "view")) wrong.push(`${stem} (bytes)`);
    else if (!isEqual(tensorOf(view), "tensor")) wrong.push(`${stem} (floats)`);
  }
  const equal = `${names.length - wrong.length} of ${names.length} vectors equal`;
  console.log(wrong.length ? `${equal}, different: ${wrong.join(", ")}` : equal);
  process.exitCode = wrong.length || !names.length ? 1 : 0;
}

if (typeof process !== "undefined" && process.argv?.[1]
  && import.meta.url === (await import("node:url")).pathToFileURL(process.argv[1]).href) {
  await main();
}
