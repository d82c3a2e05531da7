/* ---- where a number comes from: the formula of the part that computed its array ---- */

/* The step of the walk that computed an array, if one did. */
const makerOf = (name) => page.data.walk.find((step) => step.out === name);

/* y = x · W[r] + b[r], of the map with this role of a step: its lines, and what it costs. The bias is put in where there is one. */
function tellMap(step, role, y, r, result, x = "x") {
  const width = step.facts.maps?.[role]?.width ?? page.data.run.config.d_model;
  return { lines: mapLines(step, role, y, r, result, x), flops: 2 * width, bytes: 8 * width };
}
function mapLines(step, role, y, r, result, x = "x") {
  const formula = `${y} = ${mapText(step, role, r, x)}`, b = biasOf(step, role, r);
  return [...(b === null ? [`${formula} = ${formatResult(result, RESULT_DIGITS)}`] : [formula, equation`${result - b} + ${b} = ${result}`]), ...mapWords(step, role, x)];
}
const biasOf = ({ values }, role, r) => hasValue(values[`${role}_bias`]) ? valueAt(values[`${role}_bias`], r) : null;
const mapText = (step, role, r, x = "x") => `${x} · W[${r}]${biasOf(step, role, r) === null ? "" : ` + b[${r}]`}`;
/* What x · W is, and the names of the matrix and of the bias in the file. */
function mapWords({ facts }, role, x = "x") {
  const map = facts.maps?.[role];
  return map ? [{ soft: labelled(`${x} · W`, t("sum over the {n} features of x times a row of the matrix", { n: formatCount(map.width) })) }, ...tensorWords({ W: map.weight, b: map.bias })] : [];
}
/* The names in the file of what the letters of a formula stand for. */
function tensorWords(names) {
  const known = Object.entries(names).filter(([, name]) => name);
  return known.length ? [{ soft: known.map(([letter, name]) => `${letter} = ${name}`).join(", ") }] : [];
}

/* The activations that a calculator has, by the name of their function: [letters, numbers]. */
const ACTIVATIONS = {
  relu: ["max(0, x)", (x) => expression`max(0, ${x})`], relu_squared: ["max(0, x)^2", (x) => expression`max(0, ${x})^2`], gelu: ["x · Φ(x)", (x) => expression`${x} · Φ(${x})`],
  "gelu (tanh)": ["x / 2 · (1 + tanh(√(2 / π) · (x + 0.044715 · x^3)))", (x) => expression`${x} / 2 · (1 + tanh(√(2 / 3.14159265) · (${x} + 0.044715 · ${x}^3)))`],
  silu: ["x · σ(x)", (x) => expression`${x} · σ(${x})`], tanh: ["tanh(x)", (x) => expression`tanh(${x})`], sigmoid: ["σ(x)", (x) => expression`σ(${x})`],
};
function activatedLines(name, y, x, result) {
  const [letters, write] = ACTIVATIONS[name.toLowerCase()] ?? [];
  return write ? [`${y} = ${letters}`, equation`${write(x)} = ${result}`] : [`${y} = ${name}(${formatNumber(x)}) = ${formatNumber(result)}`];
}

/* What the inspector says of a number of a step's output; `fixed` is its row where the drawing has no other. */
const tellOutput = (label, step, fixed = null) => plainTell(label, step.out, step, (r, c) => OUTPUT_LINES[step.kind]?.(step, r, c) ?? [], fixed);

/* What it says of a number that is drawn again: formula, part and source of where it was computed. */
const tellAgain = (label, name, step, fixed = null) => (r, c) => {
  const maker = makerOf(name);
  if (!maker) return plainTell(label, name, step, [], fixed)(r, c);
  const spec = tellOutput(label, maker, fixed)(r, c), station = page.stations.find(({ steps }) => steps.includes(maker));
  return station && station !== currentStation() ? { ...spec, lines: [...spec.lines, { soft: t("Computed at: {station}", { station: fullName(station) }) }] } : spec;
};

/* The formula of number c of row r of a step's output, by the kind of the step. */
const OUTPUT_LINES = {
  embedding: (step, r, c) => enteringLines(step, step.side, r, c),
  position: (step, r, c) => sumLines([step.in, step.values.rows], step.out, r, c),
  norm: normLines,
  residual: ({ values, facts, out }, r, c) => sumLines([values.x, ...branchesOf(values)], out, r, c, facts.scale, facts.skip),
  attention: joinedLines,
  linear_attention: joinedLines,
  feed_forward: (step, r, c) => tellMap(step, "down", "y", c, row(step.out, r)[c], "a"),
  moe: expertsLines,
  recurrent: bothDirectionsLines,
  conv: convolutionLines,
  projection: mappedLines,
  pooling: pooledLines,
  activation: (step, r, c) => activatedLines(step.facts.activation ?? step.class, "y", row(step.in, r)[c], row(step.out, r)[c]),
};

/* A number of a learned map, with its activation; r is the row of a token, or 0 of the vector of a text. */
function mappedLines(step, r, c) {
  const { facts, values, out } = step, result = row(out, r)[c];
  if (!facts.activation) return tellMap(step, "proj", "y", c, result);
  const sum = valueAt(values.sum, c), map = tellMap(step, "proj", "u", c, sum);
  return { ...map, lines: [...activatedLines(facts.activation, "y", sum, result), ...map.lines] };
}

/* An activation of the sum over the window, or a value through its gate. */
function convolutionLines({ values, facts, out }, r, c) {
  const { activation } = facts, of = (name) => row(name, r)[c];
  if (values.gate) return ["y = v · σ(g)", equation`${of(values.value)} · σ(${of(values.gate)}) = ${of(out)}`];
  return activation === "identity" ? [`y = v = ${formatNumber(of(out))}`] : activatedLines(activation, "y", of(values.value), of(out));
}
/* The value or the gate of feature c: a map of the tokens of the window, side by side. */
const windowLines = (step, role, r, c) => tellMap(step, "conv", role === "gate" ? "g" : "v", c + (role === "gate" ? page.data.run.config.d_model : 0), row(step.values[role], r)[c], "[x₁; …; xₖ]");
/* Terms and their sum; `skip` is the factor of the first term, `scale` that of all others. */
function sumLines(terms, out, r, c, scale = 1, skip = 1) {
  const numbers = terms.map((name) => row(name, r)[c]), by = (factor, number) => factor === 1 ? number : expression`${factor} · ${number}`;
  return [equation`${numbers.map((number, i) => by(i ? scale : skip, number))} = ${row(out, r)[c]}`];
}
/* What a residual adds: the output of a part, or of several in parallel. */
const branchesOf = (values) => Object.keys(values).filter((role) => role.startsWith("branch")).map((role) => values[role]);

/* ---- embedding ---- */
/* The number of a token's row in the table. */
function tableLines({ values, facts }, side, i, c) {
  const { id } = sideOf(side).tokens[windowOf(side)[0] + i];
  return [`E[${id}, ${c}] = ${formatNumber(row(values.rows, i)[c])}`, ...tensorWords({ E: facts?.maps?.token?.weight })];
}
const segmentLines = ({ values, facts }, i, c) => [`S[${facts.segments[i]}, ${c}] = ${formatNumber(row(values.segment, i)[c])}`, ...tensorWords({ S: facts.maps.segment.weight })];
/* What enters the layers: a number of the table, times the scale, or its map; with the segment. */
function enteringLines(step, side, i, c) {
  const { values, facts, out } = step, scale = facts?.scale ?? 1, { id } = sideOf(side).tokens[windowOf(side)[0] + i], result = row(out, i)[c];
  const first = values.projected ? `e · W[${c}]` : `E[${id}, ${c}]${scale === 1 ? "" : " · √d"}`, e = values.projected ? row(values.projected, i)[c] : row(values.rows, i)[c];
  const number = values.projected || scale === 1 ? e : expression`${e} · ${scale}`, names = { E: values.projected ? null : facts?.maps?.token?.weight, W: facts?.maps?.proj?.weight, S: facts?.maps?.segment?.weight };
  if (!values.segment) return [number === e ? `${first} = ${formatNumber(e)}` : first, ...(number === e ? [] : [equation`${number} = ${result}`]), ...tensorWords(names)];
  return [`${first} + S[${facts.segments[i]}, ${c}]`, equation`${number} + ${row(values.segment, i)[c]} = ${result}`, ...tensorWords(names)];
}
/* Row i of a table of positions: a bucket of T5, a distance of Shaw. */
const tellTableRow = (step, role, i, c) => ({ title: t("{name}, row {r}, column {c}", { name: TABLE_NAMES[role]?.() ?? role, ...(role === "table" ? { r: c, c: i } : { r: i, c }) }), value: row(step.values[role], i)[c], shape: shapeOf(step.values[role]), step, flops: 0, bytes: 4,
  lines: [`${TABLE_LETTERS[role] ?? role}[${i}, ${c}] = ${formatNumber(row(step.values[role], i)[c])}`, ...tensorWords({ [TABLE_LETTERS[role] ?? role]: step.facts.maps?.[role]?.weight })] });
const TABLE_LETTERS = { table: "B", key: "a", value: "a" };

/* ---- norm ---- */
/* The mean and the spread that a norm takes for feature c of row r: those of the token, or running ones of the feature. */
function normParts({ values, out }, r, c = 0) {
  const isPerToken = page.data.values[out].by === "token", at = isPerToken ? r : c, isRms = hasValue(values.mean_square);
  return { isPerToken, isRms, mean: hasValue(values.mean) ? valueAt(values.mean, at) : 0, spread: valueAt(values.mean_square ?? values.variance, at) };
}
function normLines(step, r, c) {
  const { values, facts } = step, { mean, spread, isRms } = normParts(step, r, c), read = (name) => hasValue(name) ? valueAt(name, c) : null, w = read(values.weight), b = read(values.bias);
  const x = row(step.in, r)[c], above = isRms ? expression`${x}` : expression`(${x} − ${mean})`, gain = w === null ? "" : facts.zero_centered ? expression` · (1 + ${w})` : expression` · ${w}`, shift = b === null ? "" : expression` + ${b}`;
  return [`${isRms ? "x / √(mean(x²) + ε)" : "(x − μ) / √(σ² + ε)"}${w === null ? "" : facts.zero_centered ? " · (1 + g)" : " · g"}${b === null ? "" : " + b"}`, equation`${above} / √(${spread} + ${facts.eps})${gain}${shift} = ${row(step.out, r)[c]}`];
}

/* ---- attention ---- */
function joinedLines(step, r, c) {
  const result = row(step.out, r)[c];
  return step.facts.projected ? tellMap(step, "o", "y", c, result, "o") : { lines: [`y = o[${c}] = ${formatNumber(result)}`], flops: 0, bytes: 4 };
}

/* The formula of a number of a query or key whose pairs are turned by the position, of head h and row r. */
function turnedLines(name, h, r, c) {
  const { x, cos, sin, layout } = page.data.values[name], before = row(x, h, r), pairs = shapeOf(cos)[1], isHalf = layout === "half";
  if (c >= 2 * pairs) return [`y = x = ${formatNumber(before[c])}`, { soft: t("This feature is not turned.") }];
  const i = isHalf ? c % pairs : Math.floor(c / 2), isFirst = isHalf ? c < pairs : c % 2 === 0, [a, b] = isHalf ? [before[i], before[i + pairs]] : [before[2 * i], before[2 * i + 1]];
  const [u, v] = [row(cos, r)[i], row(sin, r)[i]], result = row(name, h, r)[c];
  return isFirst ? ["x′ = x·cos θ − y·sin θ", equation`${a} · ${u} − ${b} · ${v} = ${result}`] : ["y′ = x·sin θ + y·cos θ", equation`${a} · ${v} + ${b} · ${u} = ${result}`];
}

/* ---- the vector of a text ---- */
/* Number c of the vector that the tokens are pooled into. */
function pooledLines(step, _, c) {
  const { values, facts } = step, result = valueAt(values.pooled, c), norm = (text) => facts.norm ? `${facts.norm}(${text})` : text;
  if (!facts.activation || facts.map_first) {
    const mapped = `m = ${norm(`${facts.activation}(${mapText(step, "proj", c)})`)}`;
    return facts.activation ? [...pooledNumbers("m", facts.pooling, values.mapped, c, result), { soft: mapped }] : pooledNumbers("x", facts.pooling, step.in, c, result);
  }
  const sum = valueAt(values.sum, c), map = tellMap(step, "proj", "u", c, sum, "x̄"), words = { soft: t("x̄: the pooled vector") };
  const lines = facts.norm ? [`y = ${norm(`${facts.activation}(u)`)} = ${formatNumber(result)}`] : activatedLines(facts.activation, "y", sum, result);
  return { ...map, lines: [...lines, ...map.lines, words] };
}
/* The mean or the largest of a feature of all tokens, or that of one token. */
function pooledNumbers(x, pooling, name, c, result) {
  const n = sideOf(0).tokens.length, numbers = d3.range(shapeOf(name)[0]).map((r) => row(name, r)[c]), some = numbers.slice(0, n > 8 ? 4 : n);
  const all = numbers.length === n ? numbers : [...numbers, result];
  return { pool_mean: () => [`y = Σ ${x} / T`, equation`(${addedTerms(some, result * n, some.length, n)}) / ${n} = ${result}`], pool_max: () => [`y = max(${x})`, equation`max(${{ parts: joinParts(all, ", ") }}) = ${result}`],
    pool_first_token: () => [`y = ${x}[0] = ${formatNumber(result)}`], pool_last_token: () => [`y = ${x}[T − 1] = ${formatNumber(result)}`] }[pooling]?.() ?? [];
}

/* ---- feed-forward ---- */
/* A number of the unit in column c, by its role: what enters the activation, what it gives, the gated product. */
function tellUnit(step, r, c, role) {
  const { values, facts } = step, unit = values.unit ? Math.round(row(values.unit, r)[c]) : c, of = (name) => row(values[name], r)[c];
  if (role === "pre") return tellMap(step, facts.is_gated ? "gate" : "up", facts.is_gated ? "g" : "u", unit, of("pre"));
  if (role === "up") return tellMap(step, "up", "u", unit, of("up"));
  if (role === "act") return { lines: activatedLines(facts.activation ?? "f", "a", of("pre"), of("act")), flops: 1, bytes: 4 };
  return { lines: ["a · u", equation`${of("act")} · ${of("up")} = ${of("hidden")}`], flops: 1, bytes: 8 };
}

/* ---- mixture of experts ---- */
/* What an expert writes: its bias is a row of those of all experts. */
function tellExpertOutput({ values, facts }, e, c, result) {
  const units = page.data.run.config.d_ff, b = hasValue(values.down_bias) ? row(values.down_bias, e)[c] : null, words = { soft: labelled("a · W", t("sum over the {n} units", { n: formatCount(units) })) };
  return { lines: b === null ? [`E(x) = a · W[${c}] = ${formatNumber(result)}`, words] : [`E(x) = a · W[${c}] + b[${c}]`, equation`${result - b} + ${b} = ${result}`, words], flops: 2 * units, bytes: 8 * units };
}
function expertsLines({ values, out }, r, c) {
  const terms = [...row(values.weight, r)].map((weight, i) => ({ term: expression`${weight}·${row(values.written, r, i)[c]}`, value: weight * row(values.written, r, i)[c] }));
  return ["y = Σ w · E(x)", equation`${someTerms(terms.slice(0, 4), terms.length, row(out, r)[c])} = ${row(out, r)[c]}`];
}

/* ---- recurrent networks ---- */
const logistic = (x) => 1 / (1 + Math.exp(-x));
/* The row of the token that the network read before that of row r; it may lie outside of the window. */
const rowBefore = ({ facts }, r) => facts.is_reverse ? r + 1 : r - 1;
const isFirstRead = (step, r) => rowBefore(step, r) < 0 || rowBefore(step, r) >= shapeOf(step.values.state)[0];
/* The cell of an LSTM, or the state of another network, before the token of row r. */
function stateBefore(step, r) {
  const { cell, state, start } = step.values;
  return isFirstRead(step, r) ? page.arrays.get(start).data : row(cell ?? state, rowBefore(step, r));
}
function beforeLines(step, r, c) {
  const isCell = hasValue(step.values.cell);
  if (!isFirstRead(step, r)) return (isCell ? cellLines : recurrentLines)(step, rowBefore(step, r), c);
  const { tokens, window } = sideOf(step.side), isWholeText = step.facts.is_reverse ? window[1] === tokens.length : window[0] === 0, number = stateBefore(step, r)[c];
  if (!isWholeText) return [{ soft: t("From the tokens before, which are not shown.") }];
  if (step.side === 0) return [`${isCell ? "c" : "h"}₀ = 0`, { soft: t("The network starts from 0.") }];
  const words = { soft: t("s₁ and sₙ: the first and the last vector of the source") };
  if (isCell) return [...mapLines(step, "start", "c₀", c, number, "[s₁; sₙ]"), words];
  return ["h₀ = tanh(u)", equation`tanh(${Math.atanh(number)}) = ${number}`, ...mapLines(step, "start", "u", c, Math.atanh(number), "[s₁; sₙ]"), words];
}

/* The values of a gate: its logistic function, or the tanh of a candidate. */
function gateValues({ values, facts }, letter, r) {
  if (letter === "n") return row(values.a, r).map((a, c) => Math.tanh(a + logistic(row(values.r, r)[c]) * row(values.u, r)[c]));
  return row(values[letter], r).map(letter === "g" ? Math.tanh : logistic);
}
/* The sum that enters a gate: its row of the maps of the token and of the state before, and their biases. */
const GATE_ORDER = { LSTM: "ifgo", GRU: "rzn", RNN: "a" };
function gateSumLines(step, letter, r, c) {
  const { network, units, maps } = step.facts, at = GATE_ORDER[network].indexOf(letter) * units + c, sum = row(step.values[letter], r)[c], biases = ["x", "state"].map((role) => biasOf(step, role, at)).filter((b) => b !== null);
  const formula = `${letter} = x · W[${at}] + h₋₁ · U[${at}]${biases.length ? ` + b[${at}] + d[${at}]` : ""}`;
  return [...(biases.length ? [formula, equation`${[sum - d3.sum(biases), ...biases]} = ${sum}`] : [`${formula} = ${formatNumber(sum)}`]),
    { soft: t("sum over the {n} features of x and the {k} numbers of the state before, each times a row of its matrix", { n: maps.x.width, k: units }) }, ...tensorWords({ W: maps.x.weight, U: maps.state.weight, b: maps.x.bias, d: maps.state.bias })];
}
function gateLines(step, letter, r, c) {
  const { values } = step, of = (role) => row(values[role], r)[c], result = gateValues(step, letter, r)[c];
  if (letter === "n") {
    const at = 2 * step.facts.units + c, { maps } = step.facts;
    const part = (role, y, product, biasName, bias = biasOf(step, role, at)) => bias === null ? [`${y} = ${product}[${at}] = ${formatNumber(of(y))}`] : [`${y} = ${product}[${at}] + ${biasName}[${at}]`, equation`${of(y) - bias} + ${bias} = ${of(y)}`];
    return ["n = tanh(a + σ(r) · u)", equation`tanh(${of("a")} + σ(${of("r")}) · ${of("u")}) = ${result}`, ...part("x", "a", "x · W", "b"), ...part("state", "u", "h₋₁ · U", "d"), { soft: t("a: what the token adds; u: what the state before adds") },
      ...tensorWords({ W: maps.x.weight, U: maps.state.weight, b: maps.x.bias, d: maps.state.bias })];
  }
  return [letter === "g" ? "tanh(g)" : `σ(${letter})`, letter === "g" ? equation`tanh(${of(letter)}) = ${result}` : equation`σ(${of(letter)}) = ${result}`, ...gateSumLines(step, letter, r, c)];
}
function cellLines(step, r, c) {
  const of = (role) => row(step.values[role], r)[c];
  return ["c = σ(f) · c₋₁ + σ(i) · tanh(g)", equation`σ(${of("f")}) · ${stateBefore(step, r)[c]} + σ(${of("i")}) · tanh(${of("g")}) = ${of("cell")}`];
}
function recurrentLines(step, r, c) {
  const { values, facts } = step, of = (role) => row(values[role], r)[c];
  if (facts.network === "LSTM") return ["h = σ(o) · tanh(c)", equation`σ(${of("o")}) · tanh(${of("cell")}) = ${of("state")}`];
  if (facts.network === "GRU") return ["h = (1 − σ(z)) · n + σ(z) · h₋₁", equation`(1 − σ(${of("z")})) · ${gateValues(step, "n", r)[c]} + σ(${of("z")}) · ${stateBefore(step, r)[c]} = ${of("state")}`];
  return ["h = tanh(a)", equation`tanh(${of("a")}) = ${of("state")}`, ...gateSumLines(step, "a", r, c)];
}
/* The output of a network, or of two that read in opposite directions side by side. */
function bothDirectionsLines(step, r, c) {
  const { units } = step.facts, isJoined = shapeOf(step.out)[1] > units, { walk } = page.data;
  return isJoined && c < units ? recurrentLines(walk[walk.indexOf(step) - 1], r, c) : recurrentLines(step, r, isJoined ? c - units : c);
}
