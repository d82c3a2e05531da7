/* ---- what the model thinks on the way: its guesses after each layer, and the share of each part in a logit ---- */

const lensText = (id) => showToken(page.data.lens.texts[id]);
/* The rows of the lens from the last layer down to the embedding: [name, guesses, station of the layer]. */
const lensRows = () => page.data.lens.rows.map((guesses, i) => {
  const path = page.data.lens.paths[i], station = path && page.stations.find(({ layer }) => layer?.path === path);
  return [station ? t("layer {n}", { n: station.layer.index + 1 }) : t("Embedding"), guesses, station];
}).reverse();
const lensStep = () => page.data.walk.findLast(({ kind }) => kind === "head");
const chosenLens = () => Math.max(page.data.lens.positions.indexOf(state.tokens[page.data.lens.side]), 0);

function showLens() {
  const at = chosenLens();
  return [guessesCard(at), trueCard(at), sharesCard(at)].filter(Boolean);
}

/* What the inspector says of the guesses of a layer at a position. */
function tellGuess(name, { ids, p, rank, p_expected }, i) {
  const { lens } = page.data, lines = ids[i].map((id, n) => ({ soft: `${n + 1}. ${lensText(id)} · ${formatPercent(p[i][n])}` }));
  if (rank[i] !== null) lines.push({ soft: labelled(t("expected"), `${lensText(lens.expected[i])} · ${formatPercent(p_expected[i])} · ${t("rank {n}", { n: rank[i] })}`) });
  return { title: t("{name}: guess at “{token}”", { name, token: tokenText(lens.side, lens.positions[i]) }), value: p[i][0], shape: [lens.rows.length, lens.positions.length], step: lensStep(), source: sourceOf("lens"), lines: [`p = softmax(z) = ${formatNumber(p[i][0])}`, { soft: t("z: the logits of x, read as if this layer were the last") }, ...lines] };
}

/* The best guess of each token after each layer. */
function guessesCard(at) {
  const { lens } = page.data, names = lens.positions.map((position) => tokenText(lens.side, position)), rows = lensRows().map(([name, guesses, station]) => h("tr", {}, h("th", { scope: "row" }, station ? h("button", { type: "button", class: "link-button", onclick: () => walkTo(station), "data-focus": `lens-${station.id}` }, name) : name),
    names.map((_, i) => h("td", { class: `guess-cell${i === at ? " on" : ""}${guesses.rank[i] === 1 ? " right" : ""}`, style: `--share: ${Math.round(42 * guesses.p[i][0])}%` }, pointable(clipText(lensText(guesses.ids[i][0]), 8), () => tellGuess(name, guesses, i), () => chooseToken(lens.side, lens.positions[i]), `guess-${name}-${i}`), guesses.rank[i] === 1 ? h("span", { class: "unseen" }, t("as expected")) : null))));
  const head = h("tr", {}, h("td", {}), names.map((name, i) => h("th", { scope: "col", class: i === at ? "on" : null }, clipText(name, 8))));
  return card("lens", t("Best guess after each layer"), t("The vector after each layer is read as if it were the last: it goes through the final norm and the output head. The stronger the colour, the more probable; bold is the expected token. Layers are from the bottom up."),
    scrollRegion(t("Best guess after each layer"), moveInTable(h("table", { class: "guesses" }, h("caption", { class: "unseen" }, t("Best guess after each layer")), h("thead", {}, head), h("tbody", {}, rows)))));
}

/* The chosen token: three guesses after each layer, and how the true token rises. */
function trueCard(at) {
  const { lens } = page.data, expected = lens.expected[at], rows = lensRows().map(([name, guesses]) => h("tr", {}, h("th", { scope: "row" }, name),
    guesses.ids[at].map((id, n) => h("td", { class: id === expected ? "yes" : n ? "soft" : null }, `${clipText(lensText(id), 10)} ${formatPercent(guesses.p[at][n])}`)),
    expected === null ? null : [numberCell(formatCount(guesses.rank[at]), () => ({ ...tellGuess(name, guesses, at), title: t("Rank of the expected token: {name}", { name }), value: guesses.rank[at], lines: ["1 + #{v: z(v) > z}", `1 + ${formatCount(guesses.rank[at] - 1)} = ${formatCount(guesses.rank[at])}`, ...tellGuess(name, guesses, at).lines.slice(1)] })), h("td", { class: "bar-cell wide-only" }, bar(guesses.p_expected[at])), h("td", { class: "number", "data-value": guesses.p_expected[at] }, formatPercent(guesses.p_expected[at]))]));
  const head = h("tr", {}, h("td", {}), d3.range(lens.rows[0].ids[at].length).map((n) => h("th", { scope: "col" }, n ? `${n + 1}` : t("best guess"))), expected === null ? null : [h("th", { scope: "col", class: "number" }, t("its rank")), h("td", { class: "wide-only" }), h("th", { scope: "col", class: "number" }, lensText(expected))]);
  return card("rise", t("The three best guesses at “{token}”", { token: tokenText(lens.side, lens.positions[at]) }), expected === null ? null : t("On the right: rank and probability of the expected token, “{token}”.", { token: lensText(expected) }),
    scrollRegion(t("Guesses at this token"), moveInTable(h("table", { class: "bars" }, h("caption", { class: "unseen" }, t("Guesses at this token")), h("thead", {}, head), h("tbody", {}, rows)))));
}

/* The name of a part of the shares, and where it is. */
function partOf({ kind, path, head }) {
  const station = path && page.stations.find(({ core, steps }) => core?.path === path || steps.some((step) => step.path === path)), plain = { bias: t("All biases"), embedding: t("Embedding"), position: t("Position"), rest: t("What enters") }[kind];
  return { station, name: [plain ?? (station ? fullName(station) : path), head === undefined ? null : t("head {n}", { n: head })].filter(Boolean).join(" · ") };
}

/* Direct logit attribution: the shares of all parts in a logit, or in the difference of two, largest first. */
function sharesCard(at) {
  const { lens } = page.data, tokens = lens.tokens[at], options = [...tokens.map((id, k) => [String(k), lensText(id)]), ...tokens.slice(1).map((id, k) => [`0-${k + 1}`, `${lensText(tokens[0])} ${MINUS} ${lensText(id)}`])];
  const chosen = options.some(([key]) => key === state.share) ? state.share : options.at(-1)[0], [one, two] = chosen.split("-").map(Number), read = (k) => row(lens.shares, at, k);
  const numbers = two === undefined ? [...read(one)] : [...read(one)].map((value, i) => value - read(two)[i]), total = two === undefined ? lens.logits[at][one] : lens.logits[at][one] - lens.logits[at][two], name = options.find(([key]) => key === chosen)[1];
  const order = d3.range(numbers.length).sort((a, b) => Math.abs(numbers[b]) - Math.abs(numbers[a])), shown = order.slice(0, 16), rest = order.slice(16), most = largest(numbers);
  const tell = (i, label) => ({ title: t("Share of {part} in “{name}”", { part: label, name }), value: numbers[i], shape: shapeOf(lens.shares), step: lensStep(), source: sourceOf("shares"), lines: [`${two === undefined ? "w" : "(w₁ − w₂)"} · y · γ / σ = ${formatNumber(numbers[i])}`, { soft: t("y: what the part writes; γ and σ: of the norms after it, with σ as it was; w: the row of the output head") }] });
  const rows = shown.map((i) => { const { name: label, station } = partOf(lens.parts[i]); return h("tr", {}, h("th", { scope: "row" }, station ? h("button", { type: "button", class: "link-button", "data-focus": `share-${i}`, onclick: () => { walkTo(station); if (lens.parts[i].head !== undefined) go({ head: lens.parts[i].head }); } }, label) : label), h("td", { class: "bar-cell" }, bar(Math.abs(numbers[i]) / most, numbers[i] < 0 ? "minus" : "")), numberCell(formatNumber(numbers[i]), () => tell(i, label))); });
  const sum = (indices) => d3.sum(indices, (i) => numbers[i]), last = (label, value) => h("tr", { class: "on" }, h("th", { scope: "row" }, label), h("td", {}), h("td", { class: "number", "data-value": value }, formatNumber(value, 5)));
  const place = { name, token: tokenText(lens.side, lens.positions[at]) }, table = h("table", { class: "bars" }, h("caption", {}, (page.data.output.kind === "next token" ? t("“{name}” after “{token}”", place) : t("“{name}” at “{token}”", place))), h("thead", {}, h("tr", {}, h("th", { scope: "col" }, t("part")), h("td", {}), h("th", { scope: "col", class: "number" }, t("share")))),
    h("tbody", {}, rows, rest.length ? h("tr", { class: "faint" }, h("th", { scope: "row" }, t("{n} others together", { n: rest.length })), h("td", {}), h("td", { class: "number" }, formatNumber(sum(rest)))) : null, last(two === undefined ? t("sum: the logit") : t("sum: the difference of the logits"), total)));
  const cap = page.data.walk.findLast(({ kind }) => kind === "head").facts.softcap ? h("p", { class: "note" }, t("These are logits before the cap.")) : null;
  return card("shares", t("Who votes for it"), t("The logit is a sum of what every part wrote. With the scales of the norms held fixed, each head and each feed-forward layer has its share; in the difference of two tokens, what raises both cancels."),
    picker(t("Logit of"), options, chosen, (share) => go({ share }), { kind: "cases", focus: "share-of" }), scrollRegion(t("Shares of the logit"), moveInTable(table)), cap);
}
