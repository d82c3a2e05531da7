/* ---- what the inspector shows of the numbers of outputs, levers, decoding and cost ---- */

const sourceOf = (name) => page.data.sources[name];
/* How many tokens or classes an output chooses from. */
const outputWidth = () => page.data.output.classes ? Math.max(page.data.output.classes.length, 2) : page.data.output.replaced ? 2 : page.data.run.config.vocab_size;
const numberBytes = () => ({ float64: 8, float32: 4 })[page.data.run.dtype] ?? 2;

/* A probability from its logit and the log of the sum of all exp(logit); a logit that was divided by the temperature is shown
   as it was before. */
function tellProbability({ id, text, p, logit, rank }, logSum, about, temperature = 1) {
  const n = outputWidth(), z = logit * temperature, isPlain = temperature === 1;
  const lines = isPlain ? ["p = exp(z − ln Σ exp(z))", equation`exp(${z} − ${logSum}) = ${p}`] : ["p = exp(z / T − ln Σ exp(z / T))", equation`exp(${z} / ${temperature} − ${logSum}) = ${p}`, { soft: t("T: the temperature") }];
  lines.push(...logitLines(z, id));
  if (rank) lines.push({ soft: `${t("rank {n}", { n: formatCount(rank) })}: 1 + #{v: z(v) > z} = 1 + ${formatCount(rank - 1)}` });
  return { title: t("Probability of “{token}”", { token: text }), value: p, lines, shape: [n], flops: 3 * n, bytes: 4 * n, ...about };
}

/* The logit of token or class number id: a map of the last vector, perhaps scaled and capped. */
function logitLines(z, id) {
  const step = page.data.walk.findLast(({ kind, role }) => kind === "head" || role === "classifier");
  if (!step || id === undefined || !Number.isFinite(z)) return [];
  const { scale = 1, softcap } = step.facts, sum = softcap ? softcap * Math.atanh(z / softcap) : z, role = step.kind === "head" ? "head" : "proj";
  const lines = Number.isFinite(sum) ? mapLines(step, role, softcap ? "u" : "z", id, sum, scale === 1 ? "x" : `${formatNumber(scale)} · x`) : [];
  return softcap ? ["z = c · tanh(u / c)", equation`${softcap} · tanh(${sum} / ${softcap}) = ${z}`, ...lines] : lines;
}

const tellLogit = (position, { id, text, logit }, step) => ({ title: t("Logit of “{token}”", { token: showToken(text) }), value: logit, cell: ["logit", position, id], shape: [outputWidth()], step, flops: 2 * shapeOf(step.in)[1], bytes: 8 * shapeOf(step.in)[1], lines: logitLines(logit, id) });

/* The token with index i of those that are listed of row r of an output. */
function tellListed(one, r, i, text, temperature = 1) {
  const p = one.top.p[r][i], logSum = one.logsumexp[r];
  return tellProbability({ id: one.top.ids[r][i], text, p, logit: Math.log(p) + logSum }, logSum, { source: sourceOf("probability") }, temperature);
}

function tellEntropy(one, step) {
  const terms = one.top.slice(0, 3).map(({ p }) => ({ term: expression`${p}·${-Math.log2(p)}`, value: -p * Math.log2(p) })), n = outputWidth();
  return { lines: ["H = −Σ p · log₂ p", equation`${someTerms(terms, n, one.entropy)} = ${one.entropy}`], value: one.entropy, unit: t("bits"), shape: [], flops: 3 * n, bytes: 4 * n, source: step?.source ?? sourceOf("logits") };
}

/* ---- the loss: minus ln p of each true token, in nats ---- */
const lossOf = ({ logsumexp, expected }) => logsumexp - expected.logit;
const tellLoss = (one) => ({ title: t("Loss of “{token}”", { token: showToken(one.expected.text) }), value: lossOf(one), unit: t("nats"), shape: [], flops: 1, bytes: 8, source: sourceOf("logits"),
  lines: ["ℓ = −ln p = ln Σ exp(z) − z", equation`${one.logsumexp} − ${one.expected.logit} = ${lossOf(one)}`, ...logitLines(one.expected.logit, one.expected.id)] });
function tellMeanLoss(all) {
  const losses = all.map(lossOf), mean = d3.sum(losses) / losses.length;
  return { value: mean, unit: t("nats"), shape: [losses.length], flops: losses.length, bytes: 8 * losses.length, source: sourceOf("logits"), lines: ["Σ ℓ / n", equation`(${addedTerms(losses, mean * losses.length)}) / ${losses.length} = ${mean}`, { soft: t("in nats: with the natural logarithm") }] };
}
const tellPerplexity = (mean) => ({ value: Math.exp(mean), shape: [], flops: 1, bytes: 8, source: sourceOf("logits"), lines: ["exp(Σ ℓ / n)", equation`exp(${mean}) = ${Math.exp(mean)}`, { soft: t("as if the model chose each token from so many that are equally likely") }] });

/* The logit of a token that may be replaced, and its probability by the logistic function. */
function tellDetectorLogit({ logits }, i, name) {
  const step = page.data.walk.find(({ role }) => role === "detector");
  return { title: t("Logit of “{token}”", { token: name }), value: logits[i], shape: [sideOf(0).tokens.length], step, ...tellMap(step, "proj", "z", 0, logits[i]) };
}
const tellReplaced = ({ replaced, logits }, i, name) => ({ title: t("Probability that “{token}” was replaced", { token: name }), value: replaced[i], shape: [sideOf(0).tokens.length], flops: 3, bytes: 4, source: sourceOf("output"),
  lines: ["p = 1 / (1 + exp(−z))", equation`1 / (1 + exp(${-logits[i]})) = ${replaced[i]}`] });

/* ---- mixture of experts: the router's logits, probabilities and weights for the token of row r ---- */
/* The weight of each chosen expert, by its index. */
function chosenExperts({ values }, r) {
  const weights = row(values.weight, r);
  return new Map([...row(values.expert, r)].map((e, i) => [Math.round(e), weights[i]]));
}
const tellRouterLogit = (step, r, e) => ({ title: t("Logit of expert {n}", { n: e }), value: row(step.values.logit, r)[e], shape: wholeShape(step.values.logit, step.side), step, source: sourceOf("router"), ...tellMap(step, "router", "z", e, row(step.values.logit, r)[e]) });

/* The probability, its bias where there is one, and its rank by their sum. */
function tellExpert(step, r, e) {
  const { values, facts } = step, z = row(values.logit, r), p = row(values.probability, r), most = Math.max(...z), total = d3.sum(z, (one) => Math.exp(one - most)), b = hasValue(values.balance) ? page.arrays.get(values.balance).data : null;
  const score = (i) => p[i] + (b ? b[i] : 0), rank = 1 + d3.range(p.length).filter((i) => score(i) > score(e)).length, isChosen = chosenExperts(step, r).has(e), words = { n: rank, all: p.length, k: facts.top_k };
  const lines = ["p = exp(z − max) / Σ exp(z − max)", equation`exp(${z[e]} − ${most}) / ${total} = ${p[e]}`];
  if (b) lines.push(equation`p + b = ${p[e]} + ${b[e]} = ${score(e)}`);
  lines.push({ soft: isChosen ? t("Rank {n} of {all}: chosen, as one of the {k} largest.", words) : t("Rank {n} of {all}: not among the {k} largest.", words) });
  return { title: t("Probability of expert {n}", { n: e }), value: p[e], shape: wholeShape(values.probability, step.side), step, source: sourceOf("router"), flops: 3 * p.length, bytes: 4 * p.length, lines };
}
function tellExpertWeight(step, r, e) {
  const chosen = chosenExperts(step, r), p = row(step.values.probability, r), shares = [...chosen.keys()].map((i) => p[i]), total = d3.sum(shares);
  const lines = step.facts.normalize ? ["w = p / Σ p", equation`Σ p = ${addedTerms(shares, total)} = ${total}`, equation`${p[e]} / ${total} = ${chosen.get(e)}`, { soft: t("Σ over the chosen experts") }]
    : [equation`w = p = ${p[e]} = ${chosen.get(e)}`, { soft: t("This layer does not divide by the sum over the chosen experts.") }];
  return { title: t("Weight of expert {n}", { n: e }), value: chosen.get(e), shape: wholeShape(step.values.weight, step.side), step, source: sourceOf("route"), flops: step.facts.normalize ? shares.length : 0, bytes: 4 * shares.length, lines };
}

/* ---- pairs of tokens: the row of a table of distances that they use ---- */
const schemeOf = (step) => page.data.walk.find((one) => one.kind === "position" && hasValue(one.values.index) && one.values.index === step.values.index);

/* The bucket of T5, or the row of Shaw's tables, of query q and key k, from their distance. */
function pairLines({ values, facts }, side, q, k) {
  const index = valueAt(values.index, q, k), distance = k - q, { buckets, max_distance, causal, clip, span } = facts;
  if (span) return spanLines(facts, windowOf(side)[0], q, k, index);
  const name = `j − i = ${windowOf(side)[0] + k} − ${windowOf(side)[0] + q} = ${formatNumber(distance)}`;
  if (clip) return [name, `clip(j − i, ±${clip}) + ${clip} = ${index}`];
  const half = causal ? buckets : buckets / 2, exact = Math.floor(half / 2), size = causal ? Math.max(-distance, 0) : Math.abs(distance), start = !causal && distance > 0 ? `${half} + ` : "", letters = causal ? "max(i − j, 0)" : "|j − i|";
  if (size < exact) return [name, `${start}${letters} = ${start ? `${start}${size} = ` : ""}${index}`];
  return [name, `${start}min(${exact} + ⌊${half - exact} · ln(${size}/${exact}) / ln(${max_distance}/${exact})⌋, ${half - 1}) = ${index}`];
}
/* The row of DeBERTa's table: near distances have a row each, far ones share rows. */
function spanLines({ span, max_distance }, first, q, k, index) {
  const distance = q - k, size = Math.abs(distance), name = `i − j = ${first + q} − ${first + k} = ${formatNumber(distance)}`;
  if (!max_distance) return [name, `δ = min(max(i − j, −${span}), ${span - 1}) + ${span} = ${index}`];
  const near = Math.floor(span / 2), sign = distance < 0 ? MINUS : "";
  if (size <= near) return [name, `δ = i − j + ${span} = ${formatNumber(distance)} + ${span} = ${index}`];
  return [name, `δ = min(${sign}(${near} + ⌈${near - 1} · ln(${size}/${near}) / ln(${max_distance - 1}/${near})⌉), ${span - 1}) + ${span} = ${index}`];
}
const tellPair = (scheme, side, q, k) => ({ title: t("Row of the table for “{q}” and “{k}”", { q: tokenText(side, windowOf(side)[0] + q), k: tokenText(side, windowOf(side)[0] + k) }), value: valueAt(scheme.values.index, q, k), shape: wholeShape(scheme.values.index, side, side), step: scheme, flops: 3, bytes: 8, lines: pairLines(scheme, side, q, k) });

/* The slope of a head of ALiBi. Of H heads that are no power of two the first L have the slopes of L heads, the others every second one of 2L. */
function tellSlope(slopes, h, step) {
  const n = slopes.length, lower = 2 ** Math.floor(Math.log2(n)), isFirst = h < lower, j = h - lower;
  const [letters, numbers] = n === lower ? ["m = 2^(−8(h + 1)/H)", `8 · (${h} + 1) / ${n}`] : isFirst ? ["m = 2^(−8(h + 1)/L)", `8 · (${h} + 1) / ${lower}`] : ["m = 2^(−4(2(h − L) + 1)/L)", `4 · (2 · ${j} + 1) / ${lower}`];
  const rule = n === lower ? [] : [{ soft: t("L = {n}, the largest power of two that is at most H = {all}; the heads after it have every second slope of 2L heads.", { n: lower, all: n }) }];
  return { title: t("Slope of head {n}", { n: h }), value: slopes[h], shape: [n], step, source: sourceOf("slopes"), flops: 4, bytes: 4, lines: [letters, equation`2^(−${numbers}) = ${slopes[h]}`, ...rule] };
}

/* The bias of DeBERTa: the query with the distance as a key, and the key with the distance as a query. */
function mappedDistanceLines({ values, facts }, scheme, index, q, k) {
  const letters = { c2p: "q · k′", p2c: "k · q′" }, both = ["c2p", "p2c"].filter((role) => hasValue(values[role])), roles = both.length ? both : [scheme.facts.terms];
  const products = roles.map((role) => valueAt(both.length ? values[role] : values.bias, state.head, q, k));
  const lines = roles.map((role, i) => `${letters[role]}[${index}] × ${formatNumber(facts.scale)} = ${formatNumber(products[i])}`);
  if (both.length) lines.push(equation`b = ${products[0]} + ${products[1]} = ${valueAt(values.bias, state.head, q, k)}`);
  return [...lines, { soft: t("k′ and q′: the vector of the distance, mapped as a token is mapped to its key and its query") }];
}

/* The bias of a score as it follows from the row of the pair, or from the slope of the head. */
function biasLines(step, q, k) {
  if (hasValue(step.values.slopes)) {
    const m = page.arrays.get(step.values.slopes).data[state.head], first = windowOf(step.side)[0];
    return [equation`b = −m · |i − j| = −${m} · |${first + q} − ${first + k}| = ${-m * Math.abs(q - k)}`];
  }
  const scheme = schemeOf(step);
  if (!scheme) return [];
  const index = valueAt(step.values.index, q, k), pair = pairLines(scheme, step.side, q, k);
  if (scheme.facts.span) return [...pair, ...mappedDistanceLines(step, scheme, index, q, k)];
  if (scheme.values.table) return [...pair, `b = B[${index}, ${state.head}] = ${formatNumber(row(scheme.values.table, index)[state.head])}`, ...tensorWords({ B: scheme.facts.maps?.table?.weight })];
  const [a, b] = [row(step.values.q, state.head, q), row(scheme.values.key, index)], product = dot(a, b);
  return [...pair, `b = q · a[${index}] × ${formatNumber(step.facts.scale)} = ${formatNumber(product * step.facts.scale)}`, equation`q · a[${String(index)}] = ${dotTerms(a, b)} = ${product}`, equation`${product} × ${step.facts.scale} = ${product * step.facts.scale}`, ...tensorWords({ a: scheme.facts.maps?.key?.weight })];
}

/* ---- the sums of attention ---- */

/* The weighted sum of the values of a head: its largest terms, what vectors of distances add, and what keys add that are not shown. */
function mixLines(step, head, q, c) {
  const { values } = step, weights = row(values.weights, head, q), kv = kvHead(step, head), seen = d3.range(weights.length).filter((s) => weights[s] > 0);
  const largest = seen.sort((a, b) => weights[b] - weights[a]).slice(0, 4).sort((a, b) => a - b), value = (s) => row(values.v, kv, s)[c], terms = largest.map((s) => ({ term: expression`${weights[s]}·${value(s)}`, value: weights[s] * value(s) }));
  const more = [["value_bias", "Σ w · a"], ["outside_mix", "r"]].filter(([role]) => hasValue(values[role])), numbers = more.map(([role]) => row(values[role], head, q)[c]);
  const words = { value_bias: t("a: the vector that each distance adds to a value"), outside_mix: t("r: what the keys add that are not shown") };
  return [`o = ${["Σ w · v", ...more.map(([, letters]) => letters)].join(" + ")}`, equation`${[...(seen.length ? [someTerms(terms, seen.length, d3.sum(seen, (s) => weights[s] * value(s)))] : []), ...numbers]} = ${row(values.mix, head, q)[c]}`, ...more.map(([role]) => ({ soft: words[role] }))];
}

/* The similarity of a query and a key in kernel attention, where it is one of the toolkit's own. */
function similarityLines({ sim, equation: rule }, a, b, value) {
  const product = dot(a, b), feature = { elu_similarity: (x) => x > 0 ? x + 1 : Math.exp(x), relu_similarity: (x) => Math.max(x, 0) }[sim], sum = { exp_similarity: expression`exp(${product} / √${a.length})`, square_similarity: expression`${product}^2` }[sim];
  const lines = feature ? [equation`φ(q) · φ(k) = ${dotTerms(a.map(feature), b.map(feature), value)} = ${value}`] : [equation`q · k = ${dotTerms(a, b)} = ${product}`, sum && equation`${sum} = ${value}`];
  return [rule, ...lines].filter(Boolean);
}

/* A number of the state of linear attention; its last column is the sum of the features alone. */
function stateLines(step, kv, r, c) {
  const { values, facts } = step, side = keySide(step), n = facts.causal ? windowOf(side)[1] : sideOf(side).tokens.length, isNormaliser = c === shapeOf(values.state)[2] - 1, formula = isNormaliser ? "S = Σ φ(k)" : "S = Σ φ(k) · vᵀ";
  const total = row(values.state, kv, r)[c];
  if (!hasValue(values.phi_k)) return [`${formula} = ${formatNumber(total)}`];
  const term = (s) => {
    const [key, v = null] = addedToSums(step, kv, s, r, c);
    return { term: v === null ? expression`${key}` : expression`${key}·${v}`, value: key * (v ?? 1) };
  };
  return [formula, equation`${someTerms(d3.range(Math.min(3, shapeOf(values.phi_k)[1])).map(term), n, total)} = ${total}`];
}
function linearWeightLines({ values, ...step }, q, k) {
  const formula = "w = φ(q) · φ(k) / (φ(q) · Σ φ(k) + ε)", weight = valueAt(values.weights, state.head, q, k);
  if (!hasValue(values.phi_k) || weight === 0) return [formula];
  const a = row(values.phi_q, state.head, q), b = row(values.phi_k, kvHead(step), k), product = dot(a, b);
  return [formula, equation`φ(q) · φ(k) = ${dotTerms(a, b)} = ${product}`, equation`${product} / ${product / weight} = ${weight}`];
}

/* ---- levers ---- */
/* A divergence that is null at a compared position is infinite: the change excludes tokens. */
const comparedRows = (result) => d3.range(result.rank.length).filter((r) => result.rank[r] !== null);
const klOf = (result, r) => result.kl[r] ?? Infinity;
const meanKl = (result) => result.mean_kl ?? (comparedRows(result).length ? Infinity : null);
function tellKl(result, r, name) {
  const { p, before } = result.top, n = outputWidth(), kl = klOf(result, r);
  const terms = d3.range(before[r].length).filter((i) => before[r][i] > 0).map((i) => ({ term: expression`${before[r][i]}·ln(${before[r][i]}/${p[r][i]})`, value: before[r][i] * Math.log(before[r][i] / p[r][i]) }));
  return { title: t("KL after “{token}”", { token: name }), value: kl, unit: t("nats"), shape: [result.kl.length], flops: 4 * n, bytes: 16 * n, source: sourceOf("kl"),
    lines: ["KL = Σ p · ln(p / q)", Number.isFinite(kl) ? equation`${someTerms(terms, n, kl)} = ${kl}` : { soft: t("Infinite: the change excludes a token that was possible.") }, { soft: t("q: with the change; p: without") }] };
}

function tellMeanKl(result, title = t("mean KL")) {
  const kl = comparedRows(result).map((r) => klOf(result, r)), mean = kl.length ? d3.sum(kl) / kl.length : meanKl(result), isFinite = Number.isFinite(mean);
  return { title, value: mean, unit: t("nats"), shape: [], flops: kl.length, bytes: 8 * kl.length, source: sourceOf("comparison"),
    lines: ["Σ KL / n", isFinite ? equation`(${addedTerms(kl, mean * kl.length)}) / ${kl.length} = ${mean}` : { soft: t("Infinite: the change excludes a token that was possible.") }] };
}

/* At how many of n positions the most likely token is another one: names has the tokens before and after. */
const tellChanged = (result, names, n) => ({ value: result.changed.length, shape: [n], flops: 2 * n * outputWidth(), bytes: 8 * n * outputWidth(), source: sourceOf("comparison"),
  lines: [`#{argmax q ≠ argmax p} = ${result.changed.length}`, ...result.changed.slice(0, 3).map((r) => names(r))] });

function tellRank(one, r, name, n = outputWidth()) {
  const rank = one.rank[r];
  return { title: t("Rank of the true token after “{token}”", { token: name }), value: rank, shape: [one.rank.length], flops: n, bytes: 4 * n, source: sourceOf("rank"),
    lines: ["1 + #{v: z(v) > z(true)}", `1 + ${formatCount(rank - 1)} = ${formatCount(rank)}`, { soft: t("its probability: {p}", { p: formatPercent(one.p[r]) }) }] };
}

/* Bytes of the keys and values of a token; only if that is what was measured. */
function tellTokenBytes(bytes, layers, heads, source) {
  const { head_dim, v_head_dim } = page.data.run.config, lines = layers * heads * (head_dim + v_head_dim) * numberBytes() === bytes ? [t("layers · heads · (D of K + D of V) · bytes"), `${layers} · ${heads} · (${head_dim} + ${v_head_dim}) · ${numberBytes()} = ${formatCount(bytes)}`] : [MEASURED()];
  return { value: bytes, lines, shape: [], source };
}
const MEASURED = () => ({ soft: t("Measured: the bytes of all arrays of the cache that hold tokens.") });

/* What a cache stores, and the factors of its bytes. */
const STORED = {
  numbers: () => t("keys and values"), positions: () => t("position of each token"), rounded: () => t("rounded keys and values"), scales: () => t("scale and smallest number of each channel of K and each token of V"), rest: () => t("tokens of the last group, not rounded"), scores: () => t("position and score of each slot"),
  counts: () => t("position and count of each slot"), centres: () => t("centres of the clusters"), norms: () => t("sums of the squared norms of values"), k_basis: () => t("directions of K"), v_basis: () => t("directions of V"), state: () => t("recurrent state"),
};
const FACTORS = {
  tokens: () => t("tokens"), slots: () => t("slots"), all_slots: () => t("slots of all layers and heads"), groups: () => t("groups"), layers: () => t("layers"), heads: () => t("heads"), group: () => t("tokens of a group"), width: () => t("numbers of K and V"), bytes: () => t("bytes of each"), byte_share: () => t("bits / 8"),
  scales: () => t("numbers"), clusters: () => t("clusters"), all_heads: () => t("heads of all layers"), head_dim: () => "D", rank: () => t("rank"), state_numbers: () => t("numbers"),
};
/* The bytes of a cache as a sum of products: terms = [[what, {factor: number}]]. */
function tellCacheBytes(bytes, terms, source) {
  const shown = (factors) => Object.entries(factors).filter(([name, number]) => name !== "heads" || number > 1), words = terms.map(([what, factors]) => ({ soft: labelled(STORED[what](), shown(factors).map(([name]) => FACTORS[name]()).join(" · ")) }));
  const sum = terms.map(([, factors]) => shown(factors).map(([, number]) => formatCount(number)).join("·")).join(" + ");
  return { value: bytes, lines: terms.length ? [...words, `${sum} = ${formatCount(bytes)}`] : [MEASURED()], shape: [], source };
}
const ratioTell = (a, b, value, source, formula = "a / b") => ({ value, lines: [formula, equation`${formula.startsWith("1") ? "1 − " : ""}${formatCount(a)} / ${formatCount(b)} = ${value}`], shape: [], flops: 1, source });

/* Keys that are still kept after step r, of which column c is one. */
function tellKept(steps, r, c, names, layer, source) {
  const marks = [...steps[r]], kept = marks.filter((mark) => mark !== "0").length, why = { 0: t("evicted"), "+": t("kept by some heads"), 1: t("kept by all heads") };
  return { title: t("Keys that are kept at step {n}, layer {layer}", { n: r + 1, layer }), value: kept, shape: [steps.length, steps.length], source,
    lines: [t("read − evicted"), `${marks.length} − ${marks.length - kept} = ${kept}`, c < marks.length ? { soft: labelled(`“${names[c]}”`, why[marks[c]]) } : null].filter(Boolean) };
}

function tellError(letter, error, terms, mark, name, source) {
  const { n_kv_heads: heads, head_dim } = page.data.run.config, formula = `Σ |${letter}′ − ${letter}| / |${letter}| / n`;
  const lines = mark === "+" ? [formula] : [formula, equation`(${addedTerms(terms, error * heads, terms.length, heads)}) / ${heads} = ${error}`];
  return { title: t("Error of {letter} of “{token}”", { letter, token: name }), value: error, shape: [heads], flops: 5 * heads * head_dim, bytes: 8 * heads * head_dim, source,
    lines: [...lines, { soft: t("{letter}′ is read from the cache, {letter} was written to it; the mean is over the heads that keep it.", { letter }) }] };
}

/* Operations of one more token: the matrices, and what grows with each token before it. */
function tellStepFlops(flops, i, title, source) {
  const growth = flops[1] - flops[0], fixed = flops[0] - growth, isLine = flops.length > 1 && flops[i] === fixed + growth * (i + 1);
  return { title, value: flops[i], shape: [flops.length], source,
    lines: isLine ? ["a + b · t", `${formatCount(fixed)} + ${formatCount(growth)} · ${i + 1} = ${formatCount(flops[i])}`, { soft: t("a: products with the matrices; b: scores and values of each key") }] : [{ soft: t("All tokens so far are read again.") }] };
}
const tellSum = (numbers, total, source) => ({ value: total, lines: [equation`${addedCounts(numbers, total)} = ${total}`], shape: [], source });

/* ---- decoding ---- */
function tellTotal(beam, one) {
  return { title: t("Sum of ln p with “{token}”", { token: showToken(one.text) }), value: one.total, unit: t("nats"), shape: [], flops: 1, bytes: 8, source: sourceOf("beams"),
    lines: ["Σ ln p", equation`${beam.log_prob} + ${one.log_prob} = ${one.total}`] };
}

function tellCandidate(one) {
  const n = outputWidth();
  return { title: t("Probability of “{token}”", { token: showToken(one.text) }), value: one.p, shape: [n], flops: 3 * n, bytes: 4 * n, source: sourceOf(one.q === undefined ? "beams" : "sampling"),
    lines: ["p = exp(z − ln Σ exp(z))", equation`exp(${one.log_prob}) = ${one.p}`] };
}

/* The probability that a token is drawn with, from p; its sum is known if all tokens that can be drawn are listed. */
function tellDrawn(candidates, one, { temperature }) {
  const power = (p) => p ** (1 / temperature), drawn = candidates.filter(({ q }) => q > 0), sum = d3.sum(drawn, ({ p }) => power(p)) / d3.sum(drawn, ({ q }) => q);
  const isPower = temperature > 0 && one.q > 0 && Math.abs(power(one.p) / sum - one.q) < 1e-4 * one.q;
  return { title: t("Probability of drawing “{token}”", { token: showToken(one.text) }), value: one.q, shape: [outputWidth()], flops: 5 * outputWidth(), bytes: 4 * outputWidth(), source: sourceOf("sampling"),
    lines: isPower ? ["q = p^(1/T) / Σ p^(1/T)", equation`${one.p}^(1/${temperature}) / ${sum} = ${one.q}`]
      : [{ soft: one.q > 0 ? t("After temperature, top-k, top-p and penalties.") : t("Cut by top-k, top-p, min-p or a penalty.") }] };
}

/* Where an output ended: the step, the beam of it, and its last token; null if it is not among the shown steps. */
function findEnd({ steps }, output) {
  const ends = (beam, one) => String(one.ends ? beam.tokens : [...beam.tokens, one.id]) === String(output.ids) && Math.abs(one.total - output.log_prob) < 1e-4;
  for (const [s, step] of steps.entries()) for (const [b, beam] of step.beams.entries()) {
    const last = beam.candidates.find((one) => ends(beam, one));
    if (last) return { s, b, beam, last };
  }
  return null;
}

/* The ln p of an output: that of the beam that it ended, plus that of its last token. */
function tellOutputSum(generation, output) {
  const { beam, last } = findEnd(generation, output) ?? {};
  return { title: t("Sum of ln p of “{text}”", { text: clipText(output.text, 24) }), value: output.log_prob, unit: t("nats"), shape: [], flops: output.ids.length, source: sourceOf("beams"),
    lines: beam ? ["Σ ln p", equation`${beam.log_prob} + ${last.log_prob} = ${output.log_prob}`] : [`Σ ln p = ${formatNumber(output.log_prob)}`, { soft: t("{n} terms", { n: output.ids.length }) }] };
}
const tellScored = (output, penalty) => ({ title: t("Score of “{text}”", { text: clipText(output.text, 24) }), value: output.score, unit: t("nats"), shape: [], flops: 2, bytes: 8, source: sourceOf("score"),
  lines: ["Σ ln p / n^α", equation`${output.log_prob} / ${output.length}^${penalty} = ${output.score}`, { soft: t("n: tokens with the end token; α: the length penalty") }] });

/* ---- cost ---- */
const PART_NAMES = {
  projections: () => t("projections"), "scores and values": () => t("scores and values"), "features and sums": () => t("features and sums"), "feed-forward": () => t("Feed-forward"), recurrence: () => t("Recurrence"), convolution: () => t("Convolution"),
  embeddings: () => t("embeddings"), transform: () => t("transform"), head: () => t("Output head"), pooler: () => t("Pooling"), classes: () => t("Classes"), "replaced or not": () => t("replaced or not"),
};
const PART_PREFIXES = { "encoder ": () => t("Encoder"), "decoder ": () => t("Decoder"), "cross ": () => t("Cross-attention") };
function partName(name) {
  const prefix = Object.keys(PART_PREFIXES).find((one) => name.startsWith(one));
  return prefix ? `${PART_PREFIXES[prefix]()}, ${partName(name.slice(prefix.length))}` : PART_NAMES[name]?.() ?? name;
}

/* Products of sizes that are the operations of a part: [letters, numbers of each term]. */
function productsOf(step, part) {
  const [T] = step.shape.in, { d_model: C, d_embedding, vocab_size } = page.data.run.config, E = d_embedding ?? C;
  const { heads: H, kv_heads: K, head_dim, v_head_dim, units, is_gated } = step.facts, S = isCross(step) ? sideOf(keySide(step)).tokens.length : T, D = head_dim + v_head_dim;
  return {
    projections: ["2·T·C·H·(D + Dᵥ) + 2·S·C·K·(D + Dᵥ)", [2, T, C, H, D], [2, S, C, K, D]],
    "scores and values": ["2·H·T·S·(D + Dᵥ)", [2, H, T, S, D]],
    "feed-forward": is_gated ? ["3 · 2·T·C·F", [3, 2, T, C, units]] : ["2 · 2·T·C·F", [2, 2, T, C, units]],
    head: ["2·T·E·V", [2, T, E, vocab_size]],
  }[part];
}
function partLines(step) {
  return Object.entries(step.cost.parts).flatMap(([part, flops]) => {
    const [letters, ...products] = productsOf(step, part) ?? [], isKnown = letters && d3.sum(products, (sizes) => sizes.reduce((a, b) => a * b)) === flops;
    const numbers = isKnown ? `${products.map((sizes) => sizes.map(formatCount).join("·")).join(" + ")} = ` : "";
    return [{ soft: isKnown ? labelled(partName(part), letters) : partName(part) }, `${numbers}${formatCount(flops)}`];
  });
}

/* A number of a group of steps: how it comes about in the first that has it, and the sum over all. */
function tellGroup(name, of, steps, read, lines) {
  const counted = steps.filter((step) => read(step) > 0), numbers = counted.map(read), total = d3.sum(numbers), isSame = new Set(numbers).size === 1;
  const sum = counted.length < 2 ? null : isSame ? `${numbers.length} · ${formatCount(numbers[0])} = ${formatCount(total)}` : equation`${addedCounts(numbers, total)} = ${total}`;
  return { title: labelled(name, of), value: total, shape: (counted[0] ?? steps[0]).shape.out, source: sourceOf("step"), lines: [...(counted.length ? lines(counted[0]) : []), sum].filter(Boolean) };
}
const sizeText = (shape) => shape.map(formatCount).join("·");
/* The bytes of the weights of a step that no step before it has. */
const ownBytes = ({ cost }) => cost.weight_bytes - cost.shared_bytes;
const weightLines = (step) => [t("numbers · bytes of each"), `${formatCount(ownBytes(step) / numberBytes())} · ${numberBytes()} = ${formatCount(ownBytes(step))}`];
const activationLines = ({ shape, cost }) => [t("(in + out) · bytes of each"), `(${[shape.in, shape.out].filter((one) => one.length).map(sizeText).join(" + ")}) · ${numberBytes()} = ${formatCount(cost.activation_bytes)}`];

/* A sum over named parts. */
const tellParts = (parts, total, source) => ({ value: total, shape: [], source: sourceOf(source),
  lines: [...parts.map(([name, number]) => ({ soft: labelled(name, formatCount(number)) })), equation`${addedCounts(parts.map(([, number]) => number), total, 8)} = ${total}`] });
const tellPass = (groups) => tellParts([...groups].map(([name, { flops }]) => [name, flops]).filter(([, flops]) => flops > 0), page.data.costs.total.flops, "pass");
const tellDecodeStep = ({ flops, parts }) => tellParts(Object.entries(parts).map(([name, number]) => [partName(name), number]), flops, "decode_step");
