// Read the tensors of the page, which vitft/export/formats/html_weights.py wrote.
"use strict";

// Return all 65,536 values of float16 as float32.
function halfTable() {
  return Float32Array.from({ length: 65536 }, (_, bits) => {
    const sign = bits & 0x8000 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
    if (exponent === 0) return sign * fraction * 2 ** -24;
    return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);  // infinity and NaN do not occur
  });
}

// Return the tensors by name, as { shape, data }, given their descriptions and the bytes of all tensors. A tensor
// is stored as float32 (`f32`), or in blocks of 8-bit integers (`i8`) or float16 (`f16`), which follow the float32
// scales of the blocks. Numbers are little-endian, as in every browser.
function readTensors(described, bytes) {
  const halves = halfTable(), tensors = {};
  let at = 0;
  const next = (Type, count) => {
    const part = new Type(bytes.slice(at, at + count * Type.BYTES_PER_ELEMENT));
    at += part.byteLength;
    return part;
  };
  for (const { name, shape, type, block } of described) {
    const size = shape.reduce((a, b) => a * b, 1);
    const scales = block ? next(Float32Array, size / block) : null;
    const data = type === "f32" ? next(Float32Array, size) : new Float32Array(size);
    if (type === "f16") next(Uint16Array, size).forEach((bits, i) => { data[i] = halves[bits]; });
    if (type === "i8") next(Int8Array, size).forEach((value, i) => { data[i] = value; });
    if (block) for (let i = 0; i < size; i++) data[i] *= scales[Math.floor(i / block)];
    tensors[name] = { shape, data };
  }
  if (at !== bytes.byteLength) throw new Error("the weights are incomplete");
  return tensors;
}
