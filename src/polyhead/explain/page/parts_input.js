/* ---- stations before the first layer: tokens, embedding, position ---- */

/* A part of a station: a heading, a sentence in plain words, drawings. */
function card(id, title, lead, ...children) {
  const heading = `title-${id}`;
  return h("section", { class: "card", id: `card-${id}`, "aria-labelledby": heading },
    h("h3", { id: heading }, title), lead ? h("p", { class: "about" }, lead) : null, ...children);
}

/* The stage of a rotation of words: all rows of an array with the tokens of a side as labels; a click chooses the token. */
function tokenStrips({ name, value, side, tell, focus, letter = "", ...options }) {
  const rows = shownPositions(side).map((position, i) => ({ label: `${letter && `${stateName(letter, position)} `}${tokenText(side, position)}`, values: row(value, i), on: i === rowOf(side) }));
  return drawStrips({ name, rows, tell, focus, choose: (r) => chooseToken(side, windowOf(side)[0] + r), ...options });
}

function chooseToken(side, position) {
  const tokens = [...state.tokens];
  tokens[side] = position;
  go({ tokens, key: null });
}

function showTokens(station) {
  const side = station.side, { tokens, window } = sideOf(side), [first, stop] = window;
  const text = side === 0 ? page.data.inputs.text : page.data.inputs.target;
  const leads = { output: t("The model's own output, read again as the decoder reads it."), example: t("The translation in the validation text, which the run keeps.") };
  const lead = (side > 0 && leads[page.data.inputs.target_is]) || t("The text as it was given.");
  const chips = tokens.slice(first, stop).map((token, i) => {
    const position = first + i, on = position === state.tokens[side];
    return h("button", { class: "token-card", type: "button", "aria-pressed": String(on), "data-focus": `token-card-${position}`, onclick: () => chooseToken(side, position) },
      h("span", { class: token.special ? "piece special" : "piece" }, showToken(token.text)),
      h("span", { class: "id" }, formatCount(token.id)),
      h("span", { class: "bytes" }, token.bytes ? token.bytes.map((byte) => byte.toString(16).padStart(2, "0")).join(" ") : t("special")));
  });
  const windowed = stop - first < tokens.length
    ? h("p", { class: "note" }, t("Tokens {a} to {b} of {n} are shown.", { a: first + 1, b: stop, n: tokens.length })) : null;
  return [
    card("text", t("Text"), lead, h("p", { class: "sentence-text" }, text ?? "")),
    card("tokens", t("Tokens"), t("The tokenizer cuts the text into pieces of its vocabulary. Below each piece: its number (id) and its bytes."),
      h("div", { class: "token-cards" }, chips), windowed),
  ];
}

function showEmbedding(station) {
  const side = station.side, cards = [];
  for (const step of station.steps) {
    const { values } = step, scale = step.facts?.scale ?? 1, r = rowOf(side);
    const title = values.rows ? t("Rows of the embedding table") : t("Embedding");
    if (values.rows) {
      cards.push(card("embedding", title, t("Each id picks one row of a table of {v} by {n} learned numbers.", { v: formatCount(page.data.run.config.vocab_size), n: shapeOf(values.rows)[1] }),
        tokenStrips({ name: title, value: values.rows, side, focus: "embedding-rows", tell: (i, c) => ({
          title: t("Embedding of “{token}”, feature {n}", { token: tokenText(side, windowOf(side)[0] + i), n: c }), value: row(values.rows, i)[c], cell: [values.rows, i, c],
          lines: tableLines(step, side, i, c), shape: wholeShape(values.rows, side), flops: 0, bytes: 4, step }) })));
    }
    if (values.scaled && scale !== 1) {
      const name = t("Times {s}", { s: formatNumber(scale) });
      cards.push(card("scaled", name, t("The rows are multiplied by √d."),
        drawStrips({ name, focus: "embedding-scaled", rows: [
          { label: t("row"), values: row(values.rows, r) }, { label: `× ${formatNumber(scale, 3)}`, values: row(values.scaled, r), on: true }],
        tell: (i, c) => ({ title: t("Feature {n}", { n: c }), value: row(i ? values.scaled : values.rows, r)[c], cell: [i ? values.scaled : values.rows, r, c], step, flops: i ? 1 : 0, bytes: 4, shape: wholeShape(values.scaled, side),
          lines: i ? [equation`${row(values.rows, r)[c]} × ${scale} = ${row(values.scaled, r)[c]}`] : tableLines(step, side, r, c) }) })));
    }
    if (values.segment) cards.push(card("segment", t("Segment"), t("A vector for the text, of the two, that a token belongs to."),
      tokenStrips({ name: t("Segment"), value: values.segment, side, focus: "segment", tell: plainTell(t("Segment"), values.segment, step, (i, c) => segmentLines(step, i, c)) })));
    if (hasValue(step.out)) cards.push(card("out", t("What enters the layers"), null,
      tokenStrips({ name: t("What enters the layers"), value: step.out, side, focus: "embedding-out", tell: tellOutput(t("What enters the layers"), step) })));
  }
  if (!page.stations.some(({ kind }) => kind === "position")) cards[0]?.append(longestNote());
  return cards;
}

/* What the inspector says of a number of a vector; `fixed` is its row where the drawing has no other. */
const plainTell = (name, value, step, lines, fixed = null) => (r, c) => {
  const about = typeof lines === "function" ? lines(fixed ?? r, c) : lines; // lines, or lines and what the number costs
  return { title: t("{name}, feature {n}", { name, n: c }), value: row(value, fixed ?? r)[c], cell: [value, fixed ?? r, c], shape: wholeShape(value, step.side ?? 0), step, ...(Array.isArray(about) ? { lines: about } : about) };
};

const longestNote = () => h("p", { class: "note" }, t("A text of this model has at most {n} tokens.", { n: formatCount(page.data.run.config.max_len) }));

function showPosition(station) {
  const side = station.side, cards = station.steps.flatMap((step) => {
    const { values, facts = {} } = step, r = rowOf(side), position = state.tokens[side];
    if (values.rows) return addedPosition(step, side, r, position);
    if (values.rate) return [rotationCard(step, side, r)];
    if (values.slopes) return [slopesCard(step)];
    const tables = Object.entries(values).filter(([role, name]) => role !== "index" && shapeOf(name).length === 2);
    return [card("position", t("Position"), t("The scheme {name} acts inside of attention: it changes nothing here.", { name: facts.scheme ?? step.part ?? "" }),
      h("div", { class: isClass() ? "beside-each" : null }, tables.map(([role, name]) => h("div", { class: "block" }, h("h4", {}, TABLE_NAMES[role]?.() ?? role), drawStrips({ name: TABLE_NAMES[role]?.() ?? role, focus: `position-${role}`, width: besideWidth(),
        ...(role === "table" ? { rows: d3.range(shapeOf(name)[1]).map((head) => ({ label: String(head), values: Float64Array.from(d3.range(shapeOf(name)[0]), (i) => row(name, i)[head]) })), columns: countNames(shapeOf(name)[0]), tell: (head, i) => tellTableRow(step, role, i, head) }
          : { rows: d3.range(shapeOf(name)[0]).map((i) => ({ label: String(i), values: row(name, i) })), tell: (i, c) => tellTableRow(step, role, i, c) }) }))), hasValue(values.index) ? pairsBlock(step, side) : null))];
  });
  cards[0].append(longestNote());
  return cards;
}

/* The tables of T5 and of Shaw. */
const TABLE_NAMES = { table: () => t("Bias of each head (rows) for each bucket (columns)"), key: () => t("Distance vectors for keys"), value: () => t("Distance vectors for values") };

/* With a table of distances: its row for each pair of tokens. */
function pairsBlock(step, side) {
  const names = shownPositions(side).map((position) => tokenText(side, position)), name = step.facts.buckets ? t("Bucket of each pair") : t("Row of each pair"), first = windowOf(side)[0];
  return h("div", { class: "block" }, h("h4", {}, name), drawMatrix({ name, rows: names, columns: names, value: (q, k) => valueAt(step.values.index, q, k), chosen: [rowOf(side), null], focus: "pairs", legend: false,
    tell: (q, k) => tellPair(step, side, q, k), choose: (q) => chooseToken(side, first + q) }));
}

/* Feature c of the row of sines and cosines of position p: its number in full, of which the model has a rounded one. */
function waveOf({ values, facts }, c, p) {
  const width = shapeOf(values.rows)[1], half = Math.ceil(width / 2), isHalves = facts.layout === "halves", pair = isHalves ? c % half : Math.floor(c / 2), at = p + (facts.offset ?? 0), over = facts.endpoint ? width - 2 : width;
  const isSine = isHalves ? c < half : c % 2 === 0, x = at / facts.base ** (2 * pair / over);
  return { isSine, angle: expression`${at} / ${facts.base}^(${2 * pair}/${over})`, value: isSine ? Math.sin(x) : Math.cos(x) };
}

function addedPosition(step, side, r, position) {
  const { values, facts = {} } = step, base = facts.base;
  const sinusoid = base !== undefined && base !== null;
  const line = (c, p) => {
    if (!sinusoid) return [`P[${p + (facts.offset ?? 0)}, ${c}] = ${formatNumber(row(values.rows, p - windowOf(side)[0])[c])}`, ...tensorWords({ P: facts.maps?.rows?.weight })];
    const { isSine, angle, value } = waveOf(step, c, p);
    return [`${isSine ? "sin" : "cos"}(p / b^(2i/d))`, isSine ? equation`sin(${angle}) = ${value}` : equation`cos(${angle}) = ${value}`];
  };
  const about = sinusoid ? t("Each position has a row of sines and cosines, fast waves first. The row is added to the token's vector.")
    : t("Each position has a learned row, which is added to the token's vector.");
  const tell = (i, c) => ({ title: t("Position {p}, feature {n}", { p: windowOf(side)[0] + i, n: c }), value: sinusoid ? waveOf(step, c, windowOf(side)[0] + i).value : row(values.rows, i)[c], cell: [values.rows, i, c], lines: line(c, windowOf(side)[0] + i), shape: wholeShape(values.rows, side), step, bytes: 4, flops: sinusoid ? 3 : 0 });
  const cards = [card("position", t("Rows of the positions"), about,
    tokenStrips({ name: t("Rows of the positions"), value: values.rows, side, focus: "position-rows", tell }))];
  if (sinusoid) cards.push(wavesCard(shapeOf(values.rows)[1], step, position));
  if (hasValue(step.in) && hasValue(step.out)) cards.push(sumCard("added", t("Token plus position"), t("For “{token}” at position {p}.", { token: tokenText(side, position), p: position }),
    [[t("token"), step.in, tellAgain(t("token"), step.in, step, r)], [t("position"), values.rows, (_, c) => tell(r, c)]], [t("sum"), step], r));
  return cards;
}

/* The sines of four features over the positions; where the chosen token is, they are read off. */
function wavesCard(width, step, position) {
  const { facts } = step;
  const pairs = [0, 1, 2, 3].map((n) => Math.min(Math.round(n * width / 16), width / 2 - 1)), across = Math.min(page.width, 600), size = 42, left = 84, last = Math.max(40, position + 8);
  const x = d3.scaleLinear().domain([0, last]).range([left, across - 8]), rate = (pair) => facts.base ** (-2 * pair / (facts.endpoint ? width - 2 : width));
  const column = (pair) => facts.layout === "halves" ? pair : 2 * pair, wave = (pair, p) => Math.sin((p + (facts.offset ?? 0)) * rate(pair));
  const svg = d3.create("svg").attr("class", "curve-plot").attr("viewBox", `0 0 ${across} ${size * 4 + 22}`).attr("width", across).attr("height", size * 4 + 22).attr("role", "img")
    .attr("aria-label", t("Sines of four features over the positions 0 to {n}", { n: last }));
  const marks = [];
  svg.append("line").attr("class", "marker").attr("x1", x(position)).attr("x2", x(position)).attr("y1", 0).attr("y2", size * 4);
  pairs.forEach((pair, i) => {
    const y = d3.scaleLinear().domain([-1, 1]).range([size * (i + 1) - 6, size * i + 6]), points = d3.range(0, last + 0.01, last / 400);
    svg.append("text").attr("class", "tick").attr("x", 0).attr("y", y(0)).attr("dy", ".35em").text(t("feature {n}", { n: column(pair) }));
    svg.append("path").attr("class", "curve").attr("d", d3.line().x(x).y((p) => y(wave(pair, p)))(points));
    svg.append("circle").attr("class", "spot on").attr("cx", x(position)).attr("cy", y(wave(pair, position))).attr("r", 4.5);
    marks.push({ x: x(position), y: y(wave(pair, position)), tell: () => ({ title: t("Position {p}, feature {n}", { p: position, n: column(pair) }), value: wave(pair, position), shape: [width], flops: 3, bytes: 4, step, lines: ["sin(p / b^(2i/d))", equation`sin(${waveOf(step, column(pair), position).angle}) = ${wave(pair, position)}`] }) });
  });
  for (const tick of x.ticks(8)) svg.append("text").attr("class", "tick middle").attr("x", x(tick)).attr("y", size * 4 + 14).text(tick);
  return card("waves", t("The waves of the rows"), t("Each pair of features is a wave of its own length. Read off at position {p}, the waves give the row of the token.", { p: position }), pointAtMarks(svg, marks, "waves"));
}

/* Terms and their sum for one token as strips: terms = [[label, array, what the inspector shows]]; a step computes the sum. */
function sumCard(id, title, lead, terms, [label, step], r, extra = null) {
  const parts = [...terms, [label, step.out, (i, c) => ({ ...tellOutput(label, step, r)(i, c), flops: terms.length - 1, bytes: 4 * (terms.length + 1) })]];
  const rows = parts.map(([name, array], i) => ({ label: name, values: row(array, r), on: i === terms.length }));
  return card(id, title, lead, drawStrips({ name: title, rows, focus: id, tell: (i, c) => parts[i][2](i, c) }), extra);
}

/* Rotary positions: the hands of clocks, one for each pair of features. */
function rotationCard(step, side, r) {
  const rates = page.arrays.get(step.values.rate).data, position = state.tokens[side], angles = rates.map((rate) => rate * position), shown = Math.min(angles.length, 16), size = 46;
  const dials = d3.range(shown).map((i) => {
    const svg = d3.create("svg").attr("class", "dial").attr("viewBox", "-23 -23 46 46").attr("width", size).attr("height", size).attr("aria-hidden", "true");
    svg.append("circle").attr("r", 19).attr("class", "rim");
    svg.append("line").attr("x2", 17 * Math.cos(angles[i])).attr("y2", -17 * Math.sin(angles[i])).attr("class", "hand");
    svg.append("circle").attr("r", 2).attr("class", "hub");
    const turn = angles[i] % (2 * Math.PI), tell = () => ({ title: t("Angle of pair {n} at position {p}, in radians", { n: i, p: position }), value: turn, shape: [angles.length], step, flops: 2, bytes: 4,
      lines: ["θ = p · r − 2π · ⌊p · r / 2π⌋", equation`${position} · ${rates[i]} − 2 · 3.14159265359 · ${Math.floor(angles[i] / (2 * Math.PI))} = ${turn}`] });
    return h("button", { type: "button", class: "pointable dial-box", "data-focus": `dial-${i}`, ...inspected(tell) }, svg.node(), h("span", {}, formatNumber(turn, 3)));
  });
  const { attention_factor: a } = step.facts, factor = a === 1 ? "" : `${formatNumber(a)} · `;
  const tell = (name, value) => (i, c) => ({ title: t("{name} of pair {n} at position {p}", { name, n: c, p: windowOf(side)[0] + i }), value: row(value, i)[c], shape: wholeShape(value, side), step, flops: 2, bytes: 4,
    lines: [`${factor && "a · "}${name}(p · r)`, equation`${factor ? expression`${a} · ` : ""}${name}(${windowOf(side)[0] + i} · ${rates[c]}) = ${row(value, i)[c]}`, ...(factor ? [{ soft: t("a: the factor of scores that goes with the scaling of the rates") }] : [])] });
  return card("position", t("Rotations"), t("Nothing is added. In each attention, every pair of features of q and k is turned by an angle that grows with the position: fast hands first. These are the hands at position {p}.", { p: position }),
    dialRow(dials, t("Angles of {n} pairs at position {p}, in radians; arrow keys move", { n: shown, p: position })),
    h("div", { class: "columns" }, ["cos", "sin"].map((name) => h("div", { class: "block" }, h("h4", {}, name), tokenStrips({ name, value: step.values[name], side, focus: `angle-${name}`, width: halfWidth(), tell: tell(name, step.values[name]) })))));
}

function dialRow(dials, name) {
  const element = h("div", { class: "dials", role: "group", "aria-label": name }, dials);
  return moveInRows(element, [element]);
}

/* ALiBi: each head has a slope; the further a key, the lower its score. */
function slopesCard(step) {
  const slopes = page.arrays.get(step.values.slopes).data, top = largest(slopes);
  const rows = [...slopes].map((slope, i) => h("tr", { class: i === state.head ? "on" : null }, h("th", { scope: "row" }, t("head {n}", { n: i })),
    numberCell(formatNumber(slope), () => tellSlope(slopes, i, step)), h("td", { class: "bar-cell" }, bar(Math.abs(slope) / top))));
  return card("position", t("Slopes"), t("Nothing is added to the vectors. Each head lowers the score of a key by its slope times the distance."),
    moveInTable(h("table", { class: "bars" }, h("caption", { class: "unseen" }, t("Slopes")), h("thead", {}, h("tr", {}, h("th", { scope: "col" }, t("head")), h("th", { scope: "col", class: "number" }, t("slope")), h("td", {}))), h("tbody", {}, rows))));
}
const bar = (share, kind = "") => h("span", { class: `bar ${kind}`, style: `width: ${(100 * Math.min(Math.max(share, 0), 1)).toFixed(2)}%` });
