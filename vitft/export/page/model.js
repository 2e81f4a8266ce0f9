// The Vision Transformer in plain JavaScript, for one image: the equivalent of vitft/models/numpy_vit.py, which
// cites the sources. It needs no library. Products are computed in double precision and stored as float32.
//
// Notation: S image side in pixels, N tokens (prefix + patches), D width, H heads, K head width, C classes.
// A matrix (rows, columns) is a Float32Array in row-major order.
"use strict";

// matrix products ---------------------------------------------------------------------------------------------

// The product of two matrices is computed in tiles of 4 x 4 dot products, which V8 keeps in registers. For this,
// both factors are packed: four rows form a panel, in which the values of each column lie side by side. Missing
// rows are zero. Value (i, k) of the matrix is source[start + i * rowStep + k * columnStep].
function packed(source, rows, inner, start = 0, rowStep = inner, columnStep = 1) {
  const panels = new Float32Array(Math.ceil(rows / 4) * 4 * inner);
  for (let i = 0; i < rows; i++) {
    const at = (i >> 2) * 4 * inner + (i & 3), from = start + i * rowStep;
    for (let k = 0; k < inner; k++) panels[at + 4 * k] = source[from + k * columnStep];
  }
  return panels;
}

// Write a (n, inner) times the transpose of b (f, inner), both packed, plus a bias (f) if there is one, into a
// matrix: value (i, j) becomes result[start + i * rowStep + j].
function multiply(a, b, n, f, inner, bias, result, start, rowStep) {
  const tile = new Float64Array(16);
  for (let j = 0; j < f; j += 4) {
    for (let i = 0; i < n; i += 4) {
      let p = i * inner, q = j * inner;
      let s00 = 0, s01 = 0, s02 = 0, s03 = 0, s10 = 0, s11 = 0, s12 = 0, s13 = 0;
      let s20 = 0, s21 = 0, s22 = 0, s23 = 0, s30 = 0, s31 = 0, s32 = 0, s33 = 0;
      for (const end = p + 4 * inner; p < end; p += 4, q += 4) {
        const x0 = a[p], x1 = a[p + 1], x2 = a[p + 2], x3 = a[p + 3];
        const w0 = b[q], w1 = b[q + 1], w2 = b[q + 2], w3 = b[q + 3];
        s00 += x0 * w0; s01 += x0 * w1; s02 += x0 * w2; s03 += x0 * w3;
        s10 += x1 * w0; s11 += x1 * w1; s12 += x1 * w2; s13 += x1 * w3;
        s20 += x2 * w0; s21 += x2 * w1; s22 += x2 * w2; s23 += x2 * w3;
        s30 += x3 * w0; s31 += x3 * w1; s32 += x3 * w2; s33 += x3 * w3;
      }
      tile[0] = s00; tile[1] = s01; tile[2] = s02; tile[3] = s03;
      tile[4] = s10; tile[5] = s11; tile[6] = s12; tile[7] = s13;
      tile[8] = s20; tile[9] = s21; tile[10] = s22; tile[11] = s23;
      tile[12] = s30; tile[13] = s31; tile[14] = s32; tile[15] = s33;
      const rows = Math.min(4, n - i), columns = Math.min(4, f - j);
      for (let r = 0; r < rows; r++) {
        const at = start + (i + r) * rowStep + j;
        for (let c = 0; c < columns; c++) result[at + c] = tile[4 * r + c] + (bias ? bias[j + c] : 0);
      }
    }
  }
}

// A linear layer: x (n, inner) to x times the transpose of the weight (f, inner), plus the bias.
class Linear {
  constructor(weight, f, bias, firstRow = 0) {
    this.inner = weight.data.length / weight.shape[0];
    this.f = f;
    this.weight = packed(weight.data, f, this.inner, firstRow * this.inner);
    this.bias = bias ? bias.data.slice(firstRow, firstRow + f) : null;
  }

  apply(x) {
    const n = x.length / this.inner, result = new Float32Array(n * this.f);
    multiply(packed(x, n, this.inner), this.weight, n, this.f, this.inner, this.bias, result, 0, this.f);
    return result;
  }
}

// functions of single values ----------------------------------------------------------------------------------

// For x >= 0, (1 - Phi(x)) exp(x^2 / 2) is a polynomial in 1 / (1 + BEND x), where Phi is the standard normal
// distribution function. The coefficients are those of numpy_vit.py.
const TAIL = [
  -0.004772713412583007, 0.16212970454817136, -0.1169266968126065, 0.6784044098003498,
  -0.7767180176870074, 0.8124795498247189, -0.2879519273475093, 0.03335568965996974,
];
const BEND = 0.28;

const ACTIVATIONS = {
  gelu(x) {  // x Phi(x)
    const size = Math.abs(x), t = 1 / (1 + BEND * size);
    let tail = TAIL[7];
    for (let i = 6; i >= 0; i--) tail = tail * t + TAIL[i];
    return Math.max(x, 0) - size * tail * Math.exp(-0.5 * x * x);
  },
  gelu_tanh: (x) => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x * x * x))),
  quick_gelu: (x) => 0.5 * x * (1 + Math.tanh(0.851 * x)),
};

function add(x, y) {
  for (let i = 0; i < x.length; i++) x[i] += y[i];
  return x;
}

// Return the softmax of a list of logits.
function softmax(logits) {
  const largest = logits.reduce((a, b) => Math.max(a, b), -Infinity);
  const exponentials = Array.from(logits, (x) => Math.exp(x - largest));
  const total = exponentials.reduce((a, b) => a + b, 0);
  return exponentials.map((x) => x / total);
}

// Replace each row of a matrix (rows, columns) with its softmax.
function softmaxRows(x, rows, columns) {
  for (let i = 0; i < rows; i++) {
    const row = x.subarray(i * columns, (i + 1) * columns);
    let largest = -Infinity, total = 0;
    for (let j = 0; j < columns; j++) largest = Math.max(largest, row[j]);
    for (let j = 0; j < columns; j++) total += row[j] = Math.exp(row[j] - largest);
    for (let j = 0; j < columns; j++) row[j] /= total;
  }
}

// the model ---------------------------------------------------------------------------------------------------

class Model {
  // `config` has the fields of ViTConfig; `tensors` maps timm's names to { shape, data }.
  constructor(config, tensors) {
    Object.assign(this, { config, tensors, linears: {} });
    this.width = config.width;
    for (let i = 0; i < config.depth; i++) {
      const name = `blocks.${i}.attn.qkv.`;
      const [weight, bias] = [tensors[`${name}weight`], tensors[`${name}bias`]];
      this.linears[`${name}q`] = new Linear(weight, this.width, bias);
      this.linears[`${name}kv`] = new Linear(weight, 2 * this.width, bias, this.width);
      delete tensors[`${name}weight`];
    }
    for (const [name, weight] of Object.entries(tensors)) {
      const layer = name.replace(/weight$/, "");
      if (weight.shape.length < 2 || layer === name) continue;
      this.linears[layer] = new Linear(weight, weight.shape[0], tensors[`${layer}bias`]);
      delete tensors[name];  // only the packed copy is needed
    }
  }

  linear(x, name) {
    return this.linears[name].apply(x);
  }

  // Return the pooled feature of a view, given as normalised pixels (S, S, channels), and the intermediate feature
  // of the first `blocks` blocks (null if `blocks` is 0).
  features(pixels, blocks = 0) {
    const { depth, pool, read_blocks: readBlocks, num_prefix: prefix, norm_before_pool: early } = this.config;
    let intermediate = null;
    const D = this.width, earlier = [], lastNorm = pool === "mean" && !early ? "fc_norm." : "norm.";
    let x = this.embed(pixels);  // (N, D)
    for (let i = 0; i < depth; i++) {
      const isLast = i === depth - 1 && pool === "cls";
      x = this.block(x, `blocks.${i}.`, isLast ? this.config.num_read : x.length / D);
      if (i >= depth - readBlocks && i < depth - 1) {
        const token = pool === "cls" ? [x.subarray(0, D)] : [];
        earlier.push(this.norm(joined([...token, this.mean(x, prefix)]), lastNorm));
      }
      if (i + 1 === blocks) intermediate = this.norm(pool === "cls" ? x.subarray(0, D) : this.mean(x, prefix), lastNorm);
    }
    let last = null;
    if (pool !== "mean") last = this.norm(x, lastNorm);  // only the class tokens are left
    else last = early ? this.mean(this.norm(x, lastNorm), prefix) : this.norm(this.mean(x, prefix), lastNorm);
    return { feature: joined([last, ...earlier]), intermediate };
  }

  // Return the mean of the tokens from index `first` on: (D).
  mean(x, first) {
    const D = this.width, n = x.length / D - first, sums = new Float64Array(D);
    for (let i = first * D; i < x.length; i++) sums[i % D] += x[i];
    return Float32Array.from(sums, (sum) => sum / n);
  }

  // Convert normalised pixels (S, S, channels) to tokens with position embeddings: (N, D).
  embed(pixels) {
    const { image_size: [height, width], patch_size: [down, across], in_channels: channels } = this.config;
    const rows = height / down, columns = width / across, size = channels * down * across;
    const patches = new Float32Array(rows * columns * size);
    let at = 0;
    for (let row = 0; row < rows; row++) {
      for (let column = 0; column < columns; column++) {
        for (let c = 0; c < channels; c++) {
          for (let y = row * down; y < (row + 1) * down; y++) {
            for (let x = column * across; x < (column + 1) * across; x++) {
              patches[at++] = pixels[(y * width + x) * channels + c];
            }
          }
        }
      }
    }
    const tokens = this.linear(patches, "patch_embed.proj."), positions = this.tensors.pos_embed.data;
    const prefix = ["cls_token", "dist_token", "reg_token"].filter((name) => name in this.tensors);
    const before = prefix.map((name) => this.tensors[name].data);
    const x = this.config.prefix_positions
      ? add(joined([...before, tokens]), positions)
      : joined([...before, add(tokens, positions)]);
    return this.config.embed_norm ? this.norm(x, "norm_pre.") : x;
  }

  // Return the first `rows` tokens after one encoder block: (N, D) to (rows, D).
  block(x, name, rows) {
    const kept = x.slice(0, rows * this.width);
    if (this.config.norm === "post") {
      add(kept, this.scaled(this.attention(x, name, rows), `${name}ls1.`));
      const middle = this.norm(kept, `${name}norm1.`);
      return this.norm(add(middle, this.scaled(this.mlp(middle, name), `${name}ls2.`)), `${name}norm2.`);
    }
    add(kept, this.scaled(this.attention(this.norm(x, `${name}norm1.`), name, rows), `${name}ls1.`));
    return add(kept, this.scaled(this.mlp(this.norm(kept, `${name}norm2.`), name), `${name}ls2.`));
  }

  // Return the attention output of the first `rows` tokens: (N, D) to (rows, D).
  attention(x, name, rows) {
    const D = this.width, K = D / this.config.heads, N = x.length / D;
    const q = this.linear(x.subarray(0, rows * D), `${name}attn.qkv.q`);  // (rows, D)
    const kv = this.linear(x, `${name}attn.qkv.kv`);  // (N, 2 D)
    for (let i = 0; i < q.length; i++) q[i] /= Math.sqrt(K);
    const mixed = new Float32Array(rows * D), weights = new Float32Array(rows * N);
    for (let head = 0; head < this.config.heads; head++) {
      const queries = packed(q, rows, K, head * K, D), keys = packed(kv, N, K, head * K, 2 * D);
      multiply(queries, keys, rows, N, K, null, weights, 0, N);
      softmaxRows(weights, rows, N);
      const values = packed(kv, K, N, D + head * K, 1, 2 * D);  // transposed: (K, N)
      multiply(packed(weights, rows, N), values, rows, K, N, null, mixed, head * K, D);
    }
    return this.linear(mixed, `${name}attn.proj.`);
  }

  // Apply two linear layers with an activation function in between to each token.
  mlp(x, name) {
    const hidden = this.linear(x, `${name}mlp.fc1.`), activation = ACTIVATIONS[this.config.activation];
    for (let i = 0; i < hidden.length; i++) hidden[i] = activation(hidden[i]);
    return this.linear(hidden, `${name}mlp.fc2.`);
  }

  // Apply the LayerNorm `name` to each token.
  norm(x, name) {
    const D = this.width, result = new Float32Array(x.length);
    const { data: weight } = this.tensors[`${name}weight`], { data: bias } = this.tensors[`${name}bias`];
    for (let start = 0; start < x.length; start += D) {
      let mean = 0, variance = 0;
      for (let i = 0; i < D; i++) mean += x[start + i] / D;
      for (let i = 0; i < D; i++) variance += (x[start + i] - mean) ** 2 / D;
      const scale = 1 / Math.sqrt(variance + this.config.norm_eps);
      for (let i = 0; i < D; i++) result[start + i] = (x[start + i] - mean) * scale * weight[i] + bias[i];
    }
    return result;
  }

  // Apply the LayerScale `name`, if the model has it.
  scaled(x, name) {
    const gamma = this.tensors[`${name}gamma`];
    if (gamma) for (let i = 0; i < x.length; i++) x[i] *= gamma.data[i % this.width];
    return x;
  }

  // Return the logits (C) of a pooled feature.
  classify(feature) {
    if (this.config.distilled) {  // mean of the two heads' logits
      const ofDistillation = this.linear(feature.subarray(this.width), "head_dist.");
      return add(this.linear(feature.subarray(0, this.width), "head."), ofDistillation).map((x) => x / 2);
    }
    if (this.config.pre_logits) feature = this.linear(feature, "pre_logits.fc.").map(Math.tanh);
    return this.linear(feature, "head.");
  }
}

function joined(parts) {
  const result = new Float32Array(parts.reduce((size, part) => size + part.length, 0));
  let at = 0;
  for (const part of parts) {
    result.set(part, at);
    at += part.length;
  }
  return result;
}

// Normalise a view: bytes (S, S, channels) to floats.
function normalise(view, { mean, std }) {
  const channels = mean.length;
  return Float32Array.from(view, (byte, i) => (byte / 255 - mean[i % channels]) / std[i % channels]);
}

// images unlike the training images -----------------------------------------------------------------------------

// Return the score of an image: the equivalent of Reference.scores (vitft/features/reference.py).
function scoreOf(feature, intermediate, reference) {
  const last = distanceOf(feature, reference.last);
  if (!reference.intermediate) return last;
  return (Math.cbrt(last) + Math.cbrt(distanceOf(intermediate, reference.intermediate))) ** 3;
}

// Return the squared Mahalanobis distance of a feature to the nearest class mean: the equivalent of
// ClassStatistics.distances (vitft/features/reference.py), for d leading dimensions.
function distanceOf(feature, { centre, within, means }) {
  const d = centre.data.length, z = new Float64Array(d);
  for (let i = 0; i < d; i++) {
    const value = feature[i] - centre.data[i];
    for (let j = 0; j < d; j++) z[j] += value * within.data[i * d + j];
  }
  let nearest = Infinity;
  for (let start = 0; start < means.data.length; start += d) {
    let square = 0;
    for (let j = 0; j < d; j++) square += (z[j] - means.data[start + j]) ** 2;
    nearest = Math.min(nearest, square);
  }
  return nearest;
}
