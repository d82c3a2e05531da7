// The arrays of an explanation, as in arrays.py: stored ones are inflated once, derived ones computed when read.
async function openArrays(doc) {
  return new ArrayStore(doc.values, new Uint8Array(await inflateText(doc.data).arrayBuffer()));
}
function inflateText(text) {
  return new Response(new Blob([decodeText(text)]).stream().pipeThrough(new DecompressionStream("deflate")));
}

// Base 85: five characters are four bytes, the first ones the highest; the last group may be shorter
const DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%:()*+-;.=,?@^_`{|}~";
function decodeText(text) {
  const values = new Uint8Array(128);
  [...DIGITS].forEach((digit, i) => { values[digit.charCodeAt(0)] = i; });
  const view = new DataView(new ArrayBuffer(Math.ceil(text.length / 5) * 4));
  for (let i = 0; i < text.length; i += 5) {
    let word = 0;
    for (let j = i; j < i + 5; j++) word = word * 85 + (j < text.length ? values[text.charCodeAt(j)] : 84);
    view.setUint32((i / 5) * 4, word);
  }
  return new Uint8Array(view.buffer, 0, Math.floor((text.length * 4) / 5));
}

class ArrayStore {
  constructor(values, blob) {
    this.values = values;
    this.blob = blob;
    this.cache = new Map();
  }

  // {shape, data: Float64Array} of an array; null for the name null
  get(name) {
    if (name == null) return null;
    if (!this.cache.has(name)) {
      const value = this.values[name];
      const data = value.op ? ARRAY_OPERATIONS[value.op](this, value) : this.stored(value);
      this.cache.set(name, { shape: value.shape, data });
    }
    return this.cache.get(name);
  }

  // one number: at("encoder.layers.0.attn.q", head, token, feature)
  at(name, ...index) {
    const { shape, data } = this.get(name);
    return data[index.reduce((at, i, axis) => at * shape[axis] + i, 0)];
  }

  // the last axis of an array at an index of the others
  row(name, ...index) {
    const { shape, data } = this.get(name);
    const width = shape[shape.length - 1];
    const at = index.reduce((sum, i, axis) => sum * shape[axis] + i, 0) * width;
    return data.subarray(at, at + width);
  }

  stored({ shape, at, scale }) {
    const size = shape.reduce((a, b) => a * b, 1);
    const data = new Float64Array(size);
    for (let i = 0; i < size; i++) {
      let code = 0;
      for (let plane = at.length - 1; plane >= 0; plane--) code = code * 256 + this.blob[at[plane] + i];
      data[i] = (code % 2 ? -(code + 1) / 2 : code / 2) * scale;
    }
    return data;
  }
}

const ARRAY_OPERATIONS = {
  add: (arrays, { args }) => zipArrays(args.map((name) => arrays.get(name).data), (a, b) => a + b),
  scale: (arrays, { x, by }) => arrays.get(x).data.map((a) => a * by),
  mean: (arrays, { x }) => mapRows(arrays.get(x), meanOf),
  mean_square: (arrays, { x }) => mapRows(arrays.get(x), (row) => meanOf(row.map((a) => a * a))),
  variance: (arrays, { x }) =>
    mapRows(arrays.get(x), (row) => {
      const mean = meanOf(row);
      return meanOf(row.map((a) => (a - mean) ** 2));
    }),
  norm: (arrays, value) => {
    const [x, mean, spread, weight, bias] = ["x", "mean", "spread", "weight", "bias"].map((role) => arrays.get(value[role]));
    const width = x.shape[x.shape.length - 1];
    return x.data.map((a, i) => {
      const feature = i % width;
      const j = value.by === "token" ? (i - feature) / width : feature;
      const y = (a - (mean ? mean.data[j] : 0)) / Math.sqrt(spread.data[j] + value.eps);
      return y * (weight ? weight.data[feature] + (value.plus_one ? 1 : 0) : 1) + (bias ? bias.data[feature] : 0);
    });
  },
  softmax: (arrays, value) => {
    const [x, hidden, outside] = ["x", "hidden", "outside"].map((role) => arrays.get(value[role]));
    const width = x.shape[x.shape.length - 1];
    const out = new Float64Array(x.data.length);
    for (let start = 0, row = 0; start < out.length; start += width, row++) {
      const isHidden = (s) => hidden !== null && hidden.data[(start + s) % hidden.data.length] !== 0;
      let top = outside ? outside.data[row] : -Infinity;
      for (let s = 0; s < width; s++) if (!isHidden(s)) top = Math.max(top, x.data[start + s]);
      let total = outside ? Math.exp(outside.data[row] - top) : 0;
      for (let s = 0; s < width; s++) {
        if (!isHidden(s)) total += out[start + s] = Math.exp(x.data[start + s] - top);
      }
      for (let s = 0; s < width; s++) out[start + s] /= total || 1;
    }
    return out;
  },
  ratio: (arrays, value) => {
    const [x, outside] = ["x", "outside"].map((role) => arrays.get(value[role]));
    const width = x.shape[x.shape.length - 1];
    const totals = mapRows(x, (row) => row.reduce((a, b) => a + b, 0));
    return x.data.map((a, i) => {
      const row = Math.floor(i / width);
      return a / (totals[row] + value.eps + (outside ? outside.data[row] : 0));
    });
  },
  mix: (arrays, value) => {
    const [weights, v] = ["weights", "v"].map((role) => arrays.get(value[role]));
    const [heads, queries, keys] = weights.shape;
    const width = v.shape[2];
    const out = new Float64Array(heads * queries * width);
    for (let h = 0; h < heads; h++) {
      const group = Math.floor((h * v.shape[0]) / heads);
      for (let t = 0; t < queries; t++) {
        for (let s = 0; s < keys; s++) {
          const weight = weights.data[(h * queries + t) * keys + s];
          for (let j = 0; weight && j < width; j++) {
            out[(h * queries + t) * width + j] += weight * v.data[(group * keys + s) * width + j];
          }
        }
      }
    }
    return zipArrays([out, ...value.plus.map((name) => arrays.get(name).data)], (a, b) => a + b);
  },
  join: (arrays, { x }) => {
    const { shape, data } = arrays.get(x);
    const [heads, length, width] = shape;
    const out = new Float64Array(data.length);
    for (let i = 0; i < data.length; i++) {
      const feature = i % width;
      const t = Math.floor(i / width) % length;
      const h = Math.floor(i / (width * length));
      out[(t * heads + h) * width + feature] = data[i];
    }
    return out;
  },
  rotate: (arrays, { x, cos, sin, layout }) => {
    const { shape, data } = arrays.get(x);
    const [c, s] = [arrays.get(cos), arrays.get(sin)];
    const [, length, width] = shape;
    const pairs = c.shape[1];
    const out = Float64Array.from(data);
    for (let start = 0, row = 0; start < data.length; start += width, row++) {
      for (let j = 0; j < pairs; j++) {
        const at = (row % length) * pairs + j;
        const [a, b] = layout === "half" ? [start + j, start + j + pairs] : [start + 2 * j, start + 2 * j + 1];
        out[a] = data[a] * c.data[at] - data[b] * s.data[at];
        out[b] = data[b] * c.data[at] + data[a] * s.data[at];
      }
    }
    return out;
  },
};

function zipArrays([first, ...rest], combine) {
  return rest.reduce((total, other) => total.map((a, i) => combine(a, other[i])), first);
}

function mapRows({ shape, data }, map) {
  const width = shape[shape.length - 1];
  const out = new Float64Array(data.length / width);
  for (let row = 0; row < out.length; row++) out[row] = map(data.subarray(row * width, (row + 1) * width));
  return out;
}

function meanOf(row) {
  return row.reduce((a, b) => a + b, 0) / row.length;
}
