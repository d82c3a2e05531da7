/* ---- where a number comes from: the formula of the part that computed its array ---- */

/* The step of the walk that computed an array, if one did. */
const makerOf = (name) => page.data.walk.find((step) => step.out === name);

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
  feed_forward: ({ values, facts }) => ["y = a · W", t("sum over the {n} units", { n: formatCount(facts.units ?? shapeOf(values.act)[1]) })],
  moe: expertsLines,
  recurrent: bothDirectionsLines,
  conv: convolutionLines,
  projection: ({ shape, facts }) => [facts.activation ? `y = ${facts.activation}(x · W + b)` : "y = x · W (+ b)", sumOfFeatures(shape.in[shape.in.length - 1])],
  pooling: pooledLines,
  activation: (step, r, c) => [`${step.class}(${formatNumber(row(step.in, r)[c])}) = ${formatNumber(row(step.out, r)[c])}`],
};

/* An activation of the sum over the window, or a value through its gate. */
function convolutionLines({ values, facts, out }, r, c) {
  const { activation } = facts, shown = (name) => formatNumber(row(name, r)[c]);
  if (values.gate) return ["y = v · σ(g)", `${shown(values.value)} · σ(${shown(values.gate)}) = ${shown(out)}`];
  return activation === "identity" ? ["y = v"] : [`y = ${activation}(v)`, `${activation === "relu" ? "max(0, " : `${activation}(`}${shown(values.value)}) = ${shown(out)}`];
}
/* Terms and their sum; `skip` is the factor of the first term, `scale` that of all others. */
function sumLines(terms, out, r, c, scale = 1, skip = 1) {
  const [first, ...rest] = terms.map((name) => row(name, r)[c]), by = (factor) => factor === 1 ? "" : `${formatNumber(factor)} · `;
  return [`${[by(skip) + (skip === 1 ? formatNumber : bracket)(first), ...rest.map((one) => by(scale) + bracket(one, 4))].join(" + ")} = ${formatNumber(row(out, r)[c])}`];
}
/* What a residual adds: the output of a part, or of several in parallel. */
const branchesOf = (values) => Object.keys(values).filter((role) => role.startsWith("branch")).map((role) => values[role]);

/* ---- norm ---- */
/* The mean and the spread that a norm takes for feature c of row r: those of the token, or running ones of the feature. */
function normParts({ values, out }, r, c = 0) {
  const isPerToken = page.data.values[out].by === "token", at = isPerToken ? r : c, isRms = hasValue(values.mean_square);
  return { isPerToken, isRms, mean: hasValue(values.mean) ? valueAt(values.mean, at) : 0, spread: valueAt(values.mean_square ?? values.variance, at) };
}
function normLines(step, r, c) {
  const { values, facts } = step, { mean, spread, isRms } = normParts(step, r, c), read = (name) => hasValue(name) ? valueAt(name, c) : null, w = read(values.weight), b = read(values.bias);
  const above = isRms ? formatNumber(row(step.in, r)[c]) : `(${formatNumber(row(step.in, r)[c])} − ${bracket(mean, 4)})`, gain = w === null ? "" : ` · ${facts.zero_centered ? `(1 + ${bracket(w)})` : bracket(w)}`, shift = b === null ? "" : ` + ${bracket(b)}`;
  return [isRms ? "x / √(mean(x²) + ε) · g" : "(x − μ) / √(σ² + ε) · g + b", `${above} / √(${formatNumber(spread)} + ${formatNumber(facts.eps)})${gain}${shift} = ${formatNumber(row(step.out, r)[c])}`];
}

/* ---- attention ---- */
function joinedLines({ values, facts }) {
  const n = hasValue(values.joined) ? shapeOf(values.joined)[1] : facts.heads * facts.v_head_dim;
  return !facts.projected ? ["y = o"] : ["y = o · Wo", t("sum over the {n} features of the joined heads", { n })];
}

/* The formula of a number of a query or key whose pairs are turned by the position, of head h and row r. */
function turnedLines(name, h, r, c) {
  const { x, cos, sin, layout } = page.data.values[name], before = row(x, h, r), pairs = shapeOf(cos)[1], isHalf = layout === "half";
  if (c >= 2 * pairs) return [t("This feature is not turned.")];
  const i = isHalf ? c % pairs : Math.floor(c / 2), isFirst = isHalf ? c < pairs : c % 2 === 0, [a, b] = isHalf ? [before[i], before[i + pairs]] : [before[2 * i], before[2 * i + 1]];
  const [u, v] = [row(cos, r)[i], row(sin, r)[i]].map((one) => bracket(one, 4)), result = formatNumber(row(name, h, r)[c]);
  return isFirst ? ["x′ = x·cos θ − y·sin θ", `${formatNumber(a)} · ${u} − ${bracket(b, 4)} · ${v} = ${result}`] : ["y′ = x·sin θ + y·cos θ", `${formatNumber(a)} · ${v} + ${bracket(b, 4)} · ${u} = ${result}`];
}

/* ---- the vector of a text ---- */
/* Number c of the vector that the tokens are pooled into. */
function pooledLines({ in: x, values, facts }, _, c) {
  if (facts.activation) {
    const map = (letter) => `${facts.activation}(${letter} · W + b)`, normed = (text) => facts.norm ? `${facts.norm}(${text})` : text;
    return facts.map_first ? [`y = Σ ${normed(map("x"))} / T`, sumOfFeatures(page.data.run.config.d_model)] : [`y = ${normed(map("x̄"))}`, sumOfFeatures(page.data.run.config.d_model), { soft: t("x̄: the pooled vector") }];
  }
  const n = sideOf(0).tokens.length, terms = d3.range(shapeOf(x)[0]).map((r) => formatNumber(row(x, r)[c])), some = terms.slice(0, n > 8 ? 4 : n), result = formatNumber(valueAt(values.pooled, c));
  return { pool_mean: () => ["y = Σ x / T", `(${addedText(some, n)}) / ${n} = ${result}`], pool_max: () => [`y = max(${some.join(", ")}${n > some.length ? ", …" : ""}) = ${result}`], pool_first_token: () => [`y = x₁ = ${result}`], pool_last_token: () => [`y = xₙ = ${result}`] }[facts.pooling]?.() ?? [];
}

/* ---- mixture of experts ---- */
function expertsLines({ values, out }, r, c) {
  const weights = [...row(values.weight, r)], terms = weights.slice(0, 4).map((weight, i) => `${formatNumber(weight)}·${bracket(row(values.written, r, i)[c], 4)}`);
  return ["y = Σ w · E(x)", `${addedText(terms, weights.length)} = ${formatNumber(row(out, r)[c])}`];
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
  const { tokens, window } = sideOf(step.side), isWholeText = step.facts.is_reverse ? window[1] === tokens.length : window[0] === 0, sum = "V · [s₁; sₙ] + v";
  if (!isWholeText) return [{ soft: t("From the tokens before, which are not shown.") }];
  if (step.side === 0) return [{ soft: t("The network starts from 0.") }];
  return [isCell ? `c₀ = ${sum}` : `h₀ = tanh(${sum})`, { soft: t("s₁ and sₙ: the first and the last vector of the source, {n} features, times a row of the matrix V", { n: 2 * page.data.run.config.d_model }) }];
}

/* The values of a gate: its logistic function, or the tanh of a candidate. */
function gateValues({ values, facts }, letter, r) {
  if (letter === "n") return row(values.a, r).map((a, c) => Math.tanh(a + logistic(row(values.r, r)[c]) * row(values.u, r)[c]));
  return row(values[letter], r).map(letter === "g" ? Math.tanh : logistic);
}
const sumOfState = ({ facts }) => ({ soft: t("sum over the {n} features of x and the {k} numbers of the state before, each times a row of its matrix", { n: page.data.run.config.d_model, k: facts.units }) });
function gateLines(step, letter, r, c) {
  const { values } = step, shown = (role) => formatNumber(row(values[role], r)[c]), result = formatNumber(gateValues(step, letter, r)[c]);
  if (letter === "n") return ["n = tanh(a + σ(r) · u)", `tanh(${shown("a")} + σ(${shown("r")}) · ${bracket(row(values.u, r)[c], 4)}) = ${result}`, { soft: t("a: what the token adds; u: what the state before adds") }];
  return [`${letter} = x · W + h₋₁ · U + b`, `${letter === "g" ? "tanh" : "σ"}(${shown(letter)}) = ${result}`, sumOfState(step)];
}
function cellLines(step, r, c) {
  const shown = (role) => formatNumber(row(step.values[role], r)[c]);
  return ["c = σ(f) · c₋₁ + σ(i) · tanh(g)", `σ(${shown("f")}) · ${bracket(stateBefore(step, r)[c], 4)} + σ(${shown("i")}) · tanh(${shown("g")}) = ${shown("cell")}`];
}
function recurrentLines(step, r, c) {
  const { values, facts } = step, shown = (role) => formatNumber(row(values[role], r)[c]);
  if (facts.network === "LSTM") return ["h = σ(o) · tanh(c)", `σ(${shown("o")}) · tanh(${shown("cell")}) = ${shown("state")}`];
  if (facts.network === "GRU") return ["h = (1 − σ(z)) · n + σ(z) · h₋₁", `(1 − σ(${shown("z")})) · ${bracket(gateValues(step, "n", r)[c], 4)} + σ(${shown("z")}) · ${bracket(stateBefore(step, r)[c], 4)} = ${shown("state")}`];
  return ["h = tanh(x · W + h₋₁ · U)", `tanh(${shown("a")}) = ${shown("state")}`, sumOfState(step)];
}
/* The output of a network, or of two that read in opposite directions side by side. */
function bothDirectionsLines(step, r, c) {
  const { units } = step.facts, isJoined = shapeOf(step.out)[1] > units, { walk } = page.data;
  return isJoined && c < units ? recurrentLines(walk[walk.indexOf(step) - 1], r, c) : recurrentLines(step, r, isJoined ? c - units : c);
}
