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
  const x = row(step.in, r), y = row(step.out, r), { mean, spread, isRms, isPerToken } = normParts(step, r), shape = [shapeOf(step.in)[0]];
  const about = (lines, flops, bytes) => ({ step, lines, flops, bytes, shape });
  const facts = isPerToken ? [isRms ? null : [t("mean"), mean, about(["μ = Σ x / d", `${formatNumber(d3.sum(x))} / ${x.length} = ${formatNumber(mean)}`], x.length, 4 * x.length)],
    [isRms ? t("mean square") : t("variance"), spread, about([isRms ? "Σ x² / d" : "σ² = Σ (x − μ)² / d", `${formatNumber(spread * x.length)} / ${x.length} = ${formatNumber(spread)}`], 2 * x.length, 4 * x.length)],
    [isRms ? "RMS" : t("standard deviation"), Math.sqrt(spread), about([`√${formatNumber(spread)} = ${formatNumber(Math.sqrt(spread))}`], 1, 4)]].filter(Boolean) : [];
  const lead = isRms ? t("The vector is divided by the root of its mean square, so that it always has the same size.")
    : t("The mean is taken away and the spread is made 1, so that the vector always has the same size.");
  const tells = [tellAgain(t("before"), step.in, step, r), (i, c) => ({ ...tellOutput(t("after"), step, r)(i, c), flops: isRms ? 4 : 6, bytes: isRms ? 12 : 16 })];
  return card(id, t("Norm"), lead, factRow(facts, side),
    drawStrips({ name: t("Norm: before and after"), focus: id, legend: false, rows: [{ label: t("before"), values: x, most: largest(x) }, { label: t("after"), values: y, most: largest(y), on: true }], tell: (i, c) => tells[i](i, c) }));
}

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
  const side = step.side, r = rowOf(side), { values, facts } = step, shape = [shapeOf(step.out)[0]], branches = branchesOf(values);
  const a = row(values.x, r).map((value) => facts.skip * value), b = a.map((_, c) => facts.scale * d3.sum(branches, (name) => row(name, r)[c])), all = row(step.out, r);
  const size = (numbers) => ({ step, shape, flops: 2 * numbers.length, bytes: 4 * numbers.length, lines: ["|x| = √Σ x²", `√${formatNumber(dot(numbers, numbers))} = ${formatNumber(length(numbers))}`] }), cosine = dot(a, b) / (length(a) * length(b) || 1);
  const lengths = [[t("length before"), length(a), size(a)], [t("length of what is added"), length(b), size(b)], [t("length after"), length(all), size(all)],
    [t("cosine of the two"), cosine, { step, shape, flops: 6 * a.length, bytes: 8 * a.length, lines: ["a · b / (|a| |b|)", `${formatNumber(dot(a, b))} / (${formatNumber(length(a))} · ${formatNumber(length(b))}) = ${formatNumber(cosine)}`] }]];
  const terms = [[t("came in"), values.x], ...branches.map((name) => [t("computed"), name])].map(([label, name]) => [label, name, tellAgain(label, name, step, r)]);
  return sumCard("residual", t("Residual"), t("What the part computed is added to what came in: the path runs on, and each part only writes a change to it."), terms, [t("runs on"), step], r, factRow(lengths, side));
}

/* A part without a drawing of its own: what goes in and what comes out. */
function plainCard(step) {
  const side = step.side ?? 0, rows = [[t("in"), step.in], [t("out"), step.out]].filter(([, name]) => hasValue(name) && shapeOf(name).length === 2);
  const r = rowOf(side), title = step.part ? labelled(KIND_NAMES[step.kind]?.() ?? t("Other part"), step.part) : KIND_NAMES[step.kind]?.() ?? t("Other part");
  const blocks = rows.map(([label, name]) => h("div", { class: "block" }, drawStrips({ name: label, focus: `${step.path}-${label}`, rows: [{ label, values: row(name, keepIn(r, shapeOf(name)[0])), on: label === t("out") }],
    tell: (label === t("out") ? tellOutput(label, step, keepIn(r, shapeOf(name)[0])) : tellAgain(label, name, step, keepIn(r, shapeOf(name)[0]))) })));
  const leads = { projection: t("A learned matrix maps the vector of each token to another."), activation: t("Each number of the vector passes an activation."), pooling: t("The token vectors are pooled into a vector of the text.") };
  const about = step.about ? h("p", { class: "note", lang: "en" }, step.about) : null;
  return card("part", title, leads[step.kind] ?? t("This part has no drawing of its own: here is what goes in and what comes out."), about, ...blocks);
}

function showFeedForward(step) {
  const side = step.side, r = rowOf(side), { values, facts = {} } = step, n = shapeOf(values.act)[1];
  const unit = (c) => values.unit ? Math.round(row(values.unit, r)[c]) + 1 : c + 1;
  const pre = row(values.pre, r), act = row(values.act, r), up = values.up ? row(values.up, r) : null, hidden = values.hidden ? row(values.hidden, r) : null;
  const name = facts.activation ?? "f";
  const rows = [[up ? t("gate, before") : t("before"), pre], [name, act], up && [t("up"), up], hidden && [t("product"), hidden]].filter(Boolean)
    .map(([label, numbers], i, all) => ({ label, values: numbers, on: i === all.length - 1, most: largest(numbers) }));
  const tell = (i, c) => ({ title: t("{name}, unit {n}", { name: rows[i].label, n: formatCount(unit(c)) }), value: rows[i].values[c], shape: [shapeOf(step.in ?? values.act)[0], facts.units ?? n], step,
    flops: i === 0 || rows[i].values === up ? 2 * page.data.run.config.d_model : 1, bytes: i === 0 ? 4 * page.data.run.config.d_model : 4,
    lines: i === 0 || rows[i].values === up ? [t("sum over the {n} features of x times a row of the matrix", { n: page.data.run.config.d_model })]
      : rows[i].values === act ? [`${name}(${formatNumber(pre[c])}) = ${formatNumber(act[c])}`] : [`${formatNumber(act[c])} · ${bracket(up[c])} = ${formatNumber(hidden[c])}`] });
  const active = Array.isArray(facts.active) ? facts.active[r] : null;
  const about = up ? t("Every unit looks for one thing in the token's vector. A gate decides how much of each unit passes.")
    : t("Every unit looks for one thing in the token's vector; what it finds passes an activation.");
  const cards = [card("feed-forward", t("Units"), about,
    factRow([[t("units"), facts.units ?? n], active === null ? null : [t("active"), formatPercent(active), { value: active, step, shape: [act.length], flops: facts.units, bytes: 4 * facts.units, lines: ["#{a > 0} / F", `${formatCount(Math.round(active * facts.units))} / ${formatCount(facts.units)} = ${formatNumber(active)}`] }]].filter(Boolean), side),
    n < (facts.units ?? n) ? h("p", { class: "note" }, t("The {n} units that write most are shown, strongest first.", { n })) : null,
    drawStrips({ name: t("Units of the feed-forward layer"), focus: "units", legend: false, rows, tell, columnName: (c) => `${unit(c)}` }),
    curveOf(values.pre, values.act, name, r))];
  if (hasValue(step.out) && shapeOf(step.out).length === 2) cards.push(card("feed-forward-out", t("What the units write"), t("Each active unit adds its own vector; the sum is what this layer writes to the path."),
    drawStrips({ name: t("What the units write"), focus: "ffn-out", rows: [{ label: t("out"), values: row(step.out, r), on: true }], tell: tellOutput(t("out"), step, r) })));
  return cards;
}

/* The activation as the dots (before, after) of all shown units; those of the chosen token stand out. */
function curveOf(pre, act, name, chosen) {
  const width = Math.min(page.width, 380), down = 190, left = 34, below = 22;
  const dots = d3.range(shapeOf(pre)[0]).flatMap((i) => [...row(pre, i)].map((x, c) => ({ x, y: row(act, i)[c], on: i === chosen }))).slice(0, 1500);
  const x = d3.scaleLinear().domain(d3.extent(dots, (d) => d.x)).nice().range([left, width - 8]), y = d3.scaleLinear().domain(d3.extent(dots, (d) => d.y)).nice().range([down - below, 8]);
  const svg = d3.create("svg").attr("class", "curve-plot").attr("viewBox", `0 0 ${width} ${down}`).attr("width", width).attr("height", down).attr("role", "img")
    .attr("aria-label", t("Activation {name}: each dot is a unit, before (across) and after (up)", { name }));
  for (const tick of x.ticks(5)) svg.append("text").attr("class", "tick middle").attr("x", x(tick)).attr("y", down - 6).text(formatNumber(tick));
  for (const tick of y.ticks(4)) {
    svg.append("line").attr("class", "grid").attr("x1", left).attr("x2", width - 8).attr("y1", y(tick)).attr("y2", y(tick));
    svg.append("text").attr("class", "tick end").attr("x", left - 6).attr("y", y(tick)).attr("dy", ".35em").text(formatNumber(tick));
  }
  svg.append("g").selectAll("circle").data(dots.sort((a, b) => a.on - b.on)).join("circle").attr("class", (d) => d.on ? "spot on" : "spot").attr("cx", (d) => x(d.x)).attr("cy", (d) => y(d.y)).attr("r", (d) => d.on ? 3 : 1.8);
  return h("figure", { class: "small-plot" }, svg.node(), h("figcaption", {}, t("{name}: before (across) and after (up)", { name })));
}

function showExperts(step) {
  const side = step.side, r = rowOf(side), { values, facts = {} } = step;
  const p = row(values.probability, r), chosen = chosenExperts(step, r), top = largest(p), logits = row(values.logit, r);
  const rows = [...p].map((share, e) => h("tr", { class: chosen.has(e) ? "on" : null }, h("th", { scope: "row" }, t("expert {n}", { n: e + 1 })), numberCell(formatNumber(logits[e]), () => tellRouterLogit(step, r, e), "number wide-only"), numberCell(formatPercent(share), () => tellExpert(step, r, e)),
    h("td", { class: "bar-cell" }, bar(share / top)), chosen.has(e) ? numberCell(formatNumber(chosen.get(e)), () => tellExpertWeight(step, r, e)) : h("td", {})));
  const head = h("tr", {}, h("th", { scope: "col" }, t("expert")), h("th", { scope: "col", class: "number wide-only" }, t("logit")), h("th", { scope: "col", class: "number" }, t("probability")), h("td", {}), h("th", { scope: "col", class: "number" }, t("weight")));
  return [card("experts", t("Experts"), t("A router gives each token to {k} of {n} experts; each is a feed-forward layer.", { k: facts.top_k, n: facts.experts }), factRow([], side),
    moveInTable(h("table", { class: "bars" }, h("caption", { class: "unseen" }, t("Experts")), h("thead", {}, head), h("tbody", {}, rows)))), writtenCard(step, r)];
}

/* What the chosen experts write, and their weighted sum. */
function writtenCard(step, r) {
  const { values } = step, weights = row(values.weight, r), experts = [...row(values.expert, r)].map((e) => t("expert {n}", { n: Math.round(e) + 1 }));
  const rows = experts.map((name, i) => ({ label: `${formatPercent(weights[i])} ${name}`, values: row(values.written, r, i), opacity: 0.25 + 0.75 * Math.sqrt(weights[i]) })), sum = { label: t("sum"), values: row(step.out, r), on: true };
  const units = page.data.run.config.d_ff, tell = (i, c) => i === rows.length ? { ...tellOutput(t("sum"), step, r)(i, c), flops: 2 * rows.length, bytes: 8 * rows.length }
    : { title: t("{name}, feature {n}", { name: experts[i], n: c + 1 }), value: rows[i].values[c], shape: shapeOf(values.written), step, flops: 2 * units, bytes: 8 * units,
      lines: ["E(x) = a · W", t("sum over the {n} units", { n: formatCount(units) }), { soft: labelled(t("times its weight"), `${formatNumber(weights[i])} · ${bracket(rows[i].values[c], 4)} = ${formatNumber(weights[i] * rows[i].values[c])}`) }] };
  return card("out", t("What the chosen experts write"), t("Each chosen expert computes a vector. The layer writes their sum, each as strong as its weight."), drawStrips({ name: t("What the chosen experts write"), focus: "part-out", rows: [...rows, sum], tell }));
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
  return [card("state", t("State after each token"), t("There is no matrix of weights: {name} reads one token after the other and keeps what it needs in a state of {n} numbers.", { name: facts.network, n: facts.units }),
    ...parts.map(([name, value, lines]) => h("div", { class: "block" }, h("h4", {}, name), tokenStrips({ name, value, side, focus: `recurrent-${value}`, tell: plainTell(name, value, step, (i, c) => lines(step, i, c)) })))), gatesCard(step), ...outCard(step)];
}

/* How the state of the chosen token comes about: the state before it, the gates, the state after it. */
function gatesCard(step) {
  const { values, facts } = step, r = rowOf(step.side), cell = values.cell && row(values.cell, r);
  const rows = [[cell ? t("cell before") : t("state before"), stateBefore(step, r), (c) => beforeLines(step, r, c)], ...GATES[facts.network].map(([letter, name]) => [name(), gateValues(step, letter, r), (c) => gateLines(step, letter, r, c)]),
    ...(cell ? [[t("cell"), cell, (c) => cellLines(step, r, c)]] : []), [t("state"), row(values.state, r), (c) => recurrentLines(step, r, c)]];
  const tell = (i, c) => ({ title: t("{name}, feature {n}", { name: rows[i][0], n: c + 1 }), value: rows[i][1][c], shape: shapeOf(values.state), step, lines: rows[i][2](c) });
  const lead = GATES[facts.network].length ? t("For “{token}”. A gate of 1 lets a number pass, one of 0 stops it.", { token: tokenText(step.side, windowOf(step.side)[0] + r) }) : null;
  return card("gates", t("The step of one token"), lead,
    drawStrips({ name: t("The step of one token"), focus: "gates", rows: rows.map(([label, numbers], i) => ({ label, values: numbers, on: i === rows.length - 1 })), tell }));
}

function showConvolution(step) {
  const { values, facts } = step, side = step.side, parts = [[t("values"), values.value], [t("gate"), values.gate]].filter(([, name]) => name);
  return [card("convolution", t("Convolution"), values.gate ? t("Each token mixes the {n} tokens of a window around it; a gate decides what passes.", { n: facts.kernel }) : t("Each token mixes the {n} tokens of a window around it.", { n: facts.kernel }),
    ...parts.map(([name, value]) => h("div", { class: "block" }, h("h4", {}, name), tokenStrips({ name, value, side, focus: `conv-${value}`, tell: plainTell(name, value, step, [t("sum over the {n} features of the {k} tokens of the window", { n: facts.kernel * page.data.run.config.d_model, k: facts.kernel })]) })))), ...outCard(step)];
}
const outCard = (step) => hasValue(step.out) && shapeOf(step.out).length === 2 ? [card("out", t("What this part writes"), null,
  drawStrips({ name: t("What this part writes"), focus: "part-out", rows: [{ label: t("out"), values: row(step.out, rowOf(step.side)), on: true }], tell: tellOutput(t("out"), step, rowOf(step.side)) }))] : [];
