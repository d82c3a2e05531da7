/* ---- measures: numbers of this page that a chapter names in its sentences, tables and questions ---- */
const stepsOf = (...kinds) => page.data.walk.filter((step) => kinds.includes(step.kind));
const selfAttentions = () => stepsOf("attention").filter((step) => !isCross(step));
const nTokens = () => page.data.sides[0].tokens.length;
/* Settings of parts that a model may lack. */
const PARTS_OF_SETTING = { head_dim: ["attention", "linear_attention"], d_ff: ["feed_forward"] };
const configOf = (name) => PARTS_OF_SETTING[name] && !stepsOf(...PARTS_OF_SETTING[name]).length ? null : page.data.run.config[name] ?? null;
/* −ln p of the true token of each position that has one. */
const lossesOf = () => (page.data.output.positions ?? []).filter((one) => one.expected).map((one) => -Math.log(one.expected.p));
const averageOf = (numbers) => numbers.length ? d3.sum(numbers) / numbers.length : null;
const orNull = (sum) => sum === 0 ? null : sum;

/* The case of a lever that a measure names; null if the lever does not apply or the case is not computed. */
function caseOf({ of, setting }) {
  const lever = page.data.levers?.levers.find((one) => one.name === of && !one.reason);
  return lever?.cases[indexOfCase(lever, setting)] ?? null;
}
const klOfCase = (found) => found ? meanKl(found.result) : null;

const MEASURES = {
  config: ({ of }) => of.split("*").map(configOf).reduce((a, b) => a === null || b === null ? null : a * b),
  tokens: nTokens,
  bytes_per_token: () => averageOf(page.data.sides[0].tokens.filter((token) => !token.special).map(({ text }) => new TextEncoder().encode(text).length)),
  table_size: () => configOf("vocab_size") * (configOf("d_embedding") ?? configOf("d_model")),
  embedding_factor: () => { const step = stepsOf("embedding").find(({ values }) => hasValue(values?.rows) && hasValue(values?.scaled)); return step ? length(row(step.values.scaled, 0)) / length(row(step.values.rows, 0)) : 1; },
  scale: () => page.data.levers && caseOf({ of: "scale" })?.detail?.plain_scale,
  group: () => stepsOf("attention", "linear_attention").length ? configOf("n_heads") / configOf("n_kv_heads") : null,
  heads: () => orNull(d3.sum(stepsOf("attention", "linear_attention"), (step) => step.facts.heads)),
  hidden_share: () => { const step = selfAttentions().find(({ stack }) => stack === "decoder") ?? selfAttentions()[0], codes = step && page.arrays.get(step.values.hidden)?.data; return codes ? averageOf([...codes].map((code) => Number(code > 0))) : null; },
  cross_cells: () => page.data.sides.length > 1 && stepsOf("attention").some(isCross) ? nTokens() * page.data.sides[1].tokens.length : null,
  depth: () => page.data.layers.length,
  branch_share: () => { const step = stepsOf("residual")[0]; return step ? averageOf(d3.range(shapeOf(step.values.x)[0]).map((r) => step.facts.scale * length(row(branchesOf(step.values)[0], r)) / length(row(step.values.x, r)))) : null; },
  active_share: () => averageOf([stepsOf("feed_forward")[0]?.facts.active ?? []].flat()),
  top_weight: () => { const step = stepsOf("attention")[0]; return step ? Math.max(...row(step.values.weights, 0, shapeOf(step.values.weights)[1] - 1)) : null; },
  positions: () => orNull(lossesOf().length),
  right_guesses: () => lossesOf().length ? page.data.output.positions.filter((one) => one.expected?.rank === 1).length : null,
  top_probability: () => page.data.output.positions?.at(-1)?.top[0].p ?? (page.data.output.classes?.length ? Math.max(...page.data.output.classes.map(({ p }) => p)) : null),
  kv_numbers: () => page.data.generation && stepsOf("attention").length ? (configOf("decoder_layers") ?? configOf("n_layers")) * configOf("n_kv_heads") * (configOf("head_dim") + configOf("v_head_dim")) : null,
  flops: () => page.data.costs.total.flops,
  pass_over_step: () => page.data.costs.decode_step && page.data.costs.total.flops / page.data.costs.decode_step.flops,
  parameters: () => page.data.run.parameters,
  formula_layer: () => 12 * configOf("d_model") ** 2 + 13 * configOf("d_model"),
  all_reduce_bytes: () => 2 * 3 / 4 * 4 * page.data.run.parameters, // of 4 processes, 4 bytes each
  bubble: () => (page.data.layers.length - 1) / (page.data.layers.length + 3), // of 4 parts of a batch
  distances: () => 2 * nTokens() - 1,
  pages: () => MEASURES.kv_numbers() && Math.ceil(page.data.sides.at(-1).tokens.length / 16),
  empty_share: () => MEASURES.kv_numbers() && 1 - page.data.sides.at(-1).tokens.length / configOf("max_len"),
  family: () => ({ decoder: 0, "encoder-decoder": 2 })[page.data.run.kind] ?? 1,
  state_numbers: () => configOf("head_dim") && configOf("head_dim") * (configOf("v_head_dim") + 1),
  tie_saving: () => configOf("head_dim") && configOf("d_model") * configOf("n_kv_heads") * configOf("head_dim"),
  loss: () => averageOf(lossesOf()),
  perplexity: () => lossesOf().length ? Math.exp(averageOf(lossesOf())) : null,
  steps: () => page.data.run.steps ?? null,
  levers: () => page.data.levers ? page.data.levers.levers.filter((one) => !one.reason).length : null,
  layer_over_head: () => { const layer = klOfCase(caseOf({ of: "layer" })), head = klOfCase(caseOf({ of: "head", setting: LARGEST })); return layer !== null && head ? layer / head : null; },
  kl: (spec) => klOfCase(caseOf(spec)),
  changed: (spec) => caseOf(spec)?.result.changed.length ?? null,
  largest_kl: ({ of }) => klOfCase(caseOf({ of, setting: LARGEST })),
};
/* A measure as a number; null if this model or this page has none. */
const measure = (spec) => MEASURES[spec.name](spec) ?? null;

/* What a change did here, as words that end a sentence; they follow from its number. */
function effectText(spec) {
  const found = caseOf(spec), kl = klOfCase(found);
  if (kl === null) return page.live && page.data.levers?.levers.some((one) => one.name === spec.of && !one.reason) ? t("open it to see how much changes here") : t("this model has nothing to change there");
  const values = { kl: formatNumber(kl, 2), n: found.result.changed.length, all: comparedRows(found.result).length };
  const text = kl < 0.01 ? t("here it changes almost nothing: KL {kl}, {n} of {all} guesses", values) : kl < 0.1 ? t("here it changes a little: KL {kl}, {n} of {all} guesses", values) : t("here it changes much: KL {kl}, {n} of {all} guesses", values);
  return spec.setting?.case ? t("{text} ({setting})", { text, setting: settingText(found.setting) }) : text;
}

/* Measures that are words. */
const TEXTS = { effect: effectText, greedy: greedyText, difference: differenceText };

/* Where this model has other weights than the closed form: [part, its weights less those of the formula], which add up. */
function parameterDifferences() {
  const H = configOf("d_model"), L = page.data.layers.length, formula = { attention: L * (4 * H * H + 4 * H), feed_forward: L * (8 * H * H + 5 * H), norm: L * 4 * H, embedding: configOf("vocab_size") * H };
  const kindOf = (step) => isCross(step) ? "cross" : step.kind === "norm" && step.layer === null ? "outer" : { linear_attention: "attention", moe: "feed_forward" }[step.kind] ?? step.kind;
  const names = { attention: t("Self-attention"), cross: t("Cross-attention"), norm: t("Norms of the layers"), outer: t("Other norms") }, found = new Map(Object.keys(formula).map((kind) => [kind, -formula[kind]]));
  for (const step of page.data.walk) found.set(kindOf(step), (found.get(kindOf(step)) ?? 0) + ownBytes(step) / numberBytes());
  const rows = [...found].map(([kind, number]) => [names[kind] ?? KIND_NAMES[kind]?.() ?? kind, number]), rest = page.data.run.parameters - d3.sum(Object.values(formula)) - d3.sum(rows, ([, number]) => number);
  return [...rows, [t("in no part above"), rest]].filter(([, number]) => number);
}
function differenceText() {
  const rows = parameterDifferences(), all = d3.sum(rows, ([, number]) => number), n = formatCount(Math.abs(all)), parts = rows.map(([name, number]) => `${name} ${number > 0 ? "+" : MINUS}${formatCount(Math.abs(number))}`).join(t("; "));
  const depth = layerCounts().length > 1 ? `${page.data.layers.length} (${layerCounts().join(" + ")})` : page.data.layers.length;
  return joinSentences(t("Here L is {depth}.", { depth }), !rows.length ? t("This model has just as many weights as the formula gives.") : all < 0 ? t("This model has {n} weights fewer than the formula gives: {parts}.", { n, parts }) : t("This model has {n} weights more than the formula gives: {parts}.", { n, parts }));
}

/* Parameters or operations by the closed form of the literature, and those of this model. */
const TABLES = { parameters: () => countTable(t("Parameters of a layer"), parameterRows()), operations: () => countTable(t("Operations of a layer"), operationRows()) };
function countTable(name, rows) {
  const cell = (number) => h("td", { class: "number", "data-value": number }, number === null ? "–" : formatCount(Math.round(number)));
  return h("table", { class: "bars counts" }, h("caption", { class: "unseen" }, name), h("thead", {}, h("tr", {}, h("td", {}), [t("formula"), t("by the formula"), t("counted here")].map((text) => h("th", { scope: "col", class: "number" }, text)))),
    h("tbody", {}, rows.map(([label, formula, number, here]) => h("tr", {}, h("th", { scope: "row" }, label), h("td", { class: "number" }, h("code", {}, formula)), cell(number), cell(here)))));
}
/* The first step of a kind in the first layer, in numbers: that of parameters from the bytes of its weights. */
const parametersOf = (step) => step ? step.cost.weight_bytes / numberBytes() : null;
function parameterRows() {
  const H = configOf("d_model"), L = page.data.layers.length, V = configOf("vocab_size"), attention = stepsOf("attention", "linear_attention")[0], ffn = stepsOf("feed_forward")[0];
  const norms = page.data.walk.filter((step) => step.kind === "norm" && step.layer === 0 && step.side === 0 && step.stack === page.data.layers[0].stack);
  const parts = [parametersOf(attention), parametersOf(ffn), norms.length ? d3.sum(norms, parametersOf) : null], layer = parts.includes(null) ? null : d3.sum(parts);
  return [[t("Attention"), "4H² + 4H", 4 * H * H + 4 * H, parts[0]], [t("Feed-forward"), "8H² + 5H", 8 * H * H + 5 * H, parts[1]], [t("Norms"), "4H", 4 * H, parts[2]], [t("A layer"), "12H² + 13H", 12 * H * H + 13 * H, layer],
    [t("Embedding"), "VH", V * H, MEASURES.table_size()], [t("The model"), "L(12H² + 13H) + VH", L * (12 * H * H + 13 * H) + V * H, page.data.run.parameters]];
}
function operationRows() {
  const H = configOf("d_model"), S = nTokens(), attention = stepsOf("attention", "linear_attention")[0], ffn = stepsOf("feed_forward")[0], parts = Object.values(attention?.cost.parts ?? {});
  const pair = parts.length === 2 ? parts : [null, null], ffnFlops = ffn?.cost.flops ?? null, layer = pair[0] === null || ffnFlops === null ? null : d3.sum(pair) + ffnFlops;
  return [[t("projections"), "8SH²", 8 * S * H * H, pair[0]], [t("scores and values"), "4S²H", 4 * S * S * H, pair[1]], [t("Feed-forward"), "16SH²", 16 * S * H * H, ffnFlops], [t("A layer"), "24SH² + 4S²H", 24 * S * H * H + 4 * S * S * H, layer]];
}
