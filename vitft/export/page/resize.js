// Resizing and cropping exactly as Pillow does: the equivalent of EvalTransform.pixels (vitft/data/transforms.py)
// and of Pillow's Resample.c. The same pixels give the same bytes.
"use strict";

const PRECISION = 2 ** 22;  // filter weights are integers in units of 1 / PRECISION, as in Pillow
const MAX_ASPECT = 100, MAX_RESIZED_PIXELS = 2 ** 26;  // limits of EvalTransform

function sinc(x) {
  return x === 0 ? 1 : Math.sin(Math.PI * x) / (Math.PI * x);
}

// Pillow's filters, and the distance (in pixels of the result) at which each becomes zero.
const FILTERS = {
  bilinear: { reach: 1, value: (x) => Math.max(0, 1 - Math.abs(x)) },
  bicubic: {
    reach: 2,
    value(x) {
      x = Math.abs(x);
      if (x < 1) return (1.5 * x - 2.5) * x * x + 1;
      return x < 2 ? (((x - 5) * x + 8) * x - 4) * -0.5 : 0;
    },
  },
  lanczos: { reach: 3, value: (x) => (x >= -3 && x < 3 ? sinc(x) * sinc(x / 3) : 0) },
};

// Round half to even, as Python does.
function roundHalfEven(x) {
  const whole = Math.floor(x), rest = x - whole;
  return rest > 0.5 || (rest === 0.5 && whole % 2 !== 0) ? whole + 1 : whole;
}

// Return the width and height to which an image is resized before the crop (EvalTransform.resized).
function resizedSize(transform, width, height) {
  const [tall, wide] = transform.image_size.map((side) => Math.floor(side / transform.crop));
  if (transform.fit === "squash") return [wide, tall];
  if (transform.fit === "pad") {
    const ratio = Math.max(height / tall, width / wide);
    return [Math.max(1, roundHalfEven(width / ratio)), Math.max(1, roundHalfEven(height / ratio))];
  }
  if (tall === wide) {
    const scaled = Math.floor(tall * Math.max(width, height) / Math.min(width, height));
    return width <= height ? [tall, scaled] : [scaled, tall];
  }
  const ratio = Math.min(height / tall, width / wide);
  return [Math.max(wide, roundHalfEven(width / ratio)), Math.max(tall, roundHalfEven(height / ratio))];
}

// Return the weights of the source pixels for the pixels `first` to `first + count` of one axis, which is
// resized from the part `from` to `to` of `size` pixels to `resized` pixels. Pixel i of the result is the sum
// over k < reach of weights[i * reach + k] * source[starts[i] + k].
function filterWeights(filter, size, from, to, resized, first, count) {
  const scale = Math.fround(to - from) / resized, shrink = Math.max(scale, 1);
  const support = filter.reach * shrink, reach = 2 * Math.ceil(support) + 1;
  const weights = new Int32Array(count * reach), starts = new Int32Array(count);
  for (let i = 0; i < count; i++) {
    const centre = from + (first + i + 0.5) * scale;
    const start = Math.max(0, Math.trunc(centre - support + 0.5));
    const end = Math.min(size, Math.trunc(centre + support + 0.5));
    const exact = [];
    let total = 0;
    for (let x = start; x < end; x++) {
      const weight = filter.value((x - centre + 0.5) * (1 / shrink));
      exact.push(weight);
      total += weight;
    }
    starts[i] = start;
    exact.forEach((weight, k) => {
      const scaled = (total === 0 ? weight : weight / total) * PRECISION;
      weights[i * reach + k] = Math.trunc(scaled + (scaled < 0 ? -0.5 : 0.5));
    });
  }
  return { weights, starts, reach };
}

// Filter the rows `first` to `end` of an image along x. Values are interleaved: `channels` for each pixel.
function filterAlongX({ data, width, channels }, axis, first, end) {
  const { weights, starts, reach } = axis, count = starts.length;
  const result = new Uint8Array((end - first) * count * channels);
  for (let y = first; y < end; y++) {
    for (let i = 0; i < count; i++) {
      const start = (y * width + starts[i]) * channels, stop = (i + 1) * reach;
      for (let c = 0; c < channels; c++) {
        let sum = PRECISION / 2;
        // Weights past the last source pixel are zero, and so is their product with a missing value.
        for (let k = i * reach, at = start + c; k < stop; k++, at += channels) sum += weights[k] * (data[at] | 0);
        result[((y - first) * count + i) * channels + c] = toByte(sum);
      }
    }
  }
  return { data: result, width: count, height: end - first, channels };
}

// Filter the columns of an image along y. Row 0 of `image` is row `offset` of the image that `axis` refers to.
function filterAlongY({ data, width, height, channels }, axis, offset) {
  const { weights, starts, reach } = axis, count = starts.length, row = width * channels;
  const result = new Uint8Array(count * row), sums = new Float64Array(row);
  for (let i = 0; i < count; i++) {
    sums.fill(PRECISION / 2);
    for (let k = 0; k < reach; k++) {
      const weight = weights[i * reach + k], start = (starts[i] - offset + k) * row;
      if (weight !== 0) for (let x = 0; x < row; x++) sums[x] += weight * data[start + x];
    }
    for (let x = 0; x < row; x++) result[i * row + x] = toByte(sums[x]);
  }
  return { data: result, width, height: count, channels };
}

function toByte(sum) {
  return Math.min(255, Math.max(0, Math.floor(sum / PRECISION)));
}

// Return the part of an image with the given corner and size, as a new image.
function cropped({ data, width, channels }, left, top, wide, tall) {
  const result = new Uint8Array(wide * tall * channels);
  for (let y = 0; y < tall; y++) {
    const start = ((top + y) * width + left) * channels;
    result.set(data.subarray(start, start + wide * channels), y * wide * channels);
  }
  return { data: result, width: wide, height: tall, channels };
}

// Centre an image in a larger one that is filled with the mean colour (EvalTransform.framed).
function padded({ data, width, height, channels }, wide, tall, mean) {
  const colour = mean.map((value) => Math.min(255, Math.max(0, roundHalfEven(255 * value))));
  const result = new Uint8Array(wide * tall * channels).map((_, i) => colour[i % channels]);
  const left = Math.floor((wide - width) / 2), top = Math.floor((tall - height) / 2);
  for (let y = 0; y < height; y++) {
    const row = data.subarray(y * width * channels, (y + 1) * width * channels);
    result.set(row, ((top + y) * wide + left) * channels);
  }
  return { data: result, width: wide, height: tall, channels };
}

// Convert RGB to grey as Pillow does.
function toGrey({ data, width, height }) {
  const grey = new Uint8Array(width * height);
  for (let i = 0, at = 0; i < grey.length; i++, at += 3) {
    grey[i] = (19595 * data[at] + 38470 * data[at + 1] + 7471 * data[at + 2] + 32768) >>> 16;
  }
  return { data: grey, width, height, channels: 1 };
}

// Return the model's view of an RGB image { data, width, height, channels: 3 }: bytes (S, S, 3), or (S, S, 1)
// for a grey model. `transform` has the fields of EvalTransform. Like
// Pillow 13, it filters along y first if resizing removes rows, and over twice as many as columns.
function viewOf(rgb, transform) {
  const image = transform.mean.length === 1 ? toGrey(rgb) : rgb;
  const [wide, tall] = resizedSize(transform, image.width, image.height);
  const size = transform.image_size;
  const height = Math.min(size[0], tall), width = Math.min(size[1], wide);  // smaller than the view if padded
  const left = roundHalfEven((wide - width) / 2), top = roundHalfEven((tall - height) / 2);
  const isLarge = Math.max(wide, tall) > MAX_ASPECT * Math.min(wide, tall) || wide * tall > MAX_RESIZED_PIXELS;
  const filter = FILTERS[transform.interpolation];
  let x = null, y = null;  // null: this axis keeps its size
  if (transform.fit === "crop" && isLarge) {  // only the part inside the crop is resized
    const across = image.width / wide, down = image.height / tall;
    const [x0, x1] = [left * across, (left + width) * across].map(Math.fround);
    const [y0, y1] = [top * down, (top + height) * down].map(Math.fround);
    x = filterWeights(filter, image.width, x0, x1, width, 0, width);
    y = filterWeights(filter, image.height, y0, y1, height, 0, height);
    return resample(image, x, y, 0, 0, width, height, width, height);
  }
  if (wide !== image.width) x = filterWeights(filter, image.width, 0, image.width, wide, left, width);
  if (tall !== image.height) y = filterWeights(filter, image.height, 0, image.height, tall, top, height);
  const part = resample(image, x, y, left, top, width, height, wide, tall);
  return transform.fit === "pad" ? padded(part, size[1], size[0], transform.mean) : part;
}

// Filter an image along both axes, with rounding to bytes in between, and crop the axes that keep their size.
function resample(image, x, y, left, top, width, height, wide, tall) {
  const lostRows = image.height - tall, lostColumns = image.width - wide;
  const part = cropped.bind(null, image);
  if (x && y && lostRows > 0 && lostRows > 2 * lostColumns) {
    return filterAlongX(filterAlongY(image, y, 0), x, 0, height);
  }
  if (x && y) {
    const first = y.starts[0];
    const end = Math.min(image.height, y.starts[height - 1] + y.reach);
    return filterAlongY(filterAlongX(image, x, first, end), y, first);
  }
  if (x) return filterAlongX(image, x, top, top + height);
  if (y) return filterAlongY(part(left, 0, width, image.height), y, 0);
  return part(left, top, width, height);
}
