/* ---- a number as lines of NumPy: from the tensors of model.safetensors, and the vector that goes in as the page has it ---- */
const plainText = (number) => String(Number(number.toPrecision(9)));
const arrayText = (numbers) => `np.array([${[...numbers].map(plainText).join(", ")}])`;
const tensorText = (name, ...index) => `W["${name}"]${index.length ? `[${index.join(", ")}]` : ""}`;
/* The map with this role of a vector x of so many features, of its row r or of all rows; throws without such a matrix in the file. */
function mapCode(step, role, width, r = null, x = "x") {
  const { weight, bias, width: own } = step.facts.maps?.[role] ?? {}, at = r === null ? [] : [r];
  if (!weight || own !== width) throw new Error("no matrix");
  return `${x} @ ${tensorText(weight, ...at)}${r === null ? ".T" : ""}${bias ? ` + ${tensorText(bias, ...at)}` : ""}`;
}
/* The vector of row r of an array, and the map of it. */
const vectorCode = (step, name, r, role, at) => [`x = ${arrayText(row(name, r))}`, `y = ${mapCode(step, role, shapeOf(name).at(-1), at)}`];
const ACTIVATION_CODE = { relu: "np.maximum(u, 0)", relu_squared: "np.maximum(u, 0) ** 2", gelu: "u * (1 + np.vectorize(math.erf)(u / 2 ** 0.5)) / 2", "gelu (tanh)": "u / 2 * (1 + np.tanh((2 / np.pi) ** 0.5 * (u + 0.044715 * u ** 3)))", silu: "u / (1 + np.exp(-u))", tanh: "np.tanh(u)", sigmoid: "1 / (1 + np.exp(-u))" };
/* The units of a feed-forward layer, all of them or one. */
function unitCode(step, r, unit, role) {
  const { facts } = step, x = row(step.in, r), gate = facts.is_gated ? "gate" : "up", activation = ACTIVATION_CODE[facts.activation?.toLowerCase()], lines = [`x = ${arrayText(x)}`, `u = ${mapCode(step, role === "up" ? "up" : gate, x.length, unit)}`];
  if (role === "pre" || role === "up") return [...lines, "y = u"];
  if (!activation) throw new Error("no activation");
  return [...lines, `a = ${activation}`, ...(role === "hidden" && facts.is_gated ? [`a = a * (${mapCode(step, "up", x.length, unit)})`] : []), "y = a"];
}
/* All logits, or that of one token, with their scale and cap. */
function logitCode(position, id = null) {
  const step = headStep(), x = row(step.in, lastRow(step, position)), { scale = 1, softcap } = step.facts;
  return [`x = ${scale === 1 ? "" : `${scale} * `}${arrayText(x)}`, `z = ${mapCode(step, "head", x.length, id)}`, ...(softcap ? [`z = ${softcap} * np.tanh(z / ${softcap})`] : [])];
}
const embeddingRow = ({ side }, r) => sideOf(side).tokens[windowOf(side)[0] + r].id;

/* The lines of a number, of which the last gives it the name y: of an output by the kind of the step, of a value by its role. */
const OUTPUT_CODE = {
  embedding: (step, r, c) => {
    const { facts, values } = step, { token, proj, segment } = facts.maps, scale = facts.scale === 1 ? "" : ` * ${facts.scale}`;
    const lines = values.projected ? [`x = ${tensorText(token.weight, embeddingRow(step, r))}${scale}`, `y = ${mapCode(step, "proj", proj.width, c)}`] : [`y = ${tensorText(token.weight, embeddingRow(step, r), c)}${scale}`];
    return values.segment ? [...lines, `y = y + ${tensorText(segment.weight, facts.segments[r], c)}`] : lines;
  },
  position: ({ in: before, values }, r, c) => [`y = ${plainText(valueAt(before, r, c))} + ${plainText(valueAt(values.rows, r, c))}`],
  residual: ({ values, facts }, r, c) => [`y = ${facts.skip} * ${plainText(valueAt(values.x, r, c))} + ${facts.scale} * (${branchesOf(values).map((name) => plainText(valueAt(name, r, c))).join(" + ")})`],
  norm: (step, r, c) => {
    const { values, facts } = step, { isPerToken, isRms, mean, spread } = normParts(step, r, c), { weight, bias } = facts.maps.norm, names = isPerToken ? isRms ? ["0", "np.mean(x ** 2)"] : ["x.mean()", "x.var()"] : [plainText(mean), plainText(spread)];
    return [`x = ${arrayText(row(step.in, r))}`, `y = (x[${c}] - ${names[0]}) / np.sqrt(${names[1]} + ${facts.eps})${values.weight ? ` * (${facts.zero_centered ? "1 + " : ""}${tensorText(weight, c)})` : ""}${values.bias ? ` + ${tensorText(bias, c)}` : ""}`];
  },
  attention: (step, r, c) => vectorCode(step, step.values.joined, r, "o", c),
  feed_forward: (step, r, c) => [...unitCode(step, r, null, "hidden").slice(0, -1), `y = ${mapCode(step, "down", step.facts.units, c, "a")}`],
  projection: (step, r, c) => step.facts.activation ? null : vectorCode(step, step.in, r, "proj", c),
  activation: (step, r, c) => [`u = ${plainText(valueAt(step.in, r, c))}`, `y = ${ACTIVATION_CODE[(step.facts.activation ?? "").toLowerCase()]}`],
};
const VALUE_CODE = {
  rows: (step, r, c) => {
    const { facts, side } = step, p = windowOf(side)[0] + r;
    if (step.kind === "embedding") return [`y = ${tensorText(facts.maps.token.weight, embeddingRow(step, r), c)}`];
    if (facts.maps?.rows) return [`y = ${tensorText(facts.maps.rows.weight, p + (facts.offset ?? 0), c)}`];
    const { isSine, angle } = waveOf(step, c, p), [at, base, pair, over] = angle.parts.filter((one) => typeof one === "number");
    return [`y = np.${isSine ? "sin" : "cos"}(${at} / ${base} ** (${pair} / ${over}))`];
  },
  q: (step, h, r, c) => headCode(step, "q", h, r, c, step.in), q_raw: (step, h, r, c) => headCode(step, "q_raw", h, r, c, step.in), v: (step, h, r, c) => headCode(step, "v", h, r, c, keysIn(step)), k: (step, h, r, c) => headCode(step, "k", h, r, c, keysIn(step)), k_raw: (step, h, r, c) => headCode(step, "k_raw", h, r, c, keysIn(step)),
  scores: (step, h, q, k) => {
    const { facts, values } = step, cap = facts.softcap, bias = hasValue(values.bias) ? valueAt(values.bias, Math.min(h, shapeOf(values.bias)[0] - 1), q, k) : 0;
    return [`q = ${arrayText(row(values.q, h, q))}`, `k = ${arrayText(row(values.k, kvHead(step, h), k))}`, `y = q @ k * ${facts.scale}`, ...(cap ? [`y = ${cap} * np.tanh(y / ${cap})`] : []), ...(bias ? [`y = y + ${plainText(bias)}`] : [])];
  },
  weights: (step, h, q, k) => {
    const { scores, outside } = softmaxParts(step, q), seen = d3.range(scores.length).filter((one) => !hiddenCode(step, q, one));
    return [`s = ${arrayText([...seen.map((one) => scores[one]), ...(outside > -Infinity ? [outside] : [])])}`, "e = np.exp(s - s.max())", `y = e[${seen.indexOf(k)}] / e.sum()`];
  },
  mix: (step, h, q, c) => {
    const { values } = step, weights = row(values.weights, h, q), more = ["value_bias", "outside_mix"].filter((role) => hasValue(values[role])).map((role) => ` + ${plainText(valueAt(values[role], h, q, c))}`);
    return [`w = ${arrayText(weights)}`, `v = ${arrayText(d3.range(weights.length).map((k) => valueAt(values.v, kvHead(step, h), k, c)))}`, `y = w @ v${more.join("")}`];
  },
  joined: (step, r, j) => { const [, ...at] = mixCell(step, r, j); return VALUE_CODE.mix(step, ...at); },
  ...Object.fromEntries(["pre", "act", "up", "hidden"].map((role) => [role, (step, r, c) => unitCode(step, r, unitOf(step, r, c), role)])),
  scaled: (step, r, c) => [`y = ${tensorText(step.facts.maps.token.weight, embeddingRow(step, r), c)} * ${step.facts.scale}`],
};
function headCode(step, role, h, r, c, input) {
  const { values, facts } = step, name = values[role], width = shapeOf(name)[2], pair = turnedPair(name, c);
  if (!facts.projected || (facts.qk_norm && role !== "v")) return null;
  if (!pair) return vectorCode(step, input, r, role[0], h * width + c);
  const x = row(input, r), [u, v] = pair.isFirst ? ["a", "b"] : ["b", "a"];
  return [`x = ${arrayText(x)}`, ...[["a", pair.a], ["b", pair.b]].map(([letter, i]) => `${letter} = ${mapCode(step, role[0], x.length, h * width + i)}`), `y = ${u} * ${plainText(valueAt(pair.cos, r, pair.i))} ${pair.isFirst ? "-" : "+"} ${v} * ${plainText(valueAt(pair.sin, r, pair.i))}`];
}

/* The program of a cell; null for a number that the page and the file have no terms of. */
function numpyOf([name, ...index]) {
  const { step, role } = roleOf(name), [position, id] = index;
  let lines = null;
  try {
    lines = name === "logit" ? [...logitCode(position, id), "y = z"] : name === "probability" ? [...logitCode(position), "p = np.exp(z - z.max())", `y = p[${id}] / p.sum()`]
      : (role === "out" ? OUTPUT_CODE[step.kind] : VALUE_CODE[role])?.(step, ...index);
  } catch { /* a part of another kind */ }
  if (!lines) return null;
  const text = lines.join("\n"), needs = (part, line) => text.includes(part) ? [line] : [];
  return [...needs("math.", "import math"), "import numpy as np", ...needs('W["', "from safetensors.numpy import load_file"), ...needs('W["', 'W = load_file("model.safetensors")'), text, "print(y)", ""].join("\n");
}

function copyButton(cell) {
  const text = numpyOf(cell), say = (event, words) => { event.target.textContent = words; };
  return text && h("button", { type: "button", class: "turn copy", "data-focus": "copy-numpy", onclick: (event) => copyText(text).then(() => say(event, t("Copied")), () => say(event, t("Not allowed"))) }, t("Copy as NumPy"));
}
