/* ---- how it learnt: the attention, the guesses and the loss of a kept text at steps of the training ---- */

const markAt = () => keepIn(state.mark, page.data.learnt.length);

/* A slider over the marks; while it moves, only what is below it is drawn. */
function showLearnt() {
  const marks = page.data.learnt, below = h("div", {}), stepText = (i) => t("step {n}", { n: formatCount(marks[i].step) }), now = h("output", { class: "mark-step" });
  const drawMark = () => {
    now.textContent = stepText(markAt());
    slider.setAttribute("aria-valuetext", now.textContent);
    redraw(below, lossCard(), guessCard(), mapCard());
  };
  const slider = h("input", { type: "range", class: "marks", min: 0, max: marks.length - 1, value: markAt(), "aria-label": t("Step of the training"), "data-focus": "mark", oninput: () => { state.mark = Number(slider.value); drawMark(); }, onchange: () => go({ mark: Number(slider.value) }) });
  const hasMask = marks[0].tokens.length === 1 && page.data.run.kind === "encoder";
  drawMark();
  return [card("mark", t("A validation text at {n} steps", { n: marks.length }), joinSentences(t("What the weights of each step made of one text: “{text}”.", { text: clipText(marks[0].text, 160) }), hasMask ? t("The expected tokens were hidden by masks.") : "", t("Move the slider.")),
    h("div", { class: "mark-row" }, slider, now)), below];
}

/* The loss at each step, and the chosen one. */
function lossCard() {
  const marks = page.data.learnt, at = markAt(), points = marks.filter(({ loss }) => loss !== null), mark = marks[at];
  if (mark.loss === null) return null;
  const width = Math.min(page.width, 560), down = 150, x = d3.scaleLinear().domain(d3.extent(points, ({ step }) => step)).range([44, width - 14]), y = d3.scaleLinear().domain([0, d3.max(points, ({ loss }) => loss)]).nice().range([down - 22, 10]);
  const svg = d3.create("svg").attr("class", "curve-plot").attr("viewBox", `0 0 ${width} ${down}`).attr("width", width).attr("height", down).attr("role", "img").attr("aria-label", t("Mean loss of the text at each step"));
  for (const tick of y.ticks(4)) { svg.append("line").attr("class", "grid").attr("x1", 44).attr("x2", width - 14).attr("y1", y(tick)).attr("y2", y(tick)); svg.append("text").attr("class", "tick end").attr("x", 38).attr("y", y(tick)).attr("dy", ".35em").text(formatNumber(tick, 2)); }
  for (const tick of x.ticks(5)) svg.append("text").attr("class", "tick middle").attr("x", x(tick)).attr("y", down - 5).text(formatLarge(tick));
  svg.append("path").attr("class", "curve").attr("d", d3.line().x(({ step }) => x(step)).y(({ loss }) => y(loss))(points));
  svg.append("circle").attr("class", "spot on").attr("r", 4.5).attr("cx", x(mark.step)).attr("cy", y(mark.loss));
  const losses = mark.guesses.map(([, , loss]) => loss).filter((loss) => loss !== null), tell = ({ step, loss }) => ({ title: t("Mean loss at step {n}", { n: formatCount(step) }), value: loss, unit: t("nats"), shape: [], source: sourceOf("logits"), lines: [{ soft: t("the mean of −ln p of the expected tokens") }] });
  const marksOf = points.map((one) => ({ x: x(one.step), y: y(one.loss), tell: () => tell(one) }));
  return card("mark-loss", t("Its loss"), null, factRow([[t("mean loss"), `${formatNumber(mark.loss)} ${t("nats")}`, tell(mark)], [t("expected tokens"), formatCount(losses.length)]]), scrollRegion(t("Its loss"), pointAtMarks(svg, marksOf, "mark-loss", { start: points.indexOf(mark), choose: (i) => go({ mark: marks.indexOf(points[i]) }) })));
}

/* The three best guesses of each token, the expected one and its loss. */
function guessCard() {
  const mark = page.data.learnt[markAt()], names = mark.tokens.at(-1), most = Math.max(...page.data.learnt.flatMap(({ guesses }) => guesses.map(([, , loss]) => loss ?? 0)), 1e-9);
  if (!mark.guesses.length) return null;
  const hasLoss = mark.loss !== null, word = (text) => text === "replaced" ? t("replaced") : text === "original" ? t("original") : page.data.output.classes ? text : showToken(text);
  const rows = mark.guesses.map(([top, expected, loss], i) => h("tr", {}, h("th", { scope: "row" }, mark.guesses.length === names.length ? showToken(names[i]) : t("the text")), top.map(([text, p], n) => h("td", { class: [text === expected ? "yes" : n ? "soft" : "", n ? "wide-only" : ""].join(" ").trim() || null }, `${clipText(word(text), 8)} ${formatPercent(p)}`)),
    hasLoss ? [h("td", {}, expected === null ? "" : word(expected)), h("td", { class: "bar-cell wide-only" }, loss === null ? null : bar(loss / most)), loss === null ? h("td", {}) : numberCell(formatNumber(loss, 3), () => ({ title: t("Loss of “{token}”", { token: word(expected) }), value: loss, unit: t("nats"), shape: [names.length], source: sourceOf("logits"), lines: [`−ln(${formatNumber(Math.exp(-loss), 6)}) = ${formatNumber(loss)}`] }))] : null));
  const head = h("tr", {}, rowsHead(), mark.guesses[0][0].map((_, n) => h("th", { scope: "col", class: n ? "wide-only" : null }, n ? `${n + 1}` : t("best guess"))), hasLoss ? [h("th", { scope: "col" }, t("expected")), h("td", { class: "wide-only" }), h("th", { scope: "col", class: "number" }, t("loss"))] : null);
  return card("mark-guesses", t("Its best guesses"), null, scrollRegion(t("Its best guesses"), moveInTable(h("table", { class: "bars" }, h("caption", { class: "unseen" }, t("Its best guesses")), h("thead", {}, head), h("tbody", {}, rows)))));
}

/* The weights of the chosen attention and head. */
function mapCard() {
  const mark = page.data.learnt[markAt()], map = keepIn(state.map, mark.attention.length), one = mark.attention[map];
  if (!one) return null;
  const nameOf = ({ path, call }) => { const found = page.stations.filter(({ core }) => core?.path === path); return found.length ? fullName(found[call] ?? found[0]) : path; };
  const [heads, rows, columns] = one.shape, head = keepIn(state.head, heads), bytes = atob(one.data), weight = (r, c) => bytes.charCodeAt((head * rows + r) * columns + c) / 255, [queries, keys] = one.sides.map((side) => mark.tokens[side].map(cellName)), { causal } = page.stations.find(({ core }) => core?.path === one.path)?.core.facts ?? {};
  const tell = (r, c) => ({ title: `${queries[r]} → ${keys[c]}`, value: weight(r, c), shape: one.shape, lines: [{ soft: t("kept in steps of 1/255") }] });
  const select = h("label", { class: "choice" }, t("Attention"), h("select", { "data-focus": "mark-map", onchange: (event) => go({ map: Number(event.target.value) }) }, mark.attention.map((each, i) => h("option", { value: i, selected: i === map }, nameOf(each)))));
  return card("mark-map", t("Its attention"), t("Head {n}; rows are queries.", { n: head }), select, drawMatrix({ name: t("Its attention"), rows: queries, columns: keys, value: weight, code: (r, c) => causal && one.sides[0] === one.sides[1] && c > r ? FUTURE : 0, share: true, tell, focus: "mark-weights" }));
}
