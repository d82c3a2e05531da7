/* ---- stations after the last layer: probabilities, the steps of decoding, the cost ---- */

function showOutput() {
  const { output } = page.data, cards = [];
  if (output.positions?.length) cards.push(...positionCards(output));
  if (output.classes?.length) cards.push(classesCard(output));
  if (output.replaced?.length) cards.push(replacedCard(output));
  if (output.vector?.length) cards.push(card("vector", t("The vector of the text"), t("The text as one vector: texts of like meaning have vectors that point the same way."),
    drawStrips({ name: t("The vector of the text"), focus: "vector", rows: [{ label: t("vector"), values: Float64Array.from(output.vector), on: true }], tell: tellVector })));
  return cards;
}

/* A number of the vector of the text, by the last part that made it. */
function tellVector(_, c) {
  const { vector } = page.data.output, maker = page.data.walk.findLast(({ out }) => hasValue(out) && shapeOf(out).length === 1), about = { soft: t("The token vectors are pooled into a vector of the text.") };
  const found = maker ? OUTPUT_LINES[maker.kind]?.(maker, 0, c) ?? [] : [], spec = Array.isArray(found) ? { lines: found } : found;
  return { title: t("Feature {n}", { n: c }), value: vector[c], shape: [vector.length], source: sourceOf("vector"), step: maker, ...spec, lines: [...(spec.lines ?? []), about] };
}

/* The position of the output that the chosen token predicts, else the last one. */
function chosenOutput(output) {
  const at = output.positions.findIndex((one) => one.position === state.tokens[output.side]);
  return at >= 0 ? at : output.positions.length - 1;
}

function positionCards(output) {
  const side = output.side, one = output.positions[chosenOutput(output)], head = currentStation().steps[0], masked = output.kind === "masked token";
  const expected = one.expected, best = one.top[0].p, tell = (token) => tellProbability({ ...token, text: showToken(token.text) }, one.logsumexp, { step: head, cell: ["probability", one.position, token.id] });
  const rows = one.top.map((top, i) => h("tr", { class: expected?.id === top.id ? "on" : null, onpointerenter: (event) => inspect(tell(top), event.currentTarget) },
    h("td", { class: "number soft" }, String(i + 1)), h("th", { scope: "row" }, pointable(showToken(top.text), () => tell(top), null, `probability-${top.id}`)), h("td", { class: "number wide-only" }, pointable(formatNumber(top.logit), () => tellLogit(one.position, top, head), null, `logit-${top.id}`)), h("td", { class: "bar-cell" }, bar(top.p / Math.max(best, 0.001))), h("td", { class: "number", "data-value": top.p }, formatPercent(top.p))));
  const table = h("table", { class: "bars" }, h("caption", {}, masked ? t("What belongs at “{token}”", { token: tokenText(side, one.position) }) : t("What comes after “{token}”", { token: tokenText(side, one.position) })),
    h("thead", {}, h("tr", {}, h("th", { scope: "col", class: "number" }, "#"), h("th", { scope: "col" }, t("token")), h("th", { scope: "col", class: "number wide-only" }, t("logit")), h("td", {}), h("th", { scope: "col", class: "number" }, t("probability")))), h("tbody", {}, rows));
  const facts = [[t("uncertainty (entropy)"), t("{n} bits", { n: formatNumber(one.entropy, 3) }), tellEntropy(one, head)]];
  if (expected) facts.push([t("expected"), `${showToken(expected.text)} · ${formatPercent(expected.p)} · ${t("rank {n}", { n: expected.rank })}`, tell(expected)]);
  const cards = [card("probabilities", t("Probabilities"), t("The last vector meets the vector of each of the {n} tokens of the vocabulary: one number each, the logit. Softmax makes them probabilities.", { n: formatCount(page.data.run.config.vocab_size) }), factRow(facts), table)];
  if (hasValue(head?.in)) cards.unshift(card("last", t("The last vector"), masked ? t("All that the model knows about this place of the text is in this vector.") : t("All that the model knows about the next token is in this vector."),
    drawStrips({ name: t("The last vector"), focus: "last-vector", rows: [{ label: tokenText(side, one.position), values: row(head.in, keepIn(one.position - windowOf(side)[0], shapeOf(head.in)[0])), on: true }], tell: tellAgain(t("The last vector"), head.in, head, keepIn(one.position - windowOf(side)[0], shapeOf(head.in)[0])) })));
  if (output.positions.length > 1) cards.push(allPositionsCard(output, side));
  return cards;
}

function allPositionsCard(output, side) {
  const hasLoss = output.kind === "next token" && output.positions.some((one) => one.expected), head = currentStation().steps[0], share = (one, token) => pointable(formatPercent(token.p), () => tellProbability({ ...token, text: showToken(token.text) }, one.logsumexp, { step: head }));
  const rows = output.positions.map((one) => {
    const on = one.position === output.positions[chosenOutput(output)].position, right = one.expected && one.expected.rank === 1;
    return h("tr", { class: on ? "on" : null }, h("th", { scope: "row" }, h("button", { class: "link-button", type: "button", "data-focus": `output-${one.position}`, onclick: () => chooseToken(side, one.position) }, tokenText(side, one.position))),
      h("td", {}, showToken(one.top[0].text)), h("td", { class: "number wide-only" }, share(one, one.top[0])),
      one.expected ? h("td", {}, h("span", { class: right ? "yes" : "no" }, right ? "✓ " : "✗ "), showToken(one.expected.text)) : h("td", {}), one.expected ? h("td", { class: "number" }, share(one, one.expected)) : h("td", {}),
      !hasLoss ? null : one.expected ? numberCell(formatNumber(lossOf(one), 3), () => tellLoss(one)) : h("td", {}));
  });
  const true_ones = output.positions.filter((one) => one.expected), mean = hasLoss ? tellMeanLoss(true_ones) : null, perplexity = hasLoss ? tellPerplexity(mean.value) : null;
  const facts = hasLoss ? [factRow([[t("loss, the mean of −ln p"), t("{n} nats", { n: formatNumber(mean.value, 3) }), mean], [t("perplexity"), formatNumber(perplexity.value, 4), perplexity]]),
    page.data.inputs.target_is === "output" ? h("p", { class: "note" }, t("The expected tokens are the model's own output, so this is the loss of what it would write anyway. Give a second text to see the loss of a translation.")) : null] : [];
  return card("all-positions", t("At every position"), output.kind === "masked token" ? t("Each position gets its own guess, from the tokens on both sides.") : t("Each position makes its own guess, all at once: this is how the model learns. Training makes the loss small: −ln p of each expected token."), ...facts, scrollRegion(t("At every position"), moveInTable(h("table", { class: "bars" }, h("caption", { class: "unseen" }, t("At every position")),
    h("thead", {}, h("tr", {}, rowsHead(), [t("best guess"), t("probability"), t("expected"), t("its probability"), hasLoss ? "−ln p" : null].filter(Boolean).map((text, i) => h("th", { scope: "col", class: [1, 3, 4].includes(i) ? (i === 1 ? "number wide-only" : "number") : null }, text)))), h("tbody", {}, rows)))));
}

function classesCard(output) {
  const best = Math.max(...output.classes.map((one) => one.p)), logSum = Math.log(d3.sum(output.classes.length > 1 ? output.classes.map(({ logit }) => Math.exp(logit)) : [1, Math.exp(output.classes[0].logit)]));
  const tell = (one) => tellProbability({ ...one, id: output.classes.indexOf(one), text: one.label }, logSum, { source: sourceOf("logits") });
  const rows = [...output.classes].sort((a, b) => b.p - a.p).map((one) => h("tr", { class: one.p === best ? "on" : null }, h("th", { scope: "row" }, one.label), h("td", { class: "number" }, formatNumber(one.logit)), h("td", { class: "bar-cell" }, bar(one.p)), h("td", { class: "number", "data-value": one.p }, pointable(formatPercent(one.p), () => tell(one)))));
  return card("probabilities", t("Classes"), t("One number for each class, and as probabilities."), moveInTable(h("table", { class: "bars" }, h("caption", { class: "unseen" }, t("Classes")),
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, t("class")), h("th", { scope: "col", class: "number" }, t("logit")), h("td", {}), h("th", { scope: "col", class: "number" }, t("probability")))), h("tbody", {}, rows))));
}

function replacedCard(output) {
  const first = windowOf(output.side)[0], name = (i) => tokenText(output.side, first + i), logits = output.logits, rows = output.replaced.map((p, i) => h("tr", {}, h("th", { scope: "row" }, name(i)), numberCell(formatNumber(logits[i]), () => tellDetectorLogit(output, i, name(i))), h("td", { class: "bar-cell" }, bar(p)), h("td", { class: "number", "data-value": p }, pointable(formatPercent(p), () => tellReplaced(output, i, name(i))))));
  const head = h("tr", {}, h("th", { scope: "col" }, t("token")), h("th", { scope: "col", class: "number" }, t("logit")), h("td", {}), h("th", { scope: "col", class: "number" }, t("probability")));
  return card("probabilities", t("Was this token replaced?"), t("One number for each token, the logit; the logistic function makes it a probability."), moveInTable(h("table", { class: "bars" }, h("caption", { class: "unseen" }, t("Was this token replaced?")), h("thead", {}, head), h("tbody", {}, rows))));
}

/* ---- decoding, step by step ---- */
const NEUTRAL = { top_p: 1, repetition_penalty: 1 }; // settings that change nothing, as 0 and false do
function showGeneration() {
  const generation = page.data.generation, chosen = keepIn(state.step ?? 0, generation.steps.length);
  const names = { greedy: t("greedy decoding"), beam: t("beam search"), sampling: t("sampling") };
  const settings = Object.entries(generation.settings ?? {}).filter(([name, value]) => (value || (name === "seed" && isDrawn(generation))) && value !== NEUTRAL[name] && typeof value !== "object").map(([name, value]) => [SETTING_NAMES[name]?.() ?? name, typeof value === "number" ? formatNumber(value) : String(wordOf(value))]);
  const penalty = generation.settings.length_penalty, score = (one) => one.length ? [` · ${t("score")} = `, pointable(`${formatNumber(one.score)} ${t("nats")}`, () => tellScored(one, penalty))] : [];
  const outputs = h("ol", { class: "outputs" }, generation.outputs.map((one) => h("li", {}, h("span", { class: "sentence-text" }, one.text), h("span", { class: "soft" }, " ln p = ", pointable(`${formatNumber(one.log_prob)} ${t("nats")}`, () => tellOutputSum(generation, one)), score(one)))));
  const cards = [card("outputs", t("What the model writes"), t("Written by {method}: one token after the other, each given those before it.", { method: names[generation.method] ?? generation.method }), outputs, factRow(settings))];
  if (generation.steps.length) cards.push(card("beams", t("The choices at each step"), (isDrawn(generation) ? t("Choose a step. The marked token was sampled.") : t("Choose a step. Marked candidates were kept.")), beamTree(generation, chosen), stepPicker(generation, chosen), candidateTables(generation, generation.steps[chosen]),
    h("p", { class: "note" }, isDrawn(generation) ? t("p is the model's probability of a token; q is its probability in sampling, after temperature, top-k, top-p and penalties.") : t("p is the model's probability of a token; the sum of ln p is that of the whole text so far. The candidates with the largest sums are kept."))));
  if (generation.free?.length && generation.teacher) cards.push(card("teacher", t("Own tokens, true tokens"), t("Above: each token given the model's own tokens before it. Below: each true token given the true ones before it (teacher forcing); ✗ where the model would have written another. The stronger the colour, the more probable."),
    tokenRun(t("free running"), generation.free, sourceOf("logits")), tokenRun(t("the true text, by teacher forcing"), generation.teacher.map((one) => ({ ...one, wrong: one.rank > 1 })), sourceOf("logits"))));
  return cards;
}
const stepPicker = (generation, chosen) => h("div", { class: "picker", role: "group", "aria-label": t("Step") }, generation.steps.map((_, i) =>
  h("button", { type: "button", "aria-pressed": String(i === chosen), "data-focus": `step-${i}`, onclick: () => go({ step: i }) }, String(i + 1))));

function tokenRun(name, tokens, source) {
  const tell = (one) => tellProbability({ ...one, text: showToken(one.text) }, one.logsumexp, { source });
  const share = (one) => one.p === undefined ? null : h("small", {}, pointable(formatPercent(one.p), () => tell(one)));
  const list = h("ol", {}, tokens.map((one) => h("li", { class: one.wrong ? "wrong" : null, style: `--share: ${Math.round(45 * (one.p ?? 0))}%` }, one.wrong ? "✗ " : null, showToken(one.text), share(one))));
  return h("div", { class: "token-run" }, h("b", {}, name), moveInRows(list, [list]));
}

const isDrawn = ({ method }) => method === "sampling";
function candidateTables(generation, step) {
  const hasDrawn = isDrawn(generation), finished = generation.outputs.map((one) => findEnd(generation, one)?.last);
  return h("div", { class: "columns" }, step.beams.map((beam, b) => moveInTable(h("table", { class: "bars" }, h("caption", {}, step.beams.length > 1 ? `${t("beam {n}", { n: b + 1 })}: ` : "", h("span", { class: "soft" }, beam.text ? clipText(beam.text, 40) : t("nothing written yet"))),
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, t("token")), h("td", {}), h("th", { scope: "col", class: "number" }, "p"), hasDrawn ? h("th", { scope: "col", class: "number" }, "q") : null, h("th", { scope: "col", class: "number" }, t("Σ ln p (nats)")))),
    h("tbody", {}, beam.candidates.map((one) => h("tr", { class: one.kept || finished.includes(one) ? "on" : "faint" }, h("th", { scope: "row" }, showToken(one.text)), h("td", { class: "bar-cell" }, bar(one.p)), numberCell(formatPercent(one.p), () => tellCandidate(one)), hasDrawn ? numberCell(formatPercent(one.q), () => tellDrawn(beam.candidates, one, generation.settings)) : null, numberCell(formatNumber(one.total), () => tellTotal(beam, one)))))))));
}

/* The beams of all steps as a tree: a column for each step, a line from each beam to those that go on from it, finished
   outputs below them; the path of the first output is marked. */
function beamTree(generation, chosen) {
  const { steps, outputs } = generation, ends = outputs.map((one) => findEnd(generation, one)).filter(Boolean), won = wonPath(generation);
  const mark = (s, b, id) => { const beam = steps[s].beams[b], one = beam?.candidates.find((candidate) => candidate.id === id); return one && (() => tellTotal(beam, one)); };
  const nodes = steps.flatMap((step, s) => {
    const kept = step.chosen.map(({ beam, id }, b) => ({ s, b, tell: mark(s, beam, id), from: beam, text: textOf(step, id), isWon: won.get(s) === b }));
    return [...kept, ...ends.filter((end) => end.s === s && !step.chosen.some(({ beam, id }) => beam === end.b && id === end.last.id)).map((end, i) => ({ s, b: kept.length + i, tell: mark(s, end.b, end.last.id), from: end.b, text: end.last.text, isDone: true, isWon: end === ends[0] && won.get(s) === "end" }))];
  });
  const across = 118, size = 28, width = across * (steps.length + 0.4), down = (d3.max(nodes, ({ b }) => b) + 1) * size + 26, y = (b) => 26 + size * (b + 0.5), x = (s) => across * s + 10;
  const svg = d3.create("svg").attr("class", "tree").attr("viewBox", `0 0 ${width} ${down}`).attr("width", width).attr("height", down).attr("role", "img").attr("aria-label", t("Tree of the beams over {n} steps; the tables below have the numbers", { n: steps.length }));
  const path = d3.linkHorizontal(), kind = (name, one) => [name, one.isWon ? "won" : "", one.isDone ? "done" : "", one.s === chosen ? "on" : ""].join(" ");
  steps.forEach((_, s) => svg.append("text").attr("class", s === chosen ? "tick on" : "tick").attr("x", x(s)).attr("y", 14).text(String(s + 1)));
  for (const one of nodes) if (one.s > 0) svg.append("path").attr("class", kind("link", one)).attr("d", path({ source: [x(one.s - 1) + 66, y(one.from)], target: [x(one.s) - 6, y(one.b)] }));
  for (const one of nodes) svg.append("text").attr("class", kind("token", one)).attr("x", x(one.s)).attr("y", y(one.b)).attr("dy", ".35em").style("cursor", "pointer").text(clipText(showToken(one.text), 8));
  const marks = nodes.filter((one) => one.tell).map((one) => ({ s: one.s, x: x(one.s) + 20, y: y(one.b), tell: one.tell })), tree = pointAtMarks(svg, marks, "beam-tree", { choose: (i) => go({ step: marks[i].s }), start: Math.max(marks.findIndex(({ s }) => s === chosen), 0) });
  return h("div", {}, scrollRegion(t("The choices at each step"), tree), won.size && steps.some(({ beams }) => beams.length > 1) ? h("p", { class: "note" }, h("span", { class: "key" }, t("the output that won")), ends.length ? ` · ${t("■ finished")}` : "") : null);
}
const textOf = (step, id) => step.beams.flatMap((beam) => beam.candidates).find((one) => one.id === id)?.text ?? String(id);

/* The row of each step that leads to the first output: {step: index, or "end" for the end token}; empty if it is not known. */
function wonPath(generation) {
  const end = findEnd(generation, generation.outputs[0]), rows = new Map();
  if (!end) return rows;
  const kept = generation.steps[end.s].chosen.findIndex(({ beam, id }) => beam === end.b && id === end.last.id);
  rows.set(end.s, kept >= 0 ? kept : "end");
  for (let s = end.s - 1, b = end.b; s >= 0; b = generation.steps[s].chosen[b].beam, s -= 1) rows.set(s, b);
  return rows;
}

/* Whether greedy decoding, which takes the most probable token at each step, writes the output that won. */
function greedyText() {
  const { generation } = page.data, won = wonPath(generation), end = findEnd(generation, generation.outputs[0]);
  for (const [s, kept] of [...won].sort(([a], [b]) => a - b)) {
    const step = generation.steps[s], { beam, id } = kept === "end" ? { beam: end.b, id: end.last.id } : step.chosen[kept], [best] = step.beams[beam].candidates;
    if (best.id !== id) return t("Here greedy decoding goes another way at step {n}: it takes “{a}”, beam search “{b}”.", { n: s + 1, a: showToken(best.text), b: showToken(textOf(step, id)) });
  }
  return t("Here the beam that won has the most probable token at each step: greedy decoding writes the same.");
}

/* ---- cost ---- */
/* The steps of each part of the path with their sums, by its name. */
function groupCosts() {
  const groups = new Map();
  for (const step of page.data.walk) {
    const kind = isCross(step) ? t("Cross-attention") : step.path.endsWith("final_norm") ? t("Final norm") : KIND_NAMES[step.kind]?.() ?? step.kind, name = step.layer === null ? kind : labelled(stackName(step.stack), kind);
    const group = groups.get(name) ?? { steps: [], flops: 0 };
    group.steps.push(step);
    group.flops = step.cost.flops === null || group.flops === null ? null : group.flops + step.cost.flops;
    groups.set(name, group);
  }
  return groups;
}

function showCost() {
  const { costs, run } = page.data, groups = groupCosts(), top = Math.max(...[...groups.values()].map(({ flops }) => flops), 1), { total } = costs, isPair = run.kind === "encoder-decoder";
  const none = (text, kind = "number soft") => h("td", { class: kind }, text), rows = [...groups].map(([name, { steps, flops }]) => {
    const tells = { flops: () => tellGroup(name, t("operations"), steps, ({ cost }) => cost.flops, partLines), weights: () => tellGroup(name, t("weights"), steps, ownBytes, weightLines),
      activations: () => tellGroup(name, t("activations"), steps, ({ cost }) => cost.activation_bytes, activationLines) };
    const shared = steps.some(({ cost }) => cost.shared_bytes) && !d3.sum(steps, ownBytes);
    return h("tr", {}, h("th", { scope: "row" }, name), h("td", { class: "bar-cell" }, flops ? bar(flops / top) : null), flops === null ? none(formatLarge(flops)) : flops ? h("td", { class: "number", "data-value": flops }, pointable(formatLarge(flops), tells.flops)) : none(page.width < 400 ? "–" : t("not counted")),
      tells.weights().value ? numberCell(formatBytes(tells.weights().value), tells.weights) : none(shared ? t("shared") : "–"), tells.activations().value ? numberCell(formatBytes(tells.activations().value), tells.activations, "number wide-only") : none("–", "number soft wide-only"));
  });
  const pass = total.flops === null ? null : tellPass(groups), bytes = numberBytes(), isProduct = run.parameters * bytes === total.weight_bytes, own = [...groups].map(([name, { steps }]) => [name, d3.sum(steps, ownBytes)]).filter(([, number]) => number), activations = [...groups].map(([, { steps }]) => d3.sum(steps, ({ cost }) => cost.activation_bytes));
  const other = total.weight_bytes - d3.sum(own, ([, number]) => number), whole = tellParts([...own, ...(other ? [[t("in no part above"), other]] : [])], total.weight_bytes, "weights");
  if (isProduct) whole.lines.push(`${formatCount(run.parameters)} · ${bytes} = ${formatCount(total.weight_bytes)}`);
  const facts = [[t("operations"), formatLarge(total.flops), pass], [t("weights"), formatBytes(total.weight_bytes), whole],
    [t("activations"), formatBytes(total.activation_bytes), tellSum(activations, total.activation_bytes, sourceOf("step"))]];
  if (costs.prefill?.flops) facts.push([isPair ? t("reading the source, writing the first token (prefill)") : t("reading the text (prefill)"), formatLarge(costs.prefill.flops), tellParts(Object.entries(costs.prefill.parts).map(([name, number]) => [partName(name), number]), costs.prefill.flops, "pass")]);
  if (costs.decode_step) facts.push([t("one more token, with the cache"), formatLarge(costs.decode_step.flops), tellDecodeStep(costs.decode_step)]);
  const head = h("tr", {}, h("th", { scope: "col" }, t("part")), h("td", {}), h("th", { scope: "col", class: "number" }, t("operations")), h("th", { scope: "col", class: "number" }, t("weights")), h("th", { scope: "col", class: "number wide-only" }, t("activations")));
  const row = (name, ...numbers) => h("tr", {}, h("th", { scope: "row" }, name), h("td", {}), numbers.map((text, i) => h("td", { class: i === 2 ? "number wide-only" : "number" }, text)));
  const foot = h("tfoot", {}, other ? row(t("in no part above"), "", formatBytes(other), "") : null, row(t("total"), formatLarge(total.flops), formatBytes(total.weight_bytes), formatBytes(total.activation_bytes)));
  const table = moveInTable(h("table", { class: "bars" }, h("caption", { class: "unseen" }, t("What it costs")), h("thead", {}, head), h("tbody", {}, rows), foot));
  return [card("cost", t("What it costs"), t("Operations are the multiplications and additions of the products of matrices in one pass over this text. Weights that several parts share are counted once."), factRow(facts), scrollRegion(t("What it costs"), table),
    h("p", { class: "note" }, t("Not counted: operations on single numbers (sums of residuals, norms, softmax, activations, rotations), which are few compared with the products; and the activations inside of a part, such as scores and units. Activations are the inputs and outputs of each part.")))];
}
