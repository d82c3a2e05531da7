/* ---- a change at the attention that it reaches: the weights before, after, and their difference, side by side ---- */
const MAP_LEVERS = new Set(["scale", "causal_mask", "positions", "head", "kv_heads", "cache"]);
const LEAST_CELL = 5, FUTURE = 2; // of maps side by side, in pixels; the code of a key that comes later
const mapLevers = () => (page.data.levers?.levers ?? []).filter((one) => MAP_LEVERS.has(one.name) && !one.reason);
/* The change that the attention stations show; null for none. */
const changeAt = (station) => station.core?.kind === "attention" ? mapLevers().find((one) => one.name === state.lever) ?? null : null;
/* What a case has of the weights of attentions: first of the one in which they change most. A file has no other. */
const mapsOf = (one) => [one.attention, ...(one.others ?? [])].filter(Boolean);
/* The station at which a case of a lever is seen, as a target. */
function findMap(lever, leverCase) {
  const path = lever.cases[leverCase]?.attention?.path, isAttention = ({ core }) => core?.kind === "attention", station = page.stations.find(({ core }) => path && core?.path === path) ?? page.stations.find(isAttention);
  return station && MAP_LEVERS.has(lever.name) ? { station: station.id, card: "change", key: null, lever: lever.name, leverCase } : null;
}

function changeCard(step, q, k) {
  const levers = mapLevers(), lever = changeAt(currentStation()), cases = lever?.cases ?? [], at = keepIn(state.leverCase, Math.max(cases.length, 1)), chosen = cases[at];
  if (!levers.length) return null;
  const options = [["", t("unchanged")], ...levers.map(({ name }) => [name, LEVER_NAMES[name]()])];
  const choice = h("div", { class: "change-choice" }, picker(t("What if"), options, lever?.name ?? "", (name) => go({ lever: name || null, leverCase: name ? Math.max(indexOfCase(levers.find((one) => one.name === name), LARGEST), 0) : 0 }), { kind: "cases", focus: "change" }),
    lever && caseChooser(lever, at), lever && page.live ? leverForm(lever, chosen?.setting ?? lever.settings[0] ?? {}) : null);
  const shown = card("change", t("The weights, if one thing changes"), t("Choose a change: the same text runs through the changed model, whose weights are compared with those above."), choice, ...(chosen ? changeParts(step, q, k, lever, chosen) : []));
  shown.classList.toggle("idle", !chosen);
  return shown;
}

function changeParts(step, q, k, lever, chosen) {
  const maps = mapsOf(chosen), found = maps.find(({ path }) => path === step.path), most = chosen.attention, target = most && findMap(lever, lever.cases.indexOf(chosen)), place = target && page.stations.find(({ id }) => id === target.station);
  const name = [LEVER_NAMES[lever.name](), Object.keys(chosen.setting).length ? settingText(chosen.setting) : null].filter(Boolean).join(t(", ")), effect = labelled(name, effectText({ of: lever.name, setting: chosen.setting }));
  const where = most ? t("The weights change most in {place}, by {change} on average.", { place: fullName(place), change: formatNumber(most.change, 2) }) : chosen.detail?.merged ? t("A slot of this cache represents several tokens, so its weights are no matrix of tokens.") : t("No attention reads anything but what it read before: all weights stay the same.");
  const notes = [h("p", { class: "note" }, joinSentences(`${effect}${page.language === "zh" ? "。" : "."}`, where))];
  if (most && place.core !== step) notes.push(h("p", { class: "note" }, h("button", { type: "button", class: "link-button", "data-focus": "change-there", onclick: () => go(target, { scroll: true }) }, t("Look there: {place}", { place: fullName(place) })), page.live || found ? null : ` ${t("The file keeps these weights of that attention alone.")}`));
  if (most && !found && page.live) queueMicrotask(() => askMap(lever, chosen, step.path));
  if (!found) return notes;
  if (!found.weights) return [...notes, h("p", { class: "note" }, found.isOpen ? t("Computing …") : t("Here the weights stay the same."))];
  const { heads } = found, head = heads.includes(state.head) ? state.head : heads[0];
  if (heads.length < step.facts.heads) notes.push(h("p", { class: "note" }, t("Of this case the file keeps the heads whose weights change most.")), picker(t("Head"), heads.map((n) => [n, String(n), t("head {n}", { n })]), head, (n) => go({ head: n }), { kind: "heads", focus: "change-head" }));
  return [...notes, drawChange(step, [q, k], found, head, lever)];
}

/* The maps in one row if there is room, else below each other. */
function drawChange(step, chosen, found, head, lever) {
  const rows = queryNames(step), columns = keyNames(step), n = columns.length, i = found.heads.indexOf(head), before = (r, c) => valueAt(step.values.weights, head, r, c), after = (r, c) => valueAt(found.weights, i, r, c), change = (r, c) => after(r, c) - before(r, c);
  const most = Math.max(0.01, largest(rows.flatMap((_, r) => d3.range(n).map((c) => change(r, c)))));
  const room = matrixMargins(rows, columns), size = Math.min(Math.floor((page.width - 32 - room.left - 3 * room.right) / (3 * n)), 26), isRow = page.width >= 540 && size >= LEAST_CELL, hidden = (r, c) => hiddenCode(step, r, c), stays = (r, c) => after(r, c) || (lever.name === "causal_mask" && hidden(r, c) === FUTURE) ? 0 : hidden(r, c);
  const words = (r, c) => ({ q: rows[r], k: columns[c], h: head }), spec = { step, source: lever.source, shape: wholeShape(step.values.weights, step.side, keySide(step)), flops: 4, bytes: 4 * n };
  const tellAfter = (r, c) => {
    const all = d3.range(n).map((s) => after(r, s)), top = Math.max(...all), w = all[c], lines = w && hasValue(step.values.scores) ? ["w′ = exp(s′ − max) / Σ exp(s′ − max)", equation`exp(${Math.log(w / top)}) / ${1 / top} = ${w}`] : [`w′ = ${formatNumber(w)}`];
    return { ...spec, title: t("Weight of “{k}” for “{q}”, head {h}, changed", words(r, c)), value: w, lines: [...lines, { soft: w || !(stays(r, c) || lever.name === "cache") ? t("s′: the scores of the changed model") : t("The changed query does not see this key.") }] };
  };
  const tellChange = (r, c) => ({ ...spec, title: t("Change of the weight of “{k}” for “{q}”, head {h}", words(r, c)), value: change(r, c), flops: 1, bytes: 8, lines: ["w′ − w", equation`${after(r, c)} − ${before(r, c)} = ${change(r, c)}`] });
  const map = (focus, title, i, options) => h("div", { class: "block", style: isRow ? `width: ${Math.ceil((i ? 4 : room.left) + size * n + room.right)}px` : null }, h("h4", {}, title), drawMatrix({ name: `${title}, ${t("head {n}", { n: head })}`, rows, columns, chosen, focus: `change-${focus}`, choose: (r, c) => chooseCell(step, r, c), hasRows: !isRow || !i, size: isRow ? size : null, ...options }));
  return h("div", { class: isRow ? "maps" : "columns" }, map("before", t("before"), 0, { share: true, value: before, code: hidden, tell: (r, c) => atHead(head, () => tellWeight(step, r, c)) }),
    map("after", t("after"), 1, { share: true, value: after, code: stays, tell: tellAfter }), map("difference", t("difference"), 2, { value: change, code: stays, most, tell: tellChange }));
}
/* The number of another head than the chosen one: `tell` reads the chosen head. */
function atHead(head, tell) {
  const { head: chosen } = state;
  state.head = head;
  try { return tell(); } finally { state.head = chosen; }
}
