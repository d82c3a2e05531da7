/* ---- states that grow token by token: linear attention, and the film of any state ---- */

const lowered = (n) => String(n).replace(/\d/g, (digit) => "₀₁₂₃₄₅₆₇₈₉"[digit]);
/* The name of a state after a token; that before the first token is number 0. */
const stateName = (letter, position) => `${letter}${lowered(position + 1)}`;
const countNames = (n, letter = "") => d3.range(n).map((i) => `${letter}${i}`);

/* A state after each shown token as small pictures in a row: frames are arrays of numbers in rows of `width`; a click
   chooses the token. Read backwards the first one is the last. */
function drawFilm({ name, letter, frames, width, side, isReverse = false }) {
  const most = Math.max(...frames.map(largest)), colors = signColors(), first = windowOf(side)[0];
  const steps = frames.map((values, i) => h("button", { type: "button", class: "still", "aria-pressed": String(i === rowOf(side)), "data-focus": `${letter}-${i}`, "aria-label": t("{state}, after “{token}”", { state: stateName(letter, first + i), token: tokenText(side, first + i) }), onclick: () => chooseToken(side, first + i) },
    paintNumbers(values, most, colors, width), h("b", {}, stateName(letter, first + i)), h("small", {}, clipText(cellName(sideOf(side).tokens[first + i].text), 7))));
  return scrollRegion(name, h("div", { class: isReverse ? "film reverse" : "film", role: "group", "aria-label": name }, steps));
}

/* Linear attention keeps a state of fixed size in place of a matrix of weights. */
function showLinearAttention(step) {
  const { values, facts } = step, side = step.side, kv = kvHead(step), q = rowOf(side), other = keySide(step), names = queryNames(step), three = page.width >= 540;
  const strip = (name, value, head, s) => h("div", { class: "block" }, h("h4", {}, name), drawStrips({ name, focus: `linear-${name}`, rows: shownPositions(s).map((p, i) => ({ label: tokenText(s, p), values: row(value, head, i), on: s === side && i === q })),
    width: three ? (page.width - 56) / 3 : page.width, tell: plainHeadTell(name, value, head, step), choose: (r) => chooseToken(s, windowOf(s)[0] + r) }));
  const cards = [card("qkv", t("Features of Q and K, and V, of head {h}", { h: state.head }), t("The map {name} makes queries and keys positive, so that no softmax is needed.", { name: facts.feature_map ?? "φ" }), sharedNote(step),
    h("div", { class: three ? "columns three" : "columns" }, strip("φ(Q)", values.phi_q, state.head, side), strip("φ(K)", values.phi_k, kv, other), strip("V", values.v, kv, other)))];
  if (hasValue(values.state)) {
    const states = facts.causal && !isCross(step) ? linearStates(step, kv) : null, [, height, width] = shapeOf(values.state);
    const sums = states ? states[q] : page.arrays.get(values.state).data.subarray(kv * height * width, (kv + 1) * height * width);
    cards.push(linearStateCard(step, kv, q, sums, states), readingCard(step, q, sums));
  }
  if (hasValue(values.weights)) cards.push(card("softmax", t("The weights that it amounts to"), rowLead(step, t("The same result, written as weights: no such matrix is ever built.")), drawMatrix({ name: t("Weights of head {h}", { h: state.head }), rows: names, columns: keyNames(step), value: (r, c) => valueAt(values.weights, state.head, r, c), code: (r, c) => hiddenCode(step, r, c),
    share: true, chosen: [q, state.key], focus: "weights", tell: (r, c) => ({ title: t("Weight of “{k}” for “{q}”, head {h}", { q: names[r], k: keyNames(step)[c], h: state.head }), value: valueAt(values.weights, state.head, r, c), shape: wholeShape(values.weights, side, other), step, flops: 4 * facts.features, bytes: 12 * facts.features, lines: linearWeightLines(step, r, c) }), choose: (r, c) => chooseCell(step, r, c) })));
  if (hasValue(values.weights)) cards.push(headsCard(step, q));
  return cards;
}
const plainHeadTell = (name, value, head, step) => (r, c) => ({ title: t("{name}, feature {n}", { name, n: c }), value: row(value, head, r)[c], shape: wholeShape(value, name === "φ(Q)" ? step.side : keySide(step)), step, ...tellFeature(step, name, value, head, r, c) });

/* The sums of a causal head before the first shown token: zeros, or what the tokens add that are not shown. */
function firstSums({ values }, kv) {
  const [, height, width] = shapeOf(values.state), size = height * width;
  return hasValue(values.start) ? page.arrays.get(values.start).data.subarray(kv * size, (kv + 1) * size) : new Float64Array(size);
}
/* What a shown token adds to number (r, c) of the sums: its feature times its value; in the last column, z, the feature alone,
   which is not turned by the position. */
function addedToSums({ values }, kv, s, r, c) {
  const isLast = c === shapeOf(values.state)[2] - 1, k = row(isLast ? values.norm_k ?? values.phi_k : values.phi_k, kv, s)[r];
  return isLast ? [k] : [k, row(values.v, kv, s)[c]];
}
/* The sums after each shown token: row by row, S and its last column z. */
function linearStates(step, kv) {
  const width = shapeOf(step.values.state)[2], product = (factors) => factors.reduce((a, b) => a * b);
  let sums = firstSums(step, kv);
  return d3.range(shapeOf(step.values.phi_k)[1]).map((s) => { sums = sums.map((one, i) => one + product(addedToSums(step, kv, s, Math.floor(i / width), i % width))); return sums; });
}

function linearStateCard(step, kv, q, sums, states) {
  const side = keySide(step), [, height, width] = shapeOf(step.values.state), position = windowOf(side)[0] + q, number = (from, r, c) => from[r * width + c];
  const title = states ? t("State after “{token}”", { token: tokenText(side, position) }) : t("State of the whole text");
  const lead = states ? t("Each token adds φ(k) · vᵀ to a state of {a} by {b} numbers, however long the text is: linear attention is a recurrent network. The query of a token reads the state after that token.", { a: height, b: width })
    : t("All keys and values are summed into one state of {a} by {b} numbers, however long the text is; every query reads it.", { a: height, b: width });
  const lines = (r, c) => {
    if (!states) return stateLines(step, kv, r, c);
    const letter = c === width - 1 ? "z" : "S", before = number(q ? states[q - 1] : firstSums(step, kv), r, c), [k, ...v] = addedToSums(step, kv, q, r, c);
    return [`${stateName(letter, position)} = ${stateName(letter, position - 1)} + φ(k)${v.length ? " · vᵀ" : ""}`, equation`${before} + ${v.length ? expression`${k} · ${v[0]}` : k} = ${number(sums, r, c)}`];
  };
  const film = states ? h("div", { class: "block" }, drawFilm({ name: t("The state after each token"), letter: "S", frames: states, width, side })) : null;
  return card("state", title, lead, film, h("div", { class: "block" }, h("h4", {}, states ? h("b", {}, stateName("S", position)) : null, ` ${t("rows: features of the key; columns: features of the value, and z, the sum of the features alone")}`),
    drawStrips({ name: title, focus: "linear-state", columns: [...countNames(width - 1, "v "), "z"], rows: d3.range(height).map((r) => ({ label: `φ ${r}`, values: sums.subarray(r * width, (r + 1) * width) })),
      tell: (r, c) => ({ title: t("State, row {r}, column {c}", { r, c: c === width - 1 ? "z" : c }), value: number(sums, r, c), shape: shapeOf(step.values.state), step, flops: states ? 2 : 2 * sideOf(side).tokens.length, bytes: 8, lines: lines(r, c) }) })));
}

/* What the query of the chosen token reads from the state. */
function readingCard(step, q, sums) {
  const { values, facts } = step, [, height, width] = shapeOf(values.state), column = (c) => Float64Array.from(d3.range(height), (r) => sums[r * width + c]), a = row(values.phi_q, state.head, q);
  const total = dot(row(values.norm_q ?? values.phi_q, state.head, q), column(width - 1)) + facts.eps, out = Float64Array.from(d3.range(width - 1), (c) => dot(a, column(c)) / total);
  return card("mix", t("What the query reads"), t("The query weighs the rows of the state: its features times each column, divided by its features times z."), drawStrips({ name: t("What the query reads"), focus: "mix", rows: [{ label: "o", values: out, on: true }],
    tell: (_, c) => ({ title: t("{name}, feature {n}", { name: "o", n: c }), value: out[c], shape: [width - 1], step, flops: 2 * height, bytes: 8 * height,
      lines: ["o = φ(q) · S / (φ(q) · z + ε)", equation`φ(q) · S = ${dotTerms(a, column(c))} = ${dot(a, column(c))}`, equation`${dot(a, column(c))} / ${total} = ${out[c]}`] }) }));
}
