/* ---- norm, residual and the parts of a layer but attention ---- */

function showLayerSteps(station) {
  return station.steps.flatMap((step, i) => {
    const tag = step.kind === "norm" ? `norm${i}` : step.kind;
    if (step.kind === "norm") return [normCard(step, i === 0 || station.kind === "norm" ? "norm" : tag)];
    if (step.kind === "residual") return [residualCard(step)];
    const draw = { attention: showAttention, linear_attention: showLinearAttention, feed_forward: showFeedForward, moe: showExperts, recurrent: showRecurrent, conv: showConvolution }[step.kind];
    return draw ? draw(step) : [plainCard(step)];
  });
}

function normCard(step, id) {
  const { values } = step, side = step.side, r = rowOf(side);
  if (!hasValue(step.in) || !hasValue(step.out)) return plainCard(step);
  const x = row(step.in, r), y = row(step.out, r), { mean, spread, isRms, isPerToken } = normParts(step, r), shape = [sideOf(side).tokens.length];
  const about = (lines, flops, bytes) => ({ step, lines, flops, bytes, shape });
  const facts = isPerToken ? [isRms ? null : [t("mean"), mean, about(["μ = Σ x / d", equation`${d3.sum(x)} / ${x.length} = ${mean}`], x.length, 4 * x.length)],
    [isRms ? t("mean square") : t("variance"), spread, about([isRms ? "Σ x² / d" : "σ² = Σ (x − μ)² / d", equation`${spread * x.length} / ${x.length} = ${spread}`], 2 * x.length, 4 * x.length)],
    [isRms ? "RMS" : t("standard deviation"), Math.sqrt(spread), about([equation`√${spread} = ${Math.sqrt(spread)}`], 1, 4)]].filter(Boolean) : [];
  const lead = isRms ? t("The vector is divided by the root of its mean square, so that it always has the same size.")
    : t("The mean is taken away and the spread is made 1, so that the vector always has the same size.");
  const parts = [[t("before"), x, tellAgain(t("before"), step.in, step, r)]];
  if (hasValue(values.weight)) parts.push([isRms ? t("size 1") : t("spread 1"), x.map((_, c) => normed(step, r, c)), tellNormed(step, r)]);
  parts.push([t("after"), y, (i, c) => ({ ...tellOutput(t("after"), step, r)(i, c), flops: isRms ? 4 : 6, bytes: isRms ? 12 : 16 })]);
  const learned = !hasValue(values.weight) ? null : hasValue(values.bias) ? t("Then each feature is multiplied by a learned weight g, and a learned bias b is added.") : t("Then each feature is multiplied by a learned weight g.");
  return card(id, t("Norm"), joinSentences(lead, learned), factRow(facts, side),
    drawStrips({ name: t("Norm: before and after, on one scale"), focus: id, rows: parts.map(([label, numbers], i) => ({ label, values: numbers, on: i === parts.length - 1 })), tell: (i, c) => parts[i][2](i, c) }));
}

/* Feature c of row r of a norm before its learned weight and bias. */
function normed(step, r, c) {
  const { mean, spread } = normParts(step, r, c);
  return (row(step.in, r)[c] - mean) / Math.sqrt(spread + step.facts.eps);
}
const tellNormed = (step, r) => (_, c) => {
  const { mean, spread, isRms } = normParts(step, r, c), x = row(step.in, r)[c], above = isRms ? expression`${x}` : expression`(${x} − ${mean})`;
  return { title: t("{name}, feature {n}", { name: isRms ? t("size 1") : t("spread 1"), n: c }), value: normed(step, r, c), shape: wholeShape(step.in, step.side), step, flops: isRms ? 3 : 4, bytes: 12,
    lines: [isRms ? "x / √(mean(x²) + ε)" : "(x − μ) / √(σ² + ε)", equation`${above} / √(${spread} + ${step.facts.eps}) = ${normed(step, r, c)}`] };
};

/* Numbers of the chosen token in a row: [name, number, what the inspector shows of it]. */
function factRow(facts, side = null) {
  const whose = side === null ? null : h("div", {}, h("dt", {}, t("token")), h("dd", { class: "word" }, tokenText(side, windowOf(side)[0] + rowOf(side))));
  return h("dl", { class: "fact-row" }, whose, facts.map(([name, value, tell], i) => {
    const text = typeof value === "number" ? formatNumber(value) : value;
    return h("div", {}, h("dt", {}, name), h("dd", { "data-value": value }, tell ? pointable(text, () => ({ title: name, value, ...tell }), null, `fact-${name}-${i}`) : text));
  }));
}

const length = (values) => Math.sqrt(dot(values, values));
function residualCard(step) {
  const side = step.side, r = rowOf(side), { values, facts } = step, shape = [sideOf(side).tokens.length], branches = branchesOf(values);
  const a = row(values.x, r).map((value) => facts.skip * value), b = a.map((_, c) => facts.scale * d3.sum(branches, (name) => row(name, r)[c])), all = row(step.out, r);
  const size = (numbers) => ({ step, shape, flops: 2 * numbers.length, bytes: 4 * numbers.length, lines: ["|x| = √Σ x²", equation`√${dot(numbers, numbers)} = ${length(numbers)}`] }), cosine = dot(a, b) / (length(a) * length(b) || 1);
  const lengths = [[t("length before"), length(a), size(a)], [t("length of what is added"), length(b), size(b)], [t("length after"), length(all), size(all)],
    [t("cosine between input and update"), cosine, { step, shape, flops: 6 * a.length, bytes: 8 * a.length, lines: ["a · b / (|a| |b|)", equation`${dot(a, b)} / (${length(a)} · ${length(b)}) = ${cosine}`] }]];
  const terms = [[t("input"), values.x], ...branches.map((name) => [t("added"), name])].map(([label, name]) => [label, name, tellAgain(label, name, step, r)]);
  return sumCard("residual", t("Residual"), t("What the part computed is added to what came in: the path runs on, and each part only writes a change to it."), terms, [t("output"), step], r, factRow(lengths, side));
}

/* A part without a drawing of its own: what goes in and what comes out, of the chosen token or of the text. */
function plainCard(step) {
  const side = step.side ?? 0, rows = [[t("in"), step.in], [t("out"), step.out]].filter(([, name]) => hasValue(name) && shapeOf(name).length <= 2);
  const place = (name) => shapeOf(name).length === 2 ? keepIn(rowOf(side), shapeOf(name)[0]) : 0, isOfText = hasValue(step.in) && shapeOf(step.in).length === 1, title = step.part ? labelled(KIND_NAMES[step.kind]?.() ?? t("Other part"), step.part) : KIND_NAMES[step.kind]?.() ?? t("Other part");
  const blocks = rows.map(([label, name]) => h("div", { class: "block" }, drawStrips({ name: label, focus: `${step.path}-${label}`, rows: [{ label, values: row(name, place(name)), on: label === t("out") }],
    tell: label === t("out") ? tellOutput(label, step, place(name)) : tellAgain(label, name, step, place(name)) })));
  const leads = { projection: isOfText ? t("A learned matrix maps the vector of the text to another.") : t("A learned matrix maps the vector of each token to another."), activation: t("Each number of the vector passes an activation."), pooling: t("The token vectors are pooled into a vector of the text.") };
  const pooled = { first: t("The vector of the first token, which represents the text, such as BERT's [CLS]."), last: t("The vector of the last token, the only one that attends to the whole text in a causal model."), max: t("The maximum of each feature over all tokens: one strong word is enough."), mean: t("The mean over all tokens.") };
  const text = step.kind === "pooling" ? pooled[step.part] : null, about = text ?? step.about ? h("p", { class: "note", lang: text ? null : "en" }, text ?? step.about) : null;
  return card("part", title, leads[step.kind] ?? t("This part has no drawing of its own: here is what goes in and what comes out."), about, ...blocks);
}

function showFeedForward(step) {
  const side = step.side, r = rowOf(side), { values, facts = {} } = step, n = shapeOf(values.act)[1];
  const unit = (c) => values.unit ? Math.round(row(values.unit, r)[c]) : c;
  const pre = row(values.pre, r), act = row(values.act, r), up = values.up ? row(values.up, r) : null, hidden = values.hidden ? row(values.hidden, r) : null;
  const name = facts.activation ?? "f";
  const rows = [[up ? t("gate, before") : t("before"), pre], [name, act], up && [t("up"), up], hidden && [t("product"), hidden]].filter(Boolean)
    .map(([label, numbers], i, all) => ({ label, values: numbers, on: i === all.length - 1, most: largest(numbers) }));
  const roles = ["pre", "act", "up", "hidden"], tell = (i, c) => ({ cell: [values[roles[i]], r, c], title: t("{name}, unit {n}", { name: rows[i].label, n: unit(c) }), value: rows[i].values[c], shape: [sideOf(side).tokens.length, facts.units ?? n], step, ...tellUnit(step, r, c, roles[i]) });
  const active = Array.isArray(facts.active) ? facts.active[r] : null;
  const about = up ? t("Every unit looks for one thing in the token's vector. A gate decides how much of each unit passes.")
    : t("Every unit looks for one thing in the token's vector; what it finds passes an activation.");
  const cards = [card("feed-forward", t("Units"), about,
    factRow([[t("units"), facts.units ?? n], active === null ? null : [t("active"), formatPercent(active), { value: active, step, shape: [facts.units], flops: facts.units, bytes: 4 * facts.units, lines: ["#{a > 0} / F", equation`${Math.round(active * facts.units)} / ${facts.units} = ${active}`] }]].filter(Boolean), side),
    n < (facts.units ?? n) ? h("p", { class: "note" }, t("The {n} units that write most are shown, strongest first.", { n })) : null,
    h("div", { class: isClass() ? "beside-each" : null }, drawStrips({ name: t("Units of the feed-forward layer"), focus: "units", legend: false, rows, width: besideWidth(), tell, columnName: (c) => `${unit(c)}` }),
      hasValue(values.counts) ? activationPlot(step, r, (c) => tell(1, c)) : null))];
  if (hasValue(step.out) && shapeOf(step.out).length === 2) cards.push(card("feed-forward-out", t("What the units write"), t("Each active unit adds its own vector; the sum is what this layer writes to the path."),
    drawStrips({ name: t("What the units write"), focus: "ffn-out", rows: [{ label: t("out"), values: row(step.out, r), on: true }], tell: tellOutput(t("out"), step, r) })));
  return cards;
}

/* The activation from -4 to 4, and below it how many units of the chosen token come in at each place; units beyond
   are in the two outer bars. The dots are the units that are listed above. */
function activationPlot(step, r, tell) {
  const { values, facts } = step, counts = row(values.counts, r), curve = page.arrays.get(values.curve).data, n = counts.length, end = 4, units = d3.sum(counts);
  const width = Math.min(besideWidth(), 460), left = 40, middle = 150, down = 250, x = d3.scaleLinear().domain([-end, end]).range([left + (width - left - 8) / n, width - 8 - (width - left - 8) / n]);
  const edges = d3.range(n + 1).map((i) => i === 0 ? left : i === n ? width - 8 : x(-end + 2 * end * (i - 1) / (n - 2)));
  const y = d3.scaleLinear().domain(d3.extent(curve)).nice().range([middle - 10, 8]), z = d3.scaleLinear().domain([0, d3.max(counts)]).range([0, down - middle - 44]), floor = down - 22;
  const name = facts.activation ?? "f", svg = d3.create("svg").attr("class", "curve-plot").attr("viewBox", `0 0 ${width} ${down}`).attr("width", width).attr("height", down).attr("role", "img").attr("tabindex", 0).attr("data-focus", "activation")
    .attr("aria-label", t("Activation {name} from -4 to 4, and the {n} units of the token below it; arrow keys move", { name, n: formatCount(units) }));
  for (const tick of y.ticks(4)) {
    svg.append("line").attr("class", "grid").attr("x1", left).attr("x2", width - 8).attr("y1", y(tick)).attr("y2", y(tick));
    svg.append("text").attr("class", "tick end").attr("x", left - 6).attr("y", y(tick)).attr("dy", ".35em").text(formatNumber(tick));
  }
  svg.append("line").attr("class", "grid").attr("x1", x(0)).attr("x2", x(0)).attr("y1", 8).attr("y2", floor);
  for (const tick of x.ticks(8)) svg.append("text").attr("class", "tick middle").attr("x", x(tick)).attr("y", down - 6).text(formatNumber(tick));
  svg.append("path").attr("class", "curve").attr("d", d3.line().x((_, i) => x(-end + 2 * end * i / (curve.length - 1))).y((one) => y(one))(curve));
  const dots = [...row(values.pre, r)].map((a, c) => [a, row(values.act, r)[c], c]).filter(([a]) => Math.abs(a) <= end).sort(([a], [b]) => a - b);
  svg.append("g").selectAll("circle").data(dots).join("circle").attr("class", "spot on").attr("cx", ([a]) => x(a)).attr("cy", ([, b]) => y(b)).attr("r", 3.2);
  svg.append("g").selectAll("rect").data([...counts]).join("rect").attr("class", (_, i) => 2 * i >= n ? "cell" : "off").attr("x", (_, i) => edges[i] + 0.5).attr("width", (_, i) => edges[i + 1] - edges[i] - 1)
    .attr("y", (one) => floor - z(one)).attr("height", (one) => z(one));
  if (Array.isArray(facts.active)) for (const [text, where] of [[t("{p} off", { p: formatPercent(1 - facts.active[r]) }), -end / 2], [t("{p} active", { p: formatPercent(facts.active[r]) }), end / 2]]) svg.append("text").attr("class", "tick middle").attr("x", x(where)).attr("y", middle + 14).text(text);
  const here = svg.append("rect").attr("class", "here").attr("y", middle + 20).attr("height", floor - middle - 20).attr("visibility", "hidden"), edge = (i) => formatNumber(-end + 2 * end * (i - 1) / (n - 2));
  const where = (i) => i === 0 ? `x < ${edge(1)}` : i === n - 1 ? `x ≥ ${edge(n - 1)}` : `${edge(i)} ≤ x < ${edge(i + 1)}`;
  const spot = svg.append("circle").attr("class", "here").attr("r", 7).attr("visibility", "hidden");
  const showDot = ([a, b, c]) => { here.attr("visibility", "hidden"); spot.attr("visibility", "visible").attr("cx", x(a)).attr("cy", y(b)); inspect(tell(c), spot.node()); };
  const showBar = (i) => { spot.attr("visibility", "hidden"); here.attr("visibility", "visible").attr("x", edges[i]).attr("width", edges[i + 1] - edges[i]); inspect({ title: t("Units with {where}", { where: where(i) }), value: counts[i], shape: [units], step, lines: [`#{${where(i)}} = ${counts[i]}`, { soft: t("{p} of all {n} units of the layer", { p: formatPercent(counts[i] / units), n: formatCount(units) }) }] }, here.node()); };
  const show = (line, i) => line ? showBar(keepIn(i, n)) : dots.length && showDot(dots[keepIn(i, dots.length)]); // dots above, bars below
  const at = (px, py) => px < left || px >= width - 8 ? null : py < middle ? dots.length ? [0, leastIndex(dots, ([a]) => Math.abs(x(a) - px))] : null : [1, keepIn(edges.filter((edge) => edge <= px).length - 1, n)];
  pointAtCells(svg.node(), [2, Math.max(n, dots.length)], at, show, null, [1, Math.floor(n / 2)]);
  svg.node().addEventListener("pointerleave", () => { here.attr("visibility", "hidden"); spot.attr("visibility", "hidden"); });
  return h("figure", { class: "small-plot" }, svg.node(), h("figcaption", {}, t("{name}: input (across) and output (up); below, the number of the {n} units with an input at each place. Dots: the units above.", { name, n: formatCount(units) })));
}

function showExperts(step) {
  const side = step.side, r = rowOf(side), { values, facts = {} } = step;
  const p = row(values.probability, r), chosen = chosenExperts(step, r), top = largest(p), logits = row(values.logit, r);
  const rows = [...p].map((share, e) => h("tr", { class: chosen.has(e) ? "on" : null }, h("th", { scope: "row" }, t("expert {n}", { n: e })), numberCell(formatNumber(logits[e]), () => tellRouterLogit(step, r, e), "number wide-only"), numberCell(formatPercent(share), () => tellExpert(step, r, e)),
    h("td", { class: "bar-cell" }, bar(share / top)), chosen.has(e) ? numberCell(formatNumber(chosen.get(e)), () => tellExpertWeight(step, r, e)) : h("td", {})));
  const head = h("tr", {}, h("th", { scope: "col" }, t("expert")), h("th", { scope: "col", class: "number wide-only" }, t("logit")), h("th", { scope: "col", class: "number" }, t("probability")), h("td", {}), h("th", { scope: "col", class: "number" }, t("weight")));
  return [card("experts", t("Experts"), t("A router gives each token to {k} of {n} experts; each is a feed-forward layer.", { k: facts.top_k, n: facts.experts }), factRow([], side),
    moveInTable(h("table", { class: "bars" }, h("caption", { class: "unseen" }, t("Experts")), h("thead", {}, head), h("tbody", {}, rows)))), writtenCard(step, r)];
}

/* What the chosen experts write, and their weighted sum. */
function writtenCard(step, r) {
  const { values, side } = step, weights = row(values.weight, r), ids = [...row(values.expert, r)].map(Math.round);
  const terms = ids.map((e, i) => [t("expert {n}", { n: e }), weights[i], row(values.written, r, i), (c) => tellExpertOutput(step, e, c, row(values.written, r, i)[c]).lines]);
  return card("out", t("What the chosen experts write"), t("Each chosen expert computes a vector. The vectors times their weights are on one scale; the layer writes their sum."),
    drawWeighted({ name: t("What the chosen experts write"), letter: "E(x)", focus: "part-out", terms, sum: row(step.out, r), step, shape: [sideOf(side).tokens.length, ...shapeOf(values.written).slice(1)], tellSum: (c) => ({ ...tellOutput(t("sum"), step, r)(0, c), flops: 2 * terms.length, bytes: 8 * terms.length }) }));
}

/* The gates of a recurrent network: [the sum that enters it, its name]. */
const GATES = {
  LSTM: [["f", () => t("forget gate")], ["i", () => t("input gate")], ["g", () => t("candidate")], ["o", () => t("output gate")]],
  GRU: [["r", () => t("reset gate")], ["z", () => t("update gate")], ["n", () => t("candidate")]],
  RNN: [],
};
function showRecurrent(step) {
  const { values, facts } = step, side = step.side, backwards = facts.is_reverse ? t("state, read backwards") : t("state");
  const parts = [[backwards, values.state, recurrentLines], [t("cell"), values.cell, cellLines]].filter(([, name]) => hasValue(name));
  const film = drawFilm({ name: backwards, letter: "h", frames: shownPositions(side).map((_, i) => row(values.state, i)), width: Math.ceil(Math.sqrt(facts.units)), side, isReverse: facts.is_reverse });
  return [card("state", t("State after each token"), t("There is no matrix of weights: {name} reads one token after the other and keeps what it needs in a state of {n} numbers.", { name: facts.network, n: facts.units }), film,
    ...parts.map(([name, value, lines]) => h("div", { class: "block" }, h("h4", {}, name), tokenStrips({ name, value, side, letter: value === values.cell ? "c" : "h", columns: countNames(facts.units), focus: `recurrent-${value}`, tell: plainTell(name, value, step, (i, c) => lines(step, i, c)) })))), gatesCard(step), ...outCard(step)];
}

/* How the state of the chosen token comes about: the state before it, the gates, the state after it. */
function gatesCard(step) {
  const { values, facts } = step, r = rowOf(step.side), cell = values.cell && row(values.cell, r);
  const rows = [[cell ? t("cell before") : t("state before"), stateBefore(step, r), (c) => beforeLines(step, r, c)], ...GATES[facts.network].map(([letter, name]) => [name(), gateValues(step, letter, r), (c) => gateLines(step, letter, r, c)]),
    ...(cell ? [[t("cell"), cell, (c) => cellLines(step, r, c)]] : []), [t("state"), row(values.state, r), (c) => recurrentLines(step, r, c)]];
  const tell = (i, c) => ({ title: t("{name}, feature {n}", { name: rows[i][0], n: c }), value: rows[i][1][c], shape: wholeShape(values.state, step.side), step, lines: rows[i][2](c) });
  const lead = GATES[facts.network].length ? t("For “{token}”. A gate of 1 lets a number pass, one of 0 stops it.", { token: tokenText(step.side, windowOf(step.side)[0] + r) }) : null;
  const most = cell ? largest([...cell, ...rows[0][1]]) : 1, isCell = (i) => cell && (i === 0 || i === rows.length - 2);
  return card("gates", t("The step of one token"), joinSentences(lead, cell && t("The cells have a scale of their own, up to {n}.", { n: formatNumber(most, 2) })),
    drawStrips({ name: t("The step of one token"), focus: "gates", most: 1, rows: rows.map(([label, numbers], i) => ({ label, values: numbers, on: i === rows.length - 1, ...(isCell(i) && { most }) })), tell }));
}

function showConvolution(step) {
  const { values, facts } = step, side = step.side, parts = [[t("values"), values.value], [t("gate"), values.gate]].filter(([, name]) => name);
  return [card("convolution", t("Convolution"), values.gate ? t("Each token mixes the {n} tokens of a window around it; a gate decides what passes.", { n: facts.kernel }) : t("Each token mixes the {n} tokens of a window around it.", { n: facts.kernel }),
    ...parts.map(([name, value]) => h("div", { class: "block" }, h("h4", {}, name), tokenStrips({ name, value, side, focus: `conv-${value}`, tell: plainTell(name, value, step, (i, c) => windowLines(step, value === values.gate ? "gate" : "value", i, c)) })))), ...outCard(step)];
}
const outCard = (step) => hasValue(step.out) && shapeOf(step.out).length === 2 ? [card("out", t("What this part writes"), null,
  drawStrips({ name: t("What this part writes"), focus: "part-out", rows: [{ label: t("out"), values: row(step.out, rowOf(step.side)), on: true }], tell: tellOutput(t("out"), step, rowOf(step.side)) }))] : [];
