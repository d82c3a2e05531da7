/* ---- attention: queries, keys and values of a head, scores, weights, the weighted sum, the heads joined ---- */

const kvHead = (step, head = state.head) => Math.floor(head * step.facts.kv_heads / step.facts.heads);
/* A token in a row or a column of a matrix: without the space that it starts with. */
const cellName = (text) => showToken(text.trim() || text);
/* A row of a decoder has two tokens, the one that goes in and the one that is written. */
function rowName(side, position) {
  const { tokens, role, next_text: next } = sideOf(side), name = cellName(tokens[position].text);
  return role === "decoder input" ? `${name} → ${next[position] === null ? "…" : cellName(next[position])}` : name;
}
const queryNames = (step) => shownPositions(step.side).map((p) => rowName(step.side, p));
const keyNames = (step) => shownPositions(keySide(step)).map((p) => cellName(sideOf(keySide(step)).tokens[p].text));
/* How the rows of a decoder are named, before a lead. */
const rowLead = (step, lead) => joinSentences(lead, sideOf(step.side).role === "decoder input" && t("Rows: the token that goes in → the token that is written there."));
const hiddenCode = (step, q, k) => {
  if (!hasValue(step.values.hidden)) return step.kind === "linear_attention" && step.facts.causal && !isCross(step) && k > q ? FUTURE : 0;
  const heads = shapeOf(step.values.hidden)[0];
  return valueAt(step.values.hidden, Math.min(state.head, heads - 1), q, k);
};
/* The chosen key: the one that the reader pointed at, else that with the largest weight. */
function chosenKey(step, weights) {
  const keys = weights.length;
  return state.key !== null && state.key < keys ? state.key : weights.indexOf(Math.max(...weights));
}
function chooseCell(step, q, k) {
  const tokens = [...state.tokens];
  tokens[step.side] = windowOf(step.side)[0] + q;
  go({ tokens, key: k });
}

function showAttention(step) {
  const q = rowOf(step.side), weights = row(step.values.weights, state.head, q), k = chosenKey(step, weights);
  return [togetherCard(step, q, weights), vectorsCard(step, q), scoresCard(step, q, k), weightsCard(step, q, k, weights), changeCard(step, q, k), mixCard(step, q, k, weights), headsCard(step, q)].filter(Boolean);
}

/* How many query heads share the keys and values of the chosen head. */
function sharedNote(step) {
  const { heads, kv_heads: all } = step.facts, n = heads / all;
  return heads === 1 ? null : h("p", { class: "note" }, n > 1 ? t("{n} query heads share the keys and values of key/value head {k} of {all}.", { n, k: kvHead(step), all }) : t("Each query head has a key/value head of its own."));
}

function vectorsCard(step, q) {
  const { values, facts } = step, head = state.head, kv = kvHead(step), other = keySide(step), three = page.width >= 540 && facts.head_dim <= 64, narrow = { width: three ? (page.width - 56) / 3 : halfWidth() };
  const tell = (letter, value, index, side) => (r, c) => ({
    title: t("{letter} of “{token}”, head {h}, feature {n}", { letter, token: tokenText(side, windowOf(side)[0] + r), h: index, n: c }),
    value: row(value, index, r)[c], cell: [value, index, r, c], shape: wholeShape(value, side), step, ...tellHeadVector(step, letter, value, index, r, c) });
  const block = (letter, about, value, index, side) => h("div", { class: "block" }, h("h4", {}, h("b", {}, letter), " ", about), drawStrips({ name: `${letter}, ${about}`, focus: `vector-${letter}`, ...narrow,
    rows: shownPositions(side).map((p, i) => ({ label: tokenText(side, p), values: row(value, index, i), on: letter === "Q" ? i === q : side === step.side && i === q && !facts.cross })),
    tell: tell(letter, value, index, side), choose: (r) => chooseToken(side, windowOf(side)[0] + r) }));
  const lead = facts.cross ? t("Each token of the target makes a query; each token of the source makes a key and a value.")
    : t("Each token makes three vectors: a query (what it looks for), a key (what it offers) and a value (what it hands over).");
  return card("qkv", t("Q, K and V of head {h}", { h: head }), lead, sharedNote(step), h("div", { class: three ? "columns three" : "columns" },
    block("Q", t("queries"), values.q, head, step.side), block("K", t("keys"), values.k, kv, other), block("V", t("values"), values.v, kv, other)), turnedBlock(step, q));
}

/* The keys with the largest weights for a query, in their order. */
const heaviestKeys = (weights, n) => d3.range(weights.length).filter((k) => weights[k] > 0).sort((a, b) => weights[b] - weights[a]).slice(0, n).sort((a, b) => a - b);

/* The chosen query beside its keys: in each row a key, its score, its weight and its value; on a small screen below each other. */
function togetherCard(step, q, weights) {
  const { values } = step, head = state.head, kv = kvHead(step), keys = heaviestKeys(weights, 10), names = keyNames(step), query = queryNames(step)[q], wide = page.width >= 540, stored = values.scores ?? values.similarity, rowHeight = { height: 20, gap: 6 };
  if (!hasValue(stored) || !keys.length) return null;
  const tell = (rows) => (i, c) => ({ value: rows[i].values[c], step, ...rows[i].tell(c) });
  const vector = (letter, token, name, index, r) => ({ label: `${letter.toLowerCase()} ${clipRow(token)}`, values: row(name, index, r), tell: (c) => ({ title: t("{letter} of “{token}”, head {h}, feature {n}", { letter, token, h: index, n: c }), cell: [name, index, r, c], shape: wholeShape(name, letter === "Q" ? step.side : keySide(step)), ...tellHeadVector(step, letter, name, index, r, c) }) });
  const left = [{ ...vector("Q", query, values.q, head, q), on: true }, ...keys.map((k) => vector("K", names[k], values.k, kv, k))];
  const right = [{ label: "o", values: row(values.mix, head, q), on: true, tell: (c) => tellMix(step, head, q, c) }, ...keys.map((k) => vector("V", names[k], values.v, kv, k))];
  const middle = h("table", { class: "bars in-step" }, h("caption", { class: "unseen" }, t("What “{q}” looks at", { q: query })), h("thead", {}, h("tr", {}, wide ? null : h("td"), h("th", { scope: "col", class: "number" }, hasValue(values.scores) ? t("score") : t("similarity")), h("td", {}), h("th", { scope: "col", class: "number" }, t("weight")))),
    h("tbody", {}, keys.map((k) => h("tr", {}, wide ? null : h("th", { scope: "row" }, names[k]), numberCell(formatNumber(valueAt(stored, head, q, k), 3), () => tellScore(step, q, k)), h("td", { class: "bar-cell" }, bar(weights[k] / Math.max(...weights))), numberCell(formatPercent(weights[k]), () => tellWeight(step, q, k))))));
  const strips = (name, rows, share, focus) => drawStrips({ name, rows: wide && focus === "together-v" ? rows.map((one) => ({ ...one, label: "" })) : rows, tell: tell(rows), focus, ...rowHeight, width: wide ? (page.width - 28) * share : page.width });
  const part = (title, ...children) => h("div", { class: "block" }, h("h4", {}, title), ...children);
  const some = keys.length < weights.filter((w) => w > 0).length ? h("p", { class: "note" }, t("The {n} keys with the largest weights are shown.", { n: keys.length })) : null;
  return card("together", t("One query at a glance"), t("“{q}”, head {h}: the query meets the key of each token; the score becomes a weight; the values, each times its weight, sum to the output o.", { q: query, h: head }), some,
    h("div", { class: wide ? "together" : "columns" }, part(t("query q and keys k"), strips(t("query q and keys k"), left, 0.455, "together-k")), part(t("score and weight"), moveInTable(middle)), part(t("output o and values v"), strips(t("output o and values v"), right, 0.26, "together-v"))));
}

/* With rotary positions: the query before and after its pairs are turned. */
function turnedBlock(step, q) {
  const { values } = step;
  if (!hasValue(values.q_raw)) return null;
  const rows = [{ label: t("before"), values: row(values.q_raw, state.head, q) }, { label: t("after"), values: row(values.q, state.head, q), on: true }];
  return h("div", { class: "block" }, h("h4", {}, h("b", {}, "Q"), " ", t("turned by its position")), drawStrips({ name: t("Query before and after the rotation"), focus: "turned", rows,
    tell: (i, c) => ({ title: t("{name}, feature {n}", { name: rows[i].label, n: c }), value: rows[i].values[c], cell: [i ? values.q : values.q_raw, state.head, q, c], shape: wholeShape(values.q, step.side), step, ...tellHeadVector(step, "Q", i ? values.q : values.q_raw, state.head, q, c) }) }));
}

function scoresCard(step, q, k) {
  const { values, facts } = step, stored = values.scores ?? values.similarity, parts = scoreParts(step, q, k);
  if (!hasValue(stored)) return null;
  const matrix = drawMatrix({ name: t("Scores of head {h}", { h: state.head }), rows: queryNames(step), columns: keyNames(step), value: (r, c) => valueAt(stored, state.head, r, c), code: (r, c) => hiddenCode(step, r, c),
    chosen: [q, k], focus: "scores", tell: (r, c) => tellScore(step, r, c), choose: (r, c) => chooseCell(step, r, c) });
  const names = { q: queryNames(step)[q], k: keyNames(step)[k] }, product = parts.a.map((value, i) => value * parts.b[i]);
  const rows = [{ label: `q ${names.q}`, values: parts.a }, { label: `k ${names.k}`, values: parts.b }, { label: "q × k", values: product, most: largest(product), on: true }];
  const strips = drawStrips({ name: t("Query times key"), focus: "score-product", legend: false, rows, height: 20, width: isClass() ? besideWidth() : page.width - 40 * keyNames(step).length > 480 ? 270 : page.width, tell: (i, c) => i < 2 ? { title: t("{name}, feature {n}", { name: rows[i].label, n: c }), value: rows[i].values[c], cell: i ? [values.k, kvHead(step), k, c] : [values.q, state.head, q, c], step, shape: i ? wholeShape(values.k, keySide(step)) : wholeShape(values.q, step.side), ...(i ? tellHeadVector(step, "K", values.k, kvHead(step), k, c) : tellHeadVector(step, "Q", values.q, state.head, q, c)) }
    : { title: t("Product of feature {n}", { n: c }), value: product[c], lines: [equation`${parts.a[c]} · ${parts.b[c]} = ${product[c]}`], shape: [product.length], step, flops: 1, bytes: 8 } });
  const about = tellScore(step, q, k), chain = (hasValue(values.scores) ? [[t("sum of the products"), parts.product], [`× ${formatNumber(facts.scale)}`, parts.scaled], facts.softcap ? [t("capped"), parts.capped] : null, parts.bias ? [t("with bias"), parts.score] : null] : [[t("similarity"), about.value]]).filter(Boolean)
    .map(([name, value]) => [name, value, { lines: about.lines, shape: about.shape, flops: about.flops, bytes: about.bytes, step }]);
  const hidden = parts.code && hasValue(values.scores) ? h("p", { class: "note" }, t("This cell is hidden: {why}. It counts as minus infinity, so its weight is 0.", { why: HIDDEN[parts.code]() })) : null;
  return card("scores", t("Scores"), rowLead(step, joinSentences(t("The query of a row meets the key of each column: the products of their features are summed and scaled."), matrix.querySelector(".reasons") && t("Hatched cells are hidden by the mask."))),
    h("div", { class: "beside-each" }, matrix, h("div", { class: "block" }, h("h4", {}, t("“{q}” looks at “{k}”", names)), strips, factRow(chain), hidden)));
}

function weightsCard(step, q, k, weights) {
  const names = keyNames(step), matrix = drawMatrix({ name: t("Weights of head {h}", { h: state.head }), rows: queryNames(step), columns: names, value: (r, c) => valueAt(step.values.weights, state.head, r, c), code: (r, c) => hiddenCode(step, r, c),
    share: true, chosen: [q, k], focus: "weights", tell: (r, c) => tellWeight(step, r, c), choose: (r, c) => chooseCell(step, r, c) });
  const softmax = hasValue(step.values.scores) ? softmaxParts(step, q) : null;
  const rows = names.map((name, i) => {
    const code = hiddenCode(step, q, i);
    return h("tr", { class: [i === k ? "on" : "", code ? "faint" : ""].join(" ").trim() || null, onpointerenter: (event) => inspect(tellWeight(step, q, i), event.currentTarget.querySelector("button")) }, h("th", { scope: "row" }, pointable(name, () => tellWeight(step, q, i), () => chooseCell(step, q, i), `key-${i}`)),
      softmax ? h("td", { class: "number" }, code ? `${MINUS}∞` : formatNumber(softmax.scores[i])) : null, softmax ? h("td", { class: "number wide-only" }, code ? "0" : formatNumber(Math.exp(softmax.scores[i] - softmax.most))) : null,
      h("td", { class: "bar-cell" }, bar(weights[i])), h("td", { class: "number", "data-value": weights[i] }, formatPercent(weights[i])));
  });
  const outside = softmax && softmax.outside > -Infinity ? h("tr", { class: "faint" }, h("th", { scope: "row" }, t("not shown")), h("td", { class: "number" }, formatNumber(softmax.outside)), h("td", { class: "number wide-only" }, formatNumber(Math.exp(softmax.outside - softmax.most))),
    h("td", { class: "bar-cell" }, bar(Math.exp(softmax.outside - softmax.most) / softmax.total)), numberCell(formatPercent(Math.exp(softmax.outside - softmax.most) / softmax.total), () => tellOutside(softmax, step))) : null;
  const head = h("tr", {}, h("th", { scope: "col" }, t("key token")), softmax ? h("th", { scope: "col", class: "number" }, t("score")) : null, softmax ? h("th", { scope: "col", class: "number wide-only" }, "exp(s − max)") : null, h("td", {}), h("th", { scope: "col", class: "number" }, t("weight")));
  const table = h("table", { class: "bars" }, h("caption", {}, t("What “{q}” looks at", { q: queryNames(step)[q] })), h("thead", {}, head), h("tbody", {}, rows, outside));
  const links = drawLinks({ name: t("Weights of head {h}", { h: state.head }), queries: queryNames(step), keys: names, weight: (r, c) => hiddenCode(step, r, c) ? 0 : valueAt(step.values.weights, state.head, r, c), chosen: q, choose: (r) => chooseCell(step, r, null), tell: (i) => tellWeight(step, q, i) });
  const lead = softmax ? t("Softmax turns each row of scores into shares that sum to 1.") : t("Each row of similarities is divided by its sum.");
  return card("softmax", softmax ? t("Softmax: the weights") : t("The weights"), rowLead(step, lead),
    h("div", { class: "beside-each" }, matrix, h("div", { class: "block" }, table)), h("div", { class: "block" }, h("h4", {}, t("From each query to its keys")), scrollRegion(t("Links"), links)));
}

function mixCard(step, q, k, weights) {
  const { values } = step, kv = kvHead(step), names = keyNames(step), terms = heaviestKeys(weights, 8).map((k) => [names[k], weights[k], row(values.v, kv, k), (c) => tellHeadVector(step, "V", values.v, kv, k, c).lines]);
  return card("mix", t("Weighted sum of the values"), t("The value of each key times its weight, all on one scale; their sum is what this head hands on."),
    drawWeighted({ name: t("Values and their sum"), letter: "v", focus: "mix", terms, sum: row(values.mix, state.head, q), step, shape: wholeShape(values.v, keySide(step)), tellSum: (c) => tellMix(step, state.head, q, c) }));
}
const tellMix = (step, head, q, c) => ({ title: t("Weighted sum, feature {n}", { n: c }), value: row(step.values.mix, head, q)[c], cell: [step.values.mix, head, q, c], shape: wholeShape(step.values.mix, step.side), step, flops: 2 * shapeOf(step.values.weights)[2], bytes: 8 * shapeOf(step.values.weights)[2], lines: mixLines(step, head, q, c) });

/* Vectors times their weights on one scale, what is not shown of them, and their sum: terms =
   [[name, weight, vector, lines of its number c]]. */
function drawWeighted({ name, letter, focus, terms, sum, step, shape, tellSum }) {
  const rows = terms.map(([label, weight, vector, lines]) => ({ label: `${formatPercent(weight)} ${label}`, values: vector.map((one) => weight * one),
    tell: (c) => ({ title: t("{name}, feature {n}", { name: `w · ${letter} (${label})`, n: c }), flops: 1, bytes: 8, shape, lines: [`w · ${letter}`, equation`${weight} · ${vector[c]} = ${weight * vector[c]}`, ...lines(c)] }) }));
  const added = sum.map((_, c) => d3.sum(rows, (one) => one.values[c])), rest = sum.map((one, c) => one - added[c]);
  if (largest(rest) > 1e-4 * largest(sum)) rows.push({ label: t("the rest"), values: rest, tell: (c) => ({ title: t("{name}, feature {n}", { name: t("the rest"), n: c }), shape, lines: [equation`${sum[c]} − ${added[c]} = ${rest[c]}`, { soft: t("what is not shown above") }] }) });
  rows.push({ label: t("sum"), values: sum, on: true, tell: tellSum });
  return drawStrips({ name, focus, rows, height: 18, tell: (i, c) => ({ value: rows[i].values[c], step, ...rows[i].tell(c) }) });
}

function headsCard(step, q) {
  const { values, facts } = step, width = hasValue(values.mix) ? shapeOf(values.mix)[2] : facts.v_head_dim, joined = hasValue(values.joined) ? row(values.joined, q) : null;
  const tell = (i, c) => i === 0 ? { title: t("Head {h}, feature {n}", { h: Math.floor(c / width), n: c % width }), value: joined[c], cell: [values.joined, q, c], shape: wholeShape(values.joined, step.side), step, flops: 2 * shapeOf(values.weights)[2], bytes: 8 * shapeOf(values.weights)[2], lines: mixLines(step, Math.floor(c / width), q, c % width) }
    : tellOutput(t("out"), step, q)(0, c);
  const strips = [];
  if (joined) strips.push(drawStrips({ name: t("All heads side by side"), focus: "joined", groups: width, rows: [{ label: t("joined"), values: joined, on: true }], tell }));
  if (hasValue(step.out)) strips.push(drawStrips({ name: t("After the output matrix"), focus: "heads-out", rows: [{ label: t("out"), values: row(step.out, q), on: true }], tell: (_, c) => tell(1, c) }));
  return card("heads", t("Heads joined"), t("All heads work at once, each with its own queries, keys and values. Their results are joined side by side and pass one more matrix."),
    headsGrid(step), ...strips);
}

/* The weights of all heads of all layers that have the same kind of attention, as small pictures. */
function headsGrid(step) {
  const here = page.stations.find((one) => one.core === step), stations = page.stations.filter((one) => one.layer?.stack === step.stack && hasValue(one.core?.values.weights) && stationName(one) === stationName(here)).reverse(), heads = Math.max(...stations.map(headsOf));
  if (heads * stations.length === 1) return null;
  const grid = h("div", { class: "thumbs", role: "group", "aria-label": t("All heads at a glance"), style: `grid-template-columns: 1.6em repeat(${heads}, minmax(24px, 62px))` }), color = `rgb(${page.accent})`;
  return h("div", { class: "block" }, h("h4", {}, t("Weights of all heads; each row is a layer")), scrollRegion(t("All heads at a glance"), fillWeightsGrid(grid, stations.map(({ layer }) => `${layer.index + 1}`), d3.range(heads).map((n) => `${n}`), (r, head) => {
    const { id, layer, core: { values } } = stations[r], isHere = stations[r] === here;
    return head >= headsOf(stations[r]) ? null : { matrix: d3.range(shapeOf(values.weights)[1]).map((q) => [...row(values.weights, head, q)]), on: isHere && head === state.head, focus: `thumb-${isHere ? "" : `${layer.index}-`}${head}`,
      name: [t("layer {n}", { n: layer.index + 1 }), t("head {n}", { n: head })].join(t(", ")), choose: () => go({ station: id, head, key: null }) };
  }, color)));
}
