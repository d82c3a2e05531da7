/* ---- two texts: which token and layer carries the difference between them (activation patching) ---- */
const otherToken = (side, position) => side ? null : showToken(page.data.patching.tokens[position]);
const isDifferent = (side, position) => !side && otherToken(side, position) !== tokenText(side, position);
/* The token of a column: of both texts where they differ. */
const patchName = (side, position) => isDifferent(side, position) ? `${cellName(sideOf(side).tokens[position].text)}|${cellName(page.data.patching.tokens[position])}` : cellName(sideOf(side).tokens[position].text);
const patchStacks = (side) => [...new Set(page.data.layers.filter((layer) => layer.side === side).map(({ stack }) => stack))];

function showPatching() {
  const { patching } = page.data, [a, b] = patching.answers.map(showToken), position = patching.position, side = page.data.sides.length - 1;
  const tell = (value, text) => ({ title: t("Difference of two logits"), value, shape: [], step: lensStep(), source: sourceOf("patching"), lines: ["z(a) − z(b)", { soft: t("a: “{a}”, b: “{b}”, of “{text}”", { a, b, text }) }] });
  const facts = factRow([[t("this text"), patching.difference, tell(patching.difference, page.data.inputs.text)], [t("the other text"), patching.other_difference, tell(patching.other_difference, patching.text)]]);
  const where = position === null ? t("The two classes are “{a}” and “{b}”.", { a, b }) : t("Compared is what follows “{token}”: “{a}” or “{b}”.", { token: tokenText(side, position), a, b });
  return [card("texts", t("Two texts"), t("The model also reads “{text}”. How far one token is ahead of another is the difference of their logits.", { text: patching.text }), h("p", { class: "note" }, where), facts), ...patching.maps.map((one) => patchCard(one))];
}

function patchCard({ side, shares }) {
  const { patching } = page.data, positions = shownPositions(side), stack = patchStacks(side)[0], names = shares.map((_, i) => i ? t("layer {n}", { n: i }) : t("Embedding")).reverse(), at = (r) => shares.length - 1 - r, { difference: plain, other_difference: other } = patching;
  const tell = (r, c) => ({ title: t("Share that “{token}” restores: {name}", { token: tokenText(side, positions[c]), name: names[r] }), value: shares[at(r)][c], shape: [shares.length, positions.length], step: lensStep(), source: sourceOf("patching"),
    lines: ["(d − d₀) / (d₁ − d₀)", equation`(${other + shares[at(r)][c] * (plain - other)} − ${other}) / (${plain} − ${other}) = ${shares[at(r)][c]}`, { soft: t("d₁: the difference of the logits of this text; d₀: of the other one; d: of the other one with this vector of the first") }] });
  const chosen = positions.indexOf(state.tokens[side]), matrix = drawMatrix({ name: t("Restored share"), label: t("{name}: {rows} layers by {columns} tokens; arrow keys move, Enter chooses the token", { name: t("Restored share"), rows: shares.length, columns: positions.length }), rows: names, columns: positions.map((p) => patchName(side, p)), value: (r, c) => shares[at(r)][c], most: Math.max(1, largest(shares.flat())),
    chosen: [null, chosen < 0 ? null : chosen], focus: `patching-${side}`, tell, choose: (r, c) => chooseToken(side, positions[c]) });
  return card(`patching-${side}`, stack === "stack" ? t("Which vector carries the difference") : t("{stack}: which vector carries the difference", { stack: stackName(stack) }),
    t("One vector of the other text is replaced by that of this text, and the rest is computed again. 1: the whole difference of the logits comes back; 0: none of it. A column is a token, a row is what leaves a layer, from the bottom up."), matrix, h("p", { class: "note" }, patchSentence(side, shares, names.toReversed())));
}

/* What to see: the token with the largest share in each layer, from the embedding on. */
function patchSentence(side, shares, names) {
  const positions = shownPositions(side), best = shares.map((row) => row.indexOf(Math.max(...row))), runs = [];
  best.forEach((c, i) => { if (shares[i][c] > 0.01 && runs.at(-1)?.c !== c) runs.push({ c, i }); });
  return runs.length ? joinSentences(...runs.slice(0, 5).map(({ c, i }) => t("From {name} on the largest share is that of “{token}”: {share}.", { name: names[i], token: patchName(side, positions[c]), share: formatNumber(shares[i][c], 3) }))) : t("No single vector brings back a part of it.");
}
