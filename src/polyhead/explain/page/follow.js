/* ---- follow a number: from each to the largest terms of its sum, down to the embedding ----
   A cell is a number: [array, ...index], or ["logit" or "probability", position, id]. */

const isSameCell = (a, b) => Boolean(a && b) && String(a) === String(b);
/* The step that has an array, and what it is there: its output, or one of its values. */
function roleOf(name) {
  const maker = makerOf(name), step = maker ?? page.data.walk.find(({ values }) => Object.values(values).includes(name));
  return step ? { step, role: maker ? "out" : Object.keys(step.values).find((role) => step.values[role] === name) } : {};
}
const headStep = () => page.data.walk.findLast(({ kind }) => kind === "head");
/* The row of the last vectors for a position of the output. */
const lastRow = (step, position) => keepIn(position - windowOf(step.side)[0], shapeOf(step.in)[0]);
const numberOf = ([name, ...index]) => valueAt(name, ...index);
/* The vectors of which an attention makes keys and values. */
const keysIn = (step) => isCross(step) ? page.data.walk.findLast(({ side, out }) => side === keySide(step) && out)?.out : step.in;
const unitOf = ({ values }, r, c) => values.unit ? Math.round(valueAt(values.unit, r, c)) : c;

/* A term of a sum: a number of another place, perhaps times a factor. */
const termOf = (cell, factor = 1) => ({ cell, value: factor * numberOf(cell), term: factor === 1 ? expression`${numberOf(cell)}` : expression`${factor}·${numberOf(cell)}` });
/* The largest terms of a product with a row of a matrix, which the file has on the way down from a logit. */
function mapTerms(step, role, t, r, x, cellOf, scale = 1) {
  const [inputs, weights] = page.data.terms?.[`${step.path}.${role}`]?.[`${t}-${r}`] ?? [];
  if (!inputs) return null;
  const terms = inputs.map((i, n) => ({ cell: cellOf(i), value: scale * x[i] * weights[n], term: scale === 1 ? expression`${x[i]}·${weights[n]}` : expression`${scale}·${x[i]}·${weights[n]}` }));
  return { terms, all: step.facts.maps[role].width, bias: biasOf(step, role, r), isCut: true };
}
const vectorTerms = (step, role, t, r, name = step.in) => mapTerms(step, role, t, r, row(name, t), (i) => [name, t, i]);

/* What was added up along the residual path to feature c of row r of an array. */
function writersOf(name, r, c, factor = 1) {
  const maker = makerOf(name), { kind, values, facts } = maker ?? {};
  if (kind === "residual") return [...writersOf(values.x, r, c, factor * facts.skip), ...branchesOf(values).map((one) => termOf([one, r, c], factor * facts.scale))];
  if (kind === "position" && maker.in) return [...writersOf(maker.in, r, c, factor), termOf([values.rows, r, c], factor)];
  return [termOf([name, r, c], factor)];
}
const sumOf = (terms) => ({ terms, all: terms.length, bias: null });
const only = (...cell) => ({ terms: [{ cell, value: numberOf(cell) }] });

/* The terms of a number by what its array is: of an output by the kind of the step, of a value by its role. */
const mixCell = ({ values }, r, j) => { const width = shapeOf(values.mix)[2]; return [values.mix, Math.floor(j / width), r, j % width]; };
const TERMS_OF_OUTPUT = {
  residual: ({ out }, r, c) => sumOf(writersOf(out, r, c)),
  position: ({ out }, r, c) => sumOf(writersOf(out, r, c)),
  norm: (step, r, c) => only(step.in, r, c),
  activation: (step, r, c) => only(step.in, r, c),
  projection: (step, r, c) => shapeOf(step.in).length === 2 ? vectorTerms(step, "proj", r, c) : null,
  embedding: ({ values, facts, out }, r, c) => out === values.rows || values.projected ? null : values.segment ? sumOf([termOf([values.rows, r, c], facts.scale), termOf([values.segment, r, c])]) : only(values.rows, r, c),
  attention: (step, r, c) => { const { joined } = step.values; return step.facts.projected ? mapTerms(step, "o", r, c, row(joined, r), (j) => mixCell(step, r, j)) : only(...mixCell(step, r, c)); },
  feed_forward: (step, r, c) => { const name = step.values.hidden ?? step.values.act; return mapTerms(step, "down", r, c, row(name, r), (i) => [name, r, i]); },
};
const TERMS_OF_VALUE = {
  joined: (step, r, j) => only(...mixCell(step, r, j)),
  mix: (step, h, q, c) => {
    const { values } = step, weights = row(values.weights, h, q), seen = d3.range(weights.length).filter((k) => weights[k] > 0), kv = kvHead(step, h);
    const more = ["value_bias", "outside_mix"].filter((role) => hasValue(values[role])).map((role) => termOf([values[role], h, q, c]));
    return { terms: [...seen.map((k) => termOf([values.v, kv, k, c], weights[k])), ...more] };
  },
  v: (step, kv, k, c) => headTerms(step, "v", kv, k, c, keysIn(step)),
  k: (step, kv, k, c) => headTerms(step, "k", kv, k, c, keysIn(step)), k_raw: (step, kv, k, c) => headTerms(step, "k_raw", kv, k, c, keysIn(step)),
  q: (step, h, q, c) => headTerms(step, "q", h, q, c, step.in), q_raw: (step, h, q, c) => headTerms(step, "q_raw", h, q, c, step.in),
  scores: (step, h, q, k) => { const a = row(step.values.q, h, q), b = row(step.values.k, kvHead(step, h), k), { scale } = step.facts; return { terms: d3.range(a.length).map((i) => ({ cell: [step.values.q, h, q, i], value: scale * a[i] * b[i], note: `q[${i}]·k[${i}]` })) }; },
  weights: ({ values }, h, q, k) => hasValue(values.scores) ? only(values.scores, h, q, k) : null,
  hidden: ({ values }, r, c) => ({ terms: [only(values.act, r, c), only(values.up, r, c)].flatMap(({ terms }) => terms) }),
  act: ({ values }, r, c) => only(values.pre, r, c),
  pre: (step, r, c) => vectorTerms(step, step.facts.is_gated ? "gate" : "up", r, unitOf(step, r, c)),
  up: (step, r, c) => vectorTerms(step, "up", r, unitOf(step, r, c)),
  scaled: ({ values }, r, c) => only(values.rows, r, c),
  rows: () => ({ terms: [], isEnd: true }), segment: () => ({ terms: [], isEnd: true }),
};
/* The pair of features that a rotation turns, of which c is one; null of others. */
function turnedPair(name, c) {
  const { op, x, cos, sin, layout } = page.data.values[name], pairs = op === "rotate" ? shapeOf(cos)[1] : 0, isHalf = layout === "half", i = isHalf ? c % pairs : Math.floor(c / 2);
  return c >= 2 * pairs ? null : { x, cos, sin, i, isFirst: isHalf ? c < pairs : c % 2 === 0, a: isHalf ? i : 2 * i, b: isHalf ? i + pairs : 2 * i + 1 };
}
/* Those of a query, key or value: of its pair before the rotation, or of the map of the token. */
function headTerms(step, role, h, r, c, input) {
  const { values, facts } = step, name = values[role], pair = turnedPair(name, c);
  if (pair) {
    const [u, v] = [valueAt(pair.cos, r, pair.i), valueAt(pair.sin, r, pair.i)];
    return { terms: [termOf([pair.x, h, r, pair.a], pair.isFirst ? u : v), termOf([pair.x, h, r, pair.b], pair.isFirst ? -v : u)] };
  }
  const at = h * shapeOf(name)[2] + c;
  return facts.projected && !facts.qk_norm ? vectorTerms(step, role[0], r, at, input) : facts.projected ? null : only(input, r, at);
}

/* The terms of a cell, the largest first; without any that is known the largest number of what goes into its part. */
function termsOf([name, ...index]) {
  let found;
  if (name === "probability") return { terms: [{ cell: ["logit", ...index], value: logitOf(...index) }] };
  if (name === "logit") {
    const step = headStep(), t = lastRow(step, index[0]), { scale = 1, softcap } = step.facts;
    found = mapTerms(step, "head", t, index[1], row(step.in, t), (i) => [step.in, t, i], scale) ?? largestInput(step, t);
    return softcap ? { ...found, terms: found.terms.map(({ term, ...one }) => one) } : found;
  }
  const { step, role } = roleOf(name);
  if (step) found = (role === "out" ? TERMS_OF_OUTPUT[step.kind] : TERMS_OF_VALUE[role])?.(step, ...index) ?? largestInput(step, index.at(-2) ?? 0);
  return { ...found, terms: [...(found?.terms ?? [])].sort((a, b) => Math.abs(b.value) - Math.abs(a.value)) };
}
function largestInput(step, r) {
  if (!hasValue(step.in) || shapeOf(step.in).length !== 2) return { terms: [] };
  const t = keepIn(r, shapeOf(step.in)[0]), numbers = row(step.in, t), c = numbers.findIndex((one) => Math.abs(one) === largest(numbers));
  return { terms: [{ cell: [step.in, t, c], value: numbers[c] }], isGuess: true };
}
function logitOf(position, id) {
  const one = page.data.output.positions.find((one) => one.position === position);
  return [...one.top, one.expected].find((token) => token?.id === id)?.logit;
}

/* How a cell is written: z(“7”), x[3, 72] of a residual, E[413, 72]. */
const SYMBOLS = { q: "q", k: "k", v: "v", q_raw: "q", k_raw: "k", mix: "o", joined: "o", scores: "s", weights: "w", act: "a", hidden: "a·u", pre: "u", up: "u", scaled: "E·√d", segment: "S" };
function symbolOf([name, ...index]) {
  if (name === "logit" || name === "probability") return `${name === "logit" ? "z" : "p"}(${tokenOfId(...index)})`;
  const { step, role } = roleOf(name), first = windowOf(step?.side ?? 0)[0], [r, c] = index.slice(-2);
  if (role === "rows" || (step?.kind === "embedding" && name === step.values.rows)) return step.kind === "embedding" ? `E[${sideOf(step.side).tokens[first + r].id}, ${c}]` : `P[${first + r}, ${c}]`;
  if (step?.values.unit && role !== "out") return `${step.facts.is_gated && role === "pre" ? "g" : SYMBOLS[role]}[${unitOf(step, r, c)}]`;
  const letter = SYMBOLS[role] ?? (!step || ["residual", "embedding", "position"].includes(step.kind) ? "x" : "y"), isPair = role === "scores" || role === "weights", isKey = ["k", "v", "k_raw"].includes(role);
  const at = index.length < 2 ? index : [...index.slice(0, -2), (isKey ? windowOf(keySide(step))[0] : first) + r, isPair ? windowOf(keySide(step))[0] + c : c];
  return `${letter}[${at.join(", ")}]`;
}
const tokenOfId = (position, id) => { const one = page.data.output.positions.find((one) => one.position === position); return `“${showToken([...one.top, one.expected].find((token) => token?.id === id)?.text ?? String(id))}”`; };
const stationOf = ([name]) => name === "logit" || name === "probability" ? page.stations.find(({ kind }) => kind === "output") : page.stations.find(({ steps }) => steps.includes(roleOf(name).step)) ?? page.stations.find(({ kind }) => kind === "output");

/* Where a cell is drawn: the card, the drawing, and row and column there; Infinity is the last row. */
const normCardOf = (step) => { const station = stationOf([step.out]), i = station.steps.indexOf(step); return i === 0 || station.kind === "norm" ? "norm" : `norm${i}`; };
const DRAWN_OUTPUTS = { attention: ["heads", "heads-out"], residual: ["residual", "residual"], feed_forward: ["feed-forward-out", "ffn-out"], position: ["added", "added"], moe: ["out", "part-out"], recurrent: ["out", "part-out"], conv: ["out", "part-out"], linear_attention: ["heads", "heads-out"] };
const DRAWN_VALUES = { q: ["qkv", "vector-Q"], k: ["qkv", "vector-K"], v: ["qkv", "vector-V"], mix: ["mix", "mix"], joined: ["heads", "joined"], scores: ["scores", "scores"], weights: ["softmax", "weights"], q_raw: ["qkv", "turned"] };
function drawnAt([name, ...index]) {
  const [r, c] = index.slice(-2);
  if (name === "logit" || name === "probability") return ["probabilities", `${name}-${index[1]}`];
  const { step, role } = roleOf(name);
  if (!step) return [];
  if (role === "rows") return step.kind === "embedding" ? ["embedding", "embedding-rows", r, c] : ["position", "position-rows", r, c];
  if (step.kind === "embedding") return role === "out" ? ["out", "embedding-out", r, c] : ["scaled", "embedding-scaled", 1, c];
  if (step.kind === "norm") return [normCardOf(step), normCardOf(step), Infinity, c];
  if (role === "out") return [...(DRAWN_OUTPUTS[step.kind] ?? ["part", `${step.path}-${t("out")}`]), Infinity, c];
  if (step.values.unit) return ["feed-forward", "units", ["pre", "act", "up", "hidden"].indexOf(role), c];
  return [...(DRAWN_VALUES[role] ?? []), role === "mix" ? Infinity : role === "q_raw" || role === "joined" ? 0 : r, c];
}

/* Go along a trail of cells to its last one: to its station, with its token and head, and its number in the inspector. */
function followTo(trail) {
  const cell = trail.at(-1), [name, ...index] = cell, station = stationOf(cell), { step, role } = roleOf(name), [card = "", focus, r, c] = drawnAt(cell), tokens = [...state.tokens], changes = { station: station.id, card, tokens, key: null, chapter: chapterOf(station) };
  if (!step) tokens[page.data.output.side] = index[0];
  else if (!["k", "v", "k_raw"].includes(role)) tokens[step.side] = windowOf(step.side)[0] + index.at(-2);
  if (["mix", "scores", "weights", "q", "q_raw"].includes(role)) changes.head = index[0];
  else if (["k", "v", "k_raw"].includes(role) && kvHead(step) !== index[0]) changes.head = index[0] * step.facts.heads / step.facts.kv_heads;
  if (["scores", "weights"].includes(role)) changes.key = index[2];
  Object.assign(page, { trail, pointed: focus ? { focus, station: station.id, cell: r === undefined ? null : [r, c] } : null });
  go(changes, { scroll: true });
  page.isHeld = true;
  if (!isSameCell(page.inspected?.cell, cell)) inspect({ title: symbolOf(cell), value: step ? numberOf(cell) : logitOf(...index), step: step ?? headStep(), shape: step ? shapeOf(name) : [outputWidth()], cell, lines: [] });
  document.querySelector("#inspector .from button")?.focus({ preventScroll: true });
}

/* The trail to a number as links back, its largest terms as links on, and the line of its sum. */
function trailElement(cell) {
  const { trail } = page, { terms = [], all, bias, isCut, isGuess, isEnd } = termsOf(cell), shown = terms.slice(0, 3);
  let before = null;
  const crumbs = trail.map((one, i) => {
    const station = stationOf(one), text = station === before ? symbolOf(one) : `${fullName(station)} ${symbolOf(one)}`;
    before = station;
    return h("li", {}, i === trail.length - 1 ? h("span", { "aria-current": "true" }, text) : h("button", { type: "button", class: "link-button", "data-focus": `crumb-${i}`, onclick: () => followTo(trail.slice(0, i + 1)) }, text));
  });
  const value = cell[0] === "logit" ? logitOf(...cell.slice(1)) : cell[0] === "probability" ? null : numberOf(cell);
  const sum = all > 1 && shown.every(({ term }) => term) ? equation`${someTerms(shown, all, value - (bias ?? 0))}${bias === null ? "" : expression` + ${bias}`} = ${value}` : null;
  const words = !terms.length ? isEnd ? t("Here the way ends: this number is learned, or the row of its position.") : t("The page does not follow this number further.") : isGuess ? t("Its terms are not in the page. The largest number that goes into this part:") : terms.length > 1 || isCut ? t("It comes from, largest first:") : t("It comes from:");
  const stations = (one) => stationOf(one.cell) === stationOf(cell) ? "" : `${fullName(stationOf(one.cell))} `;
  return [h("div", { class: "from" }, h("p", { class: "soft" }, words), sum ? h("p", { class: "formula" }, sum) : null,
    shown.map((one, i) => h("button", { type: "button", class: "action", "data-focus": `from-${i}`, onclick: () => followTo([...trail, one.cell]) }, `← ${stations(one)}${one.note ?? symbolOf(one.cell)}`, h("small", {}, ` ${formatNumber(one.value)}`)))),
    copyButton(cell), trail.length > 1 ? h("ol", { class: "trail", "aria-label": t("The way to this number") }, crumbs) : null].filter(Boolean);
}

/* A number that is chosen stays under the moving pointer, until another is chosen or Escape lets it go. The key F goes from a
   number to the first that it comes from. */
function holdChosen(stage) {
  for (const kind of ["pointermove", "pointerenter"]) stage.addEventListener(kind, (event) => { if (page.isHeld && event.pointerType === "mouse") event.stopPropagation(); }, true);
  stage.addEventListener("click", () => { page.isHeld = Boolean(page.inspected?.cell); });
  addEventListener("keydown", (event) => {
    if (event.key === "Escape" && page.isHeld) { page.isHeld = false; inspect(null); }
    if (event.key === "f" && !event.ctrlKey && !event.metaKey && event.target.closest?.("#stage svg, #stage .pointable")) document.querySelector("#inspector .from button")?.focus({ preventScroll: true });
  });
}
