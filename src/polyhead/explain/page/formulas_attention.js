/* ---- the formulas of attention: vectors, scores and weights ---- */

/* Formula and cost of a number of a query, key or value: a map of the token, then perhaps a norm, and with rotary positions a
   turn. */
function tellHeadVector(step, letter, name, head, r, c) {
  const { facts } = step, isTurned = page.data.values[name].op === "rotate", role = letter.toLowerCase(), at = head * shapeOf(name)[2] + c, result = row(name, head, r)[c];
  if (isTurned) return { lines: turnedLines(name, head, r, c), flops: 3, bytes: 16 };
  const norm = facts.qk_norm && letter !== "V" ? facts.qk_norm : null, width = facts.maps?.[role]?.width ?? 0;
  if (!facts.projected) return { lines: [norm ? `${letter} = ${norm}(x)` : `${letter} = x[${at}] = ${formatNumber(result)}`], flops: norm ? 4 : 0, bytes: 4 };
  if (norm) return { lines: [`${letter} = ${norm}(${mapText(step, role, at)}) = ${formatNumber(result)}`, ...biasWords(step, role, at), ...mapWords(step, role)], flops: 2 * width + 4, bytes: 8 * width };
  return tellMap(step, role, letter, at, result);
}
/* The number of a bias where the sum that it is added to is not known. */
function biasWords(step, role, at) {
  const b = biasOf(step, role, at);
  return b === null ? [] : [{ soft: `b[${at}] = ${formatNumber(b)}` }];
}

/* The same of linear attention: features of a query or key, or a value. */
function tellFeature(step, name, value, head, r, c) {
  const { facts } = step, role = { "φ(Q)": "q", "φ(K)": "k", V: "v" }[name], result = row(value, head, r)[c], at = head * shapeOf(value)[2] + c;
  if (!role) return { lines: [`${name} = ${formatNumber(result)}`] };
  const turned = facts.is_rotary && name !== "V" ? [{ soft: t("Then its pairs are turned by the position.") }] : [];
  if (!facts.projected) return { lines: [`${name} = ${name === "V" ? `x[${at}]` : "φ(x)"} = ${formatNumber(result)}`, ...turned], flops: name === "V" ? 0 : 1, bytes: 4 };
  if (name === "V") return tellMap(step, role, "V", at, result);
  const { width } = facts.maps[role], isOne = shapeOf(value)[2] === facts.head_dim; // else the map has other features than the head
  return { lines: [`${name} = φ(${isOne ? mapText(step, role, at) : "x · W"}) = ${formatNumber(result)}`, ...(isOne ? biasWords(step, role, at) : []), ...mapWords(step, role), ...turned], flops: 2 * width + 1, bytes: 8 * width };
}

/* How a score came about: q · k, scaled, capped, with its bias; or why it is hidden. */
function scoreParts(step, q, k) {
  const { values, facts } = step, a = row(values.q, state.head, q), b = row(values.k, kvHead(step), k);
  const product = dot(a, b), bias = hasValue(values.bias) ? valueAt(values.bias, Math.min(state.head, shapeOf(values.bias)[0] - 1), q, k) : 0;
  const scaled = product * facts.scale, capped = facts.softcap ? facts.softcap * Math.tanh(scaled / facts.softcap) : scaled;
  return { a, b, product, scaled, capped, bias, score: capped + bias, code: hiddenCode(step, q, k) };
}
function tellScore(step, q, k) {
  const { a, b, product, scaled, capped, bias, score, code } = scoreParts(step, q, k), { facts, values } = step, stored = values.scores ?? values.similarity;
  const title = t("Score of “{q}” for “{k}”, head {h}", { q: queryNames(step)[q], k: keyNames(step)[k], h: state.head }), about = { title, shape: wholeShape(stored, step.side, keySide(step)), step, flops: 2 * a.length + 1, bytes: 8 * a.length };
  if (!hasValue(values.scores)) return { ...about, value: valueAt(stored, state.head, q, k), lines: code ? [{ soft: t("Hidden: {why}.", { why: HIDDEN[code]() }) }] : similarityLines(facts, a, b, valueAt(stored, state.head, q, k)) };
  const lines = [`s = ${facts.softcap ? `c · tanh(q · k × ${formatNumber(facts.scale)} / c)` : `q · k × ${formatNumber(facts.scale)}`}${bias ? " + b" : ""}`, equation`q · k = ${dotTerms(a, b)} = ${product}`, equation`${product} × ${facts.scale} = ${scaled}`];
  if (facts.softcap) lines.push(equation`${facts.softcap} · tanh(${scaled} / ${facts.softcap}) = ${capped}`);
  lines.push(...biasLines(step, q, k));
  if (bias) lines.push(equation`${capped} + ${bias} = ${score}`);
  if (code) lines.push({ soft: t("Hidden: {why}. It counts as minus infinity.", { why: HIDDEN[code]() }) });
  return { ...about, cell: code ? null : [values.scores, state.head, q, k], value: code ? `${MINUS}∞` : score, lines };
}

function tellWeight(step, q, k) {
  const weights = row(step.values.weights, state.head, q), shape = wholeShape(step.values.weights, step.side, keySide(step)), spec = { shape, step, value: weights[k],
    title: t("Weight of “{k}” for “{q}”, head {h}", { q: queryNames(step)[q], k: keyNames(step)[k], h: state.head }), flops: 4, bytes: 4 * weights.length };
  const code = hiddenCode(step, q, k);
  if (code) return { ...spec, lines: [{ soft: t("Hidden: {why}.", { why: HIDDEN[code]() }) }] };
  if (!hasValue(step.values.scores)) {
    const all = row(step.values.similarity, state.head, q), total = d3.sum(all) + step.facts.eps + (hasValue(step.values.outside) ? valueAt(step.values.outside, state.head, q) : 0);
    return { ...spec, lines: ["w = s / (Σ s + ε)", equation`${all[k]} / ${total} = ${weights[k]}`] };
  }
  const { scores, most, total } = softmaxParts(step, q);
  return { ...spec, cell: [step.values.weights, state.head, q, k], lines: ["w = exp(s − max) / Σ exp(s − max)", equation`exp(${scores[k]} − ${most}) / ${total} = ${weights[k]}`] };
}
function softmaxParts(step, q) {
  const scores = row(step.values.scores, state.head, q), visible = d3.range(scores.length).filter((k) => !hiddenCode(step, q, k));
  const outside = hasValue(step.values.outside) ? valueAt(step.values.outside, state.head, q) : -Infinity;
  const most = Math.max(outside, ...visible.map((k) => scores[k])), total = d3.sum(visible, (k) => Math.exp(scores[k] - most)) + Math.exp(outside - most);
  return { scores, most, total, outside };
}

/* The weight of all keys that are not shown; s is the ln of the sum of their exp(score). */
function tellOutside({ outside, most, total }, step) {
  const value = Math.exp(outside - most) / total;
  return { title: t("not shown"), value, shape: wholeShape(step.values.weights, step.side, keySide(step)), step, lines: ["w = exp(s − max) / Σ exp(s − max)", equation`exp(${outside} − ${most}) / ${total} = ${value}`, { soft: t("s = ln Σ exp(score) over the keys that are not shown") }] };
}
