/* ---- levers: what changes if one thing about the model is changed ---- */
const LEVER_NAMES = {
  sampling: () => t("Temperature, top-k, top-p"), scale: () => t("Without the scale"), causal_mask: () => t("Without the causal mask"), positions: () => t("Without positions"), shuffle: () => t("Words in another order"),
  head: () => t("One head knocked out"), layer: () => t("One layer skipped"), kv_heads: () => t("Fewer key/value heads"), cache: () => t("Another cache"), free_running: () => t("Free running"), prefill: () => t("Prefill and steps"),
};
const LEVER_LEADS = {
  sampling: () => t("The probabilities are sharpened, flattened or cut before a token is sampled."), scale: () => t("The scores are not divided by the root of the head's width: softmax gets larger numbers and its rows get sharper."),
  causal_mask: () => t("Every token also sees those after it, which the model never did in training."), positions: () => t("The model no longer knows the position of a token."), shuffle: () => t("The words of the input come in another order; each row is compared with itself."),
  head: () => t("The result of one head is set to zero."), layer: () => t("The path skips one layer."), kv_heads: () => t("Key and value heads are averaged in groups, as grouped-query and multi-query attention share them."),
  cache: () => t("The text is read through a cache that forgets or rounds: what is lost in the output?"), free_running: () => t("The model reads its own tokens instead of the true ones."), prefill: () => t("Reading all at once, or token by token with a cache: the same result at another price."),
};
const SETTING_NAMES = { temperature: () => t("temperature"), top_k: () => "top-k", top_p: () => "top-p", scale: () => t("scale"), positions: () => t("positions"), seed: () => t("seed"), layer: () => t("layer"), head: () => t("head"), 
  n_kv_heads: () => t("key/value heads"), cache: () => t("cache"), prompt: () => t("prompt"), budget: () => t("budget"), bits: () => t("bits per number"), window: () => t("window"), sink: () => t("sink"), recent: () => t("recent"), rank: () => t("directions"), group: () => t("group size"), shuffled: () => t("shuffled"), stack: () => t("stack"), attention: () => t("attention"),
  beam_size: () => t("beam size"), length_penalty: () => t("length penalty"), early_stopping: () => t("early stopping"), min_new_tokens: () => t("tokens at least"), max_new_tokens: () => t("tokens at most"), no_repeat_ngram_size: () => t("n-grams that must not repeat"), min_p: () => "min-p", repetition_penalty: () => t("repetition penalty") };
const WORDS = { kept: () => t("kept"), none: () => t("none"), encoder: () => t("Encoder"), decoder: () => t("Decoder"), stack: () => t("Layers"), self: () => t("self-attention"), cross: () => t("cross-attention"), true: () => t("on"), false: () => t("off"),
  static: () => t("static"), growing: () => t("growing"), paged: () => t("paged"), state: () => t("recurrent state"), quantized: () => t("quantized"), low_rank: () => t("low rank"), h2o: () => "H2O", subgen: () => "SubGen", window: () => t("window") };
const wordOf = (value) => WORDS[value]?.() ?? value;

function settingText(setting) {
  const parts = Object.entries(setting).filter(([, value]) => value !== undefined).map(([name, value]) => {
    if (value !== null && typeof value === "object") return `${wordOf(value.name ?? "")} ${Object.entries(value).filter(([key]) => key !== "name").map(([key, one]) => `${SETTING_NAMES[key]?.() ?? key} ${one}`).join(t(", "))}`.trim();
    if (name === "stack" || name === "attention") return wordOf(value);
    if (name === "layer") return t("layer {n}", { n: Number(value) + 1 });
    if (name === "head") return t("head {n}", { n: value });
    return `${SETTING_NAMES[name]?.() ?? name} ${typeof value === "number" ? formatNumber(value) : wordOf(value)}`;
  });
  return parts.join(t(", ")) || t("on");
}

const isSameSetting = (a, b) => isSubset(a, b) && isSubset(b, a);
const isSubset = (part, whole) => Object.entries(part).every(([key, value]) => value !== null && typeof value === "object" ? whole[key] !== null && typeof whole[key] === "object" && isSubset(value, whole[key]) : whole[key] === value);
/* The number of the case that has a setting, of several the first; with {case: "largest"} the one that moves the output most. */
const LARGEST = { case: "largest" };
function indexOfCase({ cases }, { case: which, ...setting } = {}) {
  const found = d3.range(cases.length).filter((i) => isSubset(setting, cases[i].setting)), kl = (i) => cases[i].result.mean_kl ?? -1; // one that excludes tokens is no comparison
  return which ? found.reduce((most, i) => most < 0 || kl(i) > kl(most) ? i : most, -1) : found[0] ?? -1;
}
/* Where a lever of a chapter is found; null if it does not apply to the model. */
function findLever({ name, setting = {}, at: place = "" }) {
  const lever = page.data.levers?.levers.find((one) => one.name === name && !one.reason);
  if (!lever) return null;
  const at = indexOfCase(lever, setting);
  if (at < 0 && !page.live) return null;
  return place === "weights" ? findMap(lever, Math.max(at, 0)) : { station: "levers", card: "lever", lever: name, leverCase: Math.max(at, 0) };
}

/* The lever and the case of an address; a live page computes a setting that it has not. */
function readLever(name, text) {
  let setting = {};
  try { setting = JSON.parse(text) ?? {}; } catch { /* of another page, or cut */ }
  const lever = page.data.levers?.levers.find((one) => one.name === name);
  if (!lever) return {};
  const leverCase = lever.cases.findIndex((one) => isSubset(setting, one.setting));
  if (leverCase < 0 && page.live && !lever.reason) queueMicrotask(() => askLever(lever, setting));
  return { lever: name, leverCase: Math.max(leverCase, 0) };
}

const chosenLever = (levers) => levers.find((one) => one.name === state.lever) ?? levers.find((one) => !one.reason) ?? levers[0];
/* Show a case of the chosen lever instead of what is in its form and of what is still computed for it. */
function chooseCase(lever, leverCase) {
  Object.assign(lever, { asked: null, draft: null, message: null });
  go({ leverCase });
}

function showLevers() {
  const part = page.data.levers, { levers } = part, lever = chosenLever(levers);
  const list = h("div", { class: "lever-list", role: "group", "aria-label": t("What if") }, levers.map((one) => h("button", { type: "button", class: one.reason ? "lever-name off" : "lever-name", "aria-pressed": String(one === lever), "data-focus": `lever-${one.name}`, onclick: () => go({ lever: one.name, leverCase: Math.max(indexOfCase(one, LARGEST), 0) }) }, LEVER_NAMES[one.name]?.() ?? one.name)));
  const cards = [card("levers", t("Change one thing"), t("Choose a change: the page shows how far the output moves, and what happens to the rank and the probability of the right token."), list)];
  const title = LEVER_NAMES[lever.name]?.() ?? lever.name;
  if (lever.reason) return [...cards, card("lever", title, lever.reason[page.language] ?? lever.reason.en)];
  const cases = lever.cases, at = keepIn(state.leverCase ?? 0, Math.max(cases.length, 1)), chosen = cases[at], map = chosen?.attention && findMap(lever, at);
  const picture = map ? h("p", { class: "note" }, h("button", { type: "button", class: "link-button", "data-focus": "change-map", onclick: () => go(map, { scroll: true }) }, t("Look at its weights before and after"))) : null;
  return [...cards, card("lever", title, LEVER_LEADS[lever.name]?.(), caseChooser(lever, at), page.live ? leverForm(lever, chosen?.setting ?? lever.settings[0] ?? {}) : null, picture, chosen ? caseResult(part, lever, chosen) : null)];
}

/* The choice among the cases of a lever. */
function caseChooser(lever, at) {
  const { cases } = lever, chosen = cases[at];
  return lever.name === "head" && lever.settings.length > 1 ? headGrid(lever, chosen?.setting ?? {}) : cases.length > 8 ? h("label", { class: "choice" }, t("Setting"), h("select", { "data-focus": "lever-case", onchange: (event) => chooseCase(lever, Number(event.target.value)) }, cases.map((one, i) => h("option", { value: i, selected: i === at }, `${settingText(one.setting)}  (KL ${formatNumber(meanKl(one.result), 2)} ${t("nats")})`))))
    : cases.length > 1 ? picker(t("Setting"), cases.map((one, i) => [i, settingText(one.setting)]), at, (i) => chooseCase(lever, i), { kind: "cases", focus: "case" }) : null;
}

/* Every head as a cell: the stronger the colour, the more the output moves without it; a live page computes one after the other. */
function headGrid(lever, chosen) {
  const { settings } = lever, top = Math.max(...lever.cases.map((one) => one.result.mean_kl), 1e-9), groups = new Map(), caseAt = (i) => lever.cases.findIndex((one) => isSameSetting(one.setting, settings[i]));
  settings.forEach((one, i) => {
    const name = settingText({ ...one, head: undefined });
    groups.set(name, [...(groups.get(name) ?? []), i]);
  });
  const cell = (i) => {
    const at = caseAt(i), found = lever.cases[at], name = settingText(settings[i]), kl = found && `${formatNumber(meanKl(found.result), 2)} ${t("nats")}`, common = { type: "button", "data-focus": `case-${i}`, "aria-pressed": String(isSameSetting(chosen, settings[i])) };
    if (!found) return h("button", { ...common, class: "head-cell open", "aria-label": name, onclick: () => askLever(lever, settings[i]) }, String(settings[i].head));
    const tell = () => tellMeanKl(found.result, labelled(name, t("mean KL")));
    return h("button", { ...common, class: "head-cell", style: `--share: ${Math.round(80 * shade(found.result.mean_kl, top))}%`, "aria-label": labelled(name, `${t("mean KL")} ${kl}`), title: kl, ...inspected(tell), onclick: () => chooseCase(lever, at) }, String(settings[i].head));
  };
  const rows = [...groups].map(([name, members]) => h("tr", {}, h("th", { scope: "row" }, name), h("td", {}, h("div", { class: "head-row" }, members.map(cell)))));
  return h("div", { class: "block" }, h("p", { class: "note" }, t("The stronger the colour of a head, the further the output moves without it.")), scrollRegion(t("One head knocked out"), h("table", { class: "bars heads" }, h("caption", { class: "unseen" }, t("One head knocked out")), h("tbody", {}, rows))));
}

function caseResult(part, lever, chosen) {
  const plain = chosen.baseline_result ?? part.plain, result = chosen.result, { side } = part.rows;
  const n = comparedRows(result).length, top = Math.max(...result.kl, 1e-6), text = (id) => id === undefined || id === null ? "–" : showToken(part.tokens[id] ?? String(id));
  const nameOf = (r) => part.rows.index[r] === null ? t("the text") : tokenText(side, part.rows.index[r]), guess = (one, r) => text(one.top.ids[r]?.[0]);
  const facts = [[t("mean KL"), `${formatNumber(meanKl(result), 3)} ${t("nats")}`, tellMeanKl(result)],
    [t("changed guesses"), t("{n} of {all}", { n: result.changed.length, all: n }), tellChanged(result, (r) => labelled(nameOf(r), `${guess(plain, r)} → ${guess(result, r)}`), n)]];
  const heat = (one) => one === result && lever.name === "sampling" ? chosen.setting.temperature || 1 : 1;
  const best = (one, r) => h("td", {}, guess(one, r), " ", h("span", { class: "soft" }, pointable(formatPercent(one.top.p[r][0]), () => tellListed(one, r, 0, guess(one, r), heat(one)))));
  const rows = part.rows.index.map((_, r) => {
    if (result.rank[r] === null) return null;
    const known = part.rows.is_true[r], changed = result.changed.includes(r), rank = (one) => pointable(String(one.rank[r]), () => tellRank(one, r, nameOf(r)));
    return h("tr", { class: changed ? "on" : null }, h("th", { scope: "row" }, nameOf(r)), best(plain, r), best(result, r), h("td", { class: "bar-cell" }, bar((result.kl[r] ?? top) / top)), numberCell(formatNumber(klOf(result, r), 2), () => tellKl(result, r, nameOf(r))),
      h("td", { class: "number wide-only" }, known ? [rank(plain), " → ", rank(result)] : ""));
  }).filter(Boolean);
  const table = h("table", { class: "bars" }, h("caption", { class: "unseen" }, LEVER_NAMES[lever.name]?.() ?? lever.name), h("thead", {}, h("tr", {}, rowsHead(), h("th", { scope: "col" }, chosen.baseline ? settingText(chosen.baseline) : t("unchanged")), h("th", { scope: "col" }, t("changed")), h("td", {}), h("th", { scope: "col", class: "number" }, t("KL (nats)")), h("th", { scope: "col", class: "number wide-only" }, t("rank of the true token")))), h("tbody", {}, rows));
  return h("div", { class: "case" }, factRow(facts), caseDetail(lever, chosen, part, side), scrollRegion(LEVER_NAMES[lever.name]?.() ?? lever.name, moveInTable(table)));
}

/* What only some levers show. */
function caseDetail({ name, source }, { setting, detail = {} }, part, side) {
  const { config } = page.data.run;
  if (name === "scale" && detail.plain_scale) {
    const isRoot = Math.abs(config.head_dim ** -0.5 - detail.plain_scale) < 1e-6;
    return factRow([[t("the model's own scale"), detail.plain_scale, { lines: isRoot ? ["1 / √D", equation`1 / √${config.head_dim} = ${detail.plain_scale}`] : [], shape: [], source }]]);
  }
  if (name === "kv_heads" && detail.bytes_per_token) {
    const { before, after } = detail.bytes_per_token, layers = config.decoder_layers ?? config.n_layers, heads = config.n_kv_heads;
    return factRow([[t("cache per token, before"), formatBytes(before), tellTokenBytes(before, layers, heads, source)], [t("cache per token, after"), formatBytes(after), tellTokenBytes(after, layers, heads * after / before, source)]]);
  }
  if (name === "layer") return layerDetail(setting);
  if (name === "shuffle" && detail.order) {
    return h("p", { class: "sentence-text" }, detail.order.map((i) => showToken(sideOf(detail.side).tokens[i]?.text ?? "")).join(" "));
  }
  if (name === "cache" && detail.visible) return cacheDetail(detail, side, source);
  if (name === "free_running" && detail.forced) return freeDetail(detail, part, source);
  if (name === "prefill" && detail.step_flops) return prefillDetail(detail, source);
  return null;
}

/* The weights and operations of a layer, which the model saves without it; a layer that others share has no weights of its own. */
function layerDetail({ stack, layer }) {
  const steps = page.data.walk.filter((step) => step.layer === layer && step.stack === stack), fact = (name, numbers, format) => [name, format(numbers.includes(null) ? null : d3.sum(numbers)), numbers.includes(null) ? null : tellSum(numbers.filter(Boolean), d3.sum(numbers), sourceOf("step"))];
  return factRow([fact(t("weights saved"), steps.map((step) => page.data.run.config.share_layers ? 0 : ownBytes(step) / numberBytes()), formatCount), fact(t("operations saved"), steps.map(({ cost }) => cost.flops), formatLarge)]);
}

function cacheDetail(detail, side, source) {
  const steps = detail.visible[0], names = d3.range(steps.length).map((i) => part_text(side, i));
  const facts = factRow([[t("bytes"), formatBytes(detail.bytes), tellCacheBytes(detail.bytes, detail.bytes_terms, source)], [t("bytes of a full cache"), formatBytes(detail.bytes_static), tellCacheBytes(detail.bytes_static, detail.bytes_static_terms, source)],
    [t("kept"), formatPercent(detail.bytes / detail.bytes_static), ratioTell(detail.bytes, detail.bytes_static, detail.bytes / detail.bytes_static, source)]]);
  if (detail.lossless) return facts;
  return h("div", {}, facts, detail.visible.map((layer, l) => h("div", { class: "block" }, h("h4", {}, t("layer {n}: what is still kept at each step", { n: detail.layers[l] + 1 })), keptMatrix(layer, names, detail.layers[l] + 1, source), errorTable(detail, l, names, source))));
}
const part_text = (side, i) => sideOf(side).tokens[i] ? tokenText(side, i) : String(i + 1);

function keptMatrix(steps, names, layer, source) {
  const size = Math.min(Math.max(Math.floor((page.width - 120) / steps.length), 8), 20), left = size < 12 ? 0 : 110, w = left + size * steps.length + 2, down = size * steps.length + 2;
  const cells = steps.flatMap((text, r) => [...text].map((mark, c) => ({ r, c, mark })));
  const svg = d3.create("svg").attr("class", "heat").attr("viewBox", `0 0 ${w} ${down}`).attr("width", w).attr("height", down).attr("role", "img").attr("tabindex", 0).attr("data-focus", `kept-${layer}`).attr("aria-label", t("Kept keys: {n} at the last step of {all}; arrow keys move", { n: [...steps[steps.length - 1]].filter((mark) => mark !== "0").length, all: steps.length }));
  svg.selectAll("rect").data(cells).join("rect").attr("class", (d) => d.mark === "0" ? "gone" : "cell").attr("fill-opacity", (d) => d.mark === "+" ? 0.35 : d.mark === "1" ? 0.75 : 1).attr("x", (d) => left + size * d.c).attr("y", (d) => size * d.r).attr("width", size - 1.5).attr("height", size - 1.5).attr("rx", 2);
  if (size >= 12) svg.append("g").selectAll("text").data(names).join("text").attr("class", "label").attr("x", left - 6).attr("y", (_, i) => size * (i + 0.5)).attr("dy", ".35em").text((text) => clipText(text));
  const here = svg.append("rect").attr("class", "here").attr("width", size - 1.5).attr("height", size - 1.5).attr("rx", 2).attr("visibility", "hidden"), last = steps.length - 1;
  const show = (r, c) => { here.attr("visibility", "visible").attr("x", left + size * c).attr("y", size * r); inspect(tellKept(steps, r, c, names, layer, source), here.node()); };
  const at = (px, py) => px < left || px >= left + size * steps.length || py >= size * steps.length ? null : [keepIn(Math.floor(py / size), steps.length), keepIn(Math.floor((px - left) / size), steps.length)];
  pointAtCells(svg.node(), [steps.length, steps.length], at, show, null, [last, last]);
  svg.node().addEventListener("pointerleave", () => here.attr("visibility", "hidden"));
  return scrollRegion(t("Kept keys"), svg.node());
}
/* Errors of keys and values at the last step, for a cache that rounds. */
function errorTable(detail, l, names, source) {
  const errors = [["K", detail.key_error[l], detail.key_terms?.[l]], ["V", detail.value_error[l], detail.value_terms?.[l]]], most = Math.max(...errors.flatMap(([, one]) => one), 1e-9), steps = detail.visible[l], marks = [...steps[steps.length - 1]];
  if (!errors.some(([, one]) => one.some((error) => error > 0))) return null;
  const cells = ([letter, one, terms], i) => one[i] === null ? [h("td", { class: "bar-cell" }, t("gone")), h("td", {})] : [h("td", { class: "bar-cell" }, bar(one[i] / most)), numberCell(formatNumber(one[i], 2), () => tellError(letter, one[i], terms[i], marks[i], names[i], source))];
  const rows = names.map((name, i) => h("tr", {}, h("th", { scope: "row" }, name), errors.flatMap((one) => cells(one, i))));
  const head = h("tr", {}, h("td", {}), errors.flatMap(([letter]) => [h("td", {}), h("th", { scope: "col", class: "number" }, letter)]));
  return h("details", { class: "numbers" }, h("summary", {}, t("Error of each key and value")), moveInTable(h("table", { class: "bars" }, h("caption", { class: "unseen" }, t("Error of each key and value")), h("thead", {}, head), h("tbody", {}, rows))));
}
function freeDetail(detail, part, source) {
  const line = ({ ids, p, logsumexp }) => ids.map((id, i) => ({ id, text: part.tokens[id] ?? String(id), p: p[i], logsumexp: logsumexp[i], logit: Math.log(p[i]) + logsumexp[i] }));
  const first = detail.first_difference === null || detail.first_difference === undefined ? t("The free output is the text itself.") : t("Free running leaves the true text at token {n}.", { n: detail.first_difference + 1 });
  const { target } = detail.forced, given = target.map((id) => ({ text: part.tokens[id] ?? String(id) }));
  const judged = (one) => line(one).map((token, i) => ({ ...token, wrong: i < target.length && one.ids[i] !== target[i] }));
  return h("div", {}, tokenRun(t("the true text"), given, source), tokenRun(t("guesses by teacher forcing, each after the true text before it"), judged(detail.forced), source),
    tokenRun(t("free running, each after the model's own tokens"), judged(detail.free), source), h("p", { class: "note" }, first));
}
function prefillDetail(detail, source) {
  const width = Math.min(page.width, 560), down = 190, left = 56, n = detail.step_flops.length, x = d3.scaleLinear().domain([1, Math.max(n, 2)]).range([left, width - 10]), y = d3.scaleLinear().domain([0, d3.max(detail.recompute_flops)]).nice().range([down - 22, 10]);
  const svg = d3.create("svg").attr("class", "curve-plot").attr("viewBox", `0 0 ${width} ${down}`).attr("width", width).attr("height", down).attr("role", "img").attr("aria-label", t("Operations per token, with the cache and without; arrow keys move"));
  for (const tick of y.ticks(4)) { svg.append("line").attr("class", "grid").attr("x1", left).attr("x2", width - 10).attr("y1", y(tick)).attr("y2", y(tick)); svg.append("text").attr("class", "tick end").attr("x", left - 6).attr("y", y(tick)).attr("dy", ".35em").text(formatLarge(tick)); }
  for (const tick of x.ticks(6).filter(Number.isInteger)) svg.append("text").attr("class", "tick middle").attr("x", x(tick)).attr("y", down - 5).text(tick);
  const curve = d3.line().x((_, i) => x(i + 1)).y((d) => y(d)).curve(d3.curveMonotoneX);
  svg.append("path").attr("class", "curve second").attr("d", curve(detail.recompute_flops));
  svg.append("path").attr("class", "curve").attr("d", curve(detail.step_flops));
  const curves = [[t("with the cache"), detail.step_flops], [t("without"), detail.recompute_flops]], here = svg.append("circle").attr("class", "spot on").attr("r", 4.5).attr("visibility", "hidden");
  const show = (r, c) => { const [name, flops] = curves[r]; here.attr("visibility", "visible").attr("cx", x(c + 1)).attr("cy", y(flops[c])); inspect(tellStepFlops(flops, c, t("Operations of token {n}, {name}", { n: c + 1, name }), source), here.node()); };
  const at = (px, py) => { const c = keepIn(Math.round(x.invert(px)) - 1, n); const far = ([, flops]) => Math.abs(y(flops[c]) - py); return [Number(far(curves[1]) < far(curves[0])), c]; };
  pointAtCells(svg.attr("tabindex", 0).attr("data-focus", "step-flops").node(), [2, n], at, show, null, [0, n - 1]);
  const [encoder, kv] = [detail.source_flops, detail.source_kv_flops], once = encoder ? [[t("reading the source, once"), formatLarge(encoder + kv), tellParts([[t("Encoder"), encoder], [t("keys and values of the source"), kv]], encoder + kv, "pass")]] : [];
  const facts = factRow([...once, [t("with the cache"), formatLarge(detail.sum_step), tellSum([...(encoder ? [encoder, kv] : []), ...detail.step_flops], detail.sum_step, source)], [t("without"), formatLarge(detail.sum_recompute), tellSum([...(encoder ? [encoder] : []), ...detail.recompute_flops], detail.sum_recompute, source)],
    [t("saved"), formatPercent(detail.saved), ratioTell(detail.sum_step, detail.sum_recompute, detail.saved, source, "1 − a / b")], [t("all at once"), formatLarge(detail.prefill_flops), tellPass(groupCosts())]]);
  return h("div", {}, h("h4", {}, t("Operations")), facts, h("figure", { class: "small-plot" }, svg.node(), h("figcaption", {}, t("Operations (up) of each token (across):"), " ", h("span", { class: "key" }, t("with the cache")), " ", h("span", { class: "key second" }, t("without")))));
}
