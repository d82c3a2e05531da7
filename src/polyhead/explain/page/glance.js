/* ---- the model at a glance: one drawing of the walk, in which the tokens rise from floor to floor ----

   Tokens are columns. Each is a line as wide as |x|, its vector, from the embedding at the bottom to the output on top.
   Every part of the walk is a block, with a bar as long as its weights are many; a dot in it is as wide as what the part adds
   to the vector, and the curves in an attention are the weights of the chosen head, from the keys up to the queries. */
const SECONDS = 7; // of the first reading, from the tokens to the guesses
const reading = { at: 1, frame: 0 }; // how far the text has come through the model

/* The floors of each text, from the bottom up: the stations that change its vectors, and the output. */
const floorsOf = (side) => page.stations.filter((one) => one.side === side && one.steps.length + (one.kind === "output") > 0 && (one.kind !== "position" || one.steps.some(({ out }) => hasValue(out))));

/* The array of the vectors after a station: the sum of its residual, or the norm after that; null if it changes none. */
function streamAfter({ layer, steps }, isLast) {
  const at = steps.findLastIndex((one) => one.kind === "residual");
  if (layer && (isLast || at < 0)) return isLast ? layer.out : null;
  return steps.slice(Math.max(at, 0)).findLast(({ out }) => hasValue(out))?.out;
}
const lengthsOf = (name, n) => hasValue(name) && shapeOf(name).length === 2 && shapeOf(name)[0] === n ? d3.range(n).map((i) => length(row(name, i))) : null;

/* What a station adds to each token: the length of its branches, as its residual scales them. */
function lengthsAdded({ steps }, n) {
  const step = steps.findLast((one) => one.kind === "residual"), branches = step ? branchesOf(step.values) : [];
  const added = (i) => { const rows = branches.map((name) => row(name, i)); return length(rows[0].map((_, c) => d3.sum(rows, (one) => one[c]))); };
  return step && d3.range(n).map((i) => step.facts.scale * added(i));
}

const weightsOf = (station) => d3.sum(station.steps, ({ cost }) => cost.weight_bytes) / numberBytes();
const operationsOf = (station) => station.steps.some(({ cost }) => cost.flops === null) ? null : d3.sum(station.steps, ({ cost }) => cost.flops);
const linkWidth = ({ across }, w) => (Math.min(across * 0.3, 6) * w + 0.4).toFixed(2);
const hasLinks = ({ core }) => hasValue(core?.values.weights);

/* Height of a block that is open. */
function openHeight({ kind, core }) {
  if (kind === "moe") return Math.max(44, Math.min(6 * core.facts.experts, 90) + 14);
  return { attention: 78, linear_attention: 78, recurrent: 42, conv: 56, pooling: 46, embedding: 26, norm: 14, output: 30 }[kind] ?? (core ? 42 : 20);
}

/* The blocks of one text with their heights: layers share the room, the chosen one is open. */
function planTower(side, room) {
  const floors = floorsOf(side), layers = [...new Set(floors.map(({ layer }) => layer).filter(Boolean))], n = windowOf(side)[1] - windowOf(side)[0];
  const open = layers.find((layer) => layer.index === layerOf(layer.stack)) ?? layers[0], inLayer = (layer) => floors.filter((one) => one.layer === layer);
  const rest = room - d3.sum(floors.filter((one) => !one.layer), openHeight), all = d3.sum(layers, (layer) => d3.sum(inLayer(layer), openHeight) + 8), stretch = Math.min(Math.max(rest / all, 0), 1.4);
  const chosen = d3.sum(inLayer(open), openHeight) + 8, closed = stretch >= 0.52 ? null : Math.max((rest - chosen) / (layers.length - 1), 5);
  const blocks = floors.map((station) => {
    const { layer } = station, mates = layer ? inLayer(layer) : [station], isOpen = !layer || closed === null || layer === open, share = openHeight(station) / d3.sum(mates, openHeight);
    const height = !layer ? openHeight(station) : isOpen ? openHeight(station) * (closed === null ? stretch : 1) : (closed - Math.min(closed / 4, 6)) * share;
    return { station, height, isOpen, added: lengthsAdded(station, n), after: lengthsOf(streamAfter(station, mates.at(-1) === station), n), gap: !layer ? 3 : mates.at(-1) === station ? isOpen ? 8 : Math.min(closed / 4, 6) : isOpen ? 2 : 0.6 };
  });
  return { side, blocks, layers, n, height: d3.sum(blocks, ({ height, gap }) => height + gap) };
}

/* Columns of a tower between left and right; a word below and on top of each where there is room. */
function spreadTower(tower, left, right) {
  const { n, side } = tower, across = Math.min((right - left - 12) / n, 64), chosen = rowOf(side), every = (words) => Math.ceil((areFlat(words, across) ? 11 : 15) / across);
  const names = shownPositions(side).map((p) => clipText(tokenText(side, p), 9)), isShown = (i, words) => i === chosen || (i % every(words) === 0 && (every(words) === 1 || Math.abs(i - chosen) >= every(words)));
  const reach = areFlat(names, across) ? 0 : Math.max(...names.map((name, i) => 4.6 * textWidth(name) + 8 - across * (i + 0.5))), start = Math.max((left + right - across * n) / 2, reach); // of turned words to the left
  Object.assign(tower, { left, right, across, names, chosen, isShown, x: (i) => start + across * (i + 0.5) });
}
/* Words side by side where they fit, else turned. */
const areFlat = (words, across) => 6.8 * Math.max(...words.map(textWidth)) + 4 <= across;
const wordsHeight = (words, across) => !words.length ? 0 : areFlat(words, across) ? 18 : 14 + 5.2 * Math.max(...words.map(textWidth));

/* Blocks of a tower from the bottom up. */
function stackTower(tower, bottom) {
  let y = bottom, before = null;
  for (const block of tower.blocks) {
    Object.assign(block, { low: y, high: y - block.height, before });
    y -= block.height + block.gap;
    before = block.after ?? before;
  }
  Object.assign(tower, { bottom, top: tower.blocks.at(-1).high });
}

/* A line from the bottom to the top of a tower through [y, width]. */
function ribbon(x, points) {
  const edge = (all, sign) => all.map(([y, width], i) => i === 0 ? `${x + sign * width / 2} ${y}` : `C${x + sign * all[i - 1][1] / 2} ${(y + all[i - 1][0]) / 2} ${x + sign * width / 2} ${(y + all[i - 1][0]) / 2} ${x + sign * width / 2} ${y}`).join("");
  return `M${edge(points, -1)}L${edge([...points].reverse(), 1)}Z`;
}

/* The points of the line of token i: after each block the width of |x| there. */
function ribbonPoints({ blocks, bottom }, i, width) {
  const first = blocks.find(({ after }) => after), points = first ? [[bottom, width(first.after[i])]] : [];
  for (const { low, high, after, before, gap, station } of blocks) {
    if (station.kind === "output" || (station.kind === "pooling" && !after)) { points.push([station.kind === "output" ? low - 6 : low, width(before?.[i] ?? 0)]); break; }
    if (!after) continue;
    if (before) points.push([low - (low - high) * 0.35, width(before[i])]);
    points.push([high - gap / 2, width(after[i])]);
  }
  return points;
}

/* From the bottom of a block up to its top, from one column to another. */
const rise = (x0, y0, x1, y1) => `M${x0} ${y0}C${x0} ${(y0 + y1) / 2} ${x1} ${(y0 + y1) / 2} ${x1} ${y1}`;

/* The links of a block as [query, key, weight]: the strongest of the chosen head, or the window of a convolution. */
function linksOf({ station }, n) {
  const { core, kind } = station, queries = d3.range(n);
  if (kind === "conv") return queries.flatMap((q) => d3.range(core.facts.kernel).map((k) => [q, q - core.facts.left + k, 1 / core.facts.kernel])).filter(([, k]) => k >= 0 && k < n);
  if (!hasLinks(station)) return [];
  const head = keepIn(state.head, shapeOf(core.values.weights)[0]);
  return queries.flatMap((q) => [...row(core.values.weights, head, q)].map((w, k) => [q, k, w]).filter(([, , w]) => w > 0.03).sort((a, b) => b[2] - a[2]).slice(0, 10));
}

/* What the open chapter speaks of: its stations light up, or the words, or the lines of the tokens. */
function spokenOf() {
  const look = chaptersOf()[keepIn(state.chapter, Math.max(chaptersOf().length, 1))]?.look?.find((one) => findTarget(one));
  return { step: look?.step, has: (station) => Boolean(look) && !PARTS_OF_STATION.has(look.step) && fitsLook(look, station) };
}

/* Facts of a block in a line, for the reader and for a screen reader. */
const blockText = (station) => [fullName(station), t("{n} weights", { n: formatLarge(weightsOf(station)) }), operationsOf(station) ? t("{n} operations", { n: formatLarge(operationsOf(station)) }) : null].filter(Boolean).join(" · ");

function showGlance() {
  const isWide = page.width >= 540, isPair = page.data.sides.length > 1, isBeside = isWide && isPair, column = isBeside ? 118 : isWide ? 138 : 100, inner = (page.width - 2 * column - 56) / 2;
  const towers = page.data.sides.map((_, side) => planTower(side, isWide ? 318 : 330)), last = towers.at(-1);
  for (const tower of towers) {
    tower.isMirrored = isBeside && tower !== last;
    spreadTower(tower, ...(!isBeside ? [isPair ? 34 : isWide ? 2 : 14, page.width - column] : tower === last ? [page.width - column - inner, page.width - column] : [column, column + inner]));
    tower.foot = wordsHeight(tower.names, tower.across) + 4;
    tower.roof = tower === last ? roofHeight(tower) : lanesWidth(tower) + 12;
  }
  const whole = ({ roof, height, foot }) => roof + height + foot, down = Math.ceil(isBeside ? Math.max(...towers.map(whole)) : d3.sum(towers, whole));
  let ground = down;
  for (const tower of towers) {
    stackTower(tower, isBeside ? down - Math.max(...towers.map(({ foot }) => foot)) : ground - tower.foot);
    ground -= whole(tower);
  }
  const svg = d3.create("svg").attr("class", "glance").attr("viewBox", `0 0 ${page.width} ${down}`).attr("width", page.width).attr("height", down).attr("role", "group").attr("aria-label", t("The model at a glance: the text enters at the bottom, the output is on top; arrow keys move, Enter opens"));
  const most = Math.max(...towers.flatMap(({ blocks }) => blocks.map(({ station }) => weightsOf(station)))), readout = h("p", { class: "readout", "aria-hidden": "true" }), spoken = spokenOf();
  for (const tower of towers) {
    tower.clip = `rise-${tower.side}`;
    svg.append("clipPath").attr("id", tower.clip).append("rect").attr("width", page.width).attr("data-low", tower.bottom).attr("data-high", tower.top);
    drawBlocks(svg, tower, { column, most, readout, spoken });
  }
  if (isPair) drawCrossing(svg.append("g").attr("class", "links crossing").attr("aria-hidden", "true"), towers[0], last);
  for (const tower of towers) {
    drawStreams(svg, tower, spoken);
    drawWords(svg.append("g").attr("class", spoken.step === "tokens" ? "words lit" : "words"), tower, tower.names, tower.bottom + 16, (i) => chooseToken(tower.side, windowOf(tower.side)[0] + i));
  }
  drawRoof(svg.append("g").attr("class", "roof").attr("aria-hidden", "true"), last);
  svg.append("text").attr("class", "now").attr("aria-hidden", "true").attr("y", 18);
  page.towers = towers;
  moveAmongBlocks(svg.node());
  setReading(svg.node());
  svg.on("pointerleave", () => { readout.textContent = ""; });
  const key = joinSentences(t("Choose a block to open it, a word to follow it."), t("Each line is a token, as wide as |x|, the length of its vector; a dot is as wide as what a part adds to it. The longer a bar, the more weights."), headsOf(currentStation()) ? t("Curves are the weights of head {n}, from the tokens that are read up to the token that reads.", { n: state.head }) : "");
  const shared = sharedText(towers), again = h("button", { type: "button", class: "site-switch replay", "data-focus": "replay", onclick: () => readOnce() }, t("Read again"));
  return [h("section", { class: "card glance-card", "aria-label": t("The model at a glance") }, h("div", { class: "glance-head" }, readout, h("p", { class: "note" }, key), again), svg.node(), h("div", { class: "below" }, shared && h("p", { class: "note" }, shared), glanceTable(towers)))];
}

/* What the bars count more than once; nothing if no blocks share weights. */
function sharedText(towers) {
  const stations = towers.flatMap(({ blocks }) => blocks.map(({ station }) => station)), again = d3.sum(stations, ({ steps }) => d3.sum(steps, ({ cost }) => cost.shared_bytes)) / numberBytes();
  return again ? t("Blocks that share weights have them in the bar of each: the bars add up to {sum}, of which {again} are counted again; the model has {n}.", { sum: formatLarge(d3.sum(stations, weightsOf)), again: formatLarge(again), n: formatLarge(page.data.run.parameters) }) : null;
}

/* Every block of a tower is a button: its ground, its name and the bar of its weights. */
function drawBlocks(svg, tower, { column, most, readout, spoken }) {
  const { blocks, left, right, isMirrored } = tower, side = isMirrored ? -1 : 1, edge = isMirrored ? left : right, group = svg.append("g").attr("class", isMirrored ? "blocks mirrored" : "blocks"), done = new Set();
  const closed = blocks.filter(({ isOpen, height }) => !isOpen && height < 8).map(({ station }) => station.layer);
  for (const block of blocks) {
    const { station, low, high, height, isOpen } = block, { layer } = station, isThin = closed.includes(layer), go = () => isThin ? chooseLayer(layer.stack, layer.index) : walkTo(station);
    const about = isThin ? labelled(stackName(layer.stack), t("layer {n}", { n: layer.index + 1 })) : blockText(station);
    let button = group;
    if (!isThin || !done.has(layer)) {
      button = group.append("g").attr("class", "block").attr("role", "button").attr("tabindex", -1).attr("data-focus", `block-${isThin ? layer.path : station.id}`).attr("aria-label", about).on("click", go).on("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); go(); } })
        .on("pointerenter", () => { readout.textContent = about; }).on("focus", () => { readout.textContent = about; }).classed("last", station.id === page.before);
      block.button = button;
      done.add(layer);
    } else button = blocks.find((one) => one.button && one.station.layer === layer).button;
    const lit = spoken.has(station) ? " lit" : "";
    button.append("rect").attr("class", `ground${lit}`).attr("x", left).attr("y", high).attr("width", right - left).attr("height", Math.max(height, 1)).attr("rx", Math.min(5, height / 3));
    button.append("rect").attr("class", "reach").attr("x", isMirrored ? left - column : right).attr("y", high).attr("width", column).attr("height", Math.max(height, 1));
    const middle = (low + high) / 2, from = edge + side * 22, long = (column - 64) * weightsOf(station) / most, isNamed = height >= 12 && isOpen, hasTwo = isNamed && height >= 26;
    const bar = hasTwo ? 5 : Math.min(4, height * 0.6), y = hasTwo ? middle + 7 : middle - bar / 2;
    if (isNamed) button.append("text").attr("class", `name${lit}`).attr("x", from).attr("y", hasTwo ? middle - 4 : middle).attr("dy", ".35em").text(stationName(station));
    if (weightsOf(station) && (hasTwo || !isNamed)) button.append("rect").attr("class", `weight${lit}`).attr("x", isMirrored ? from - long : from).attr("y", y).attr("width", Math.max(long, 0.8)).attr("height", bar).attr("rx", bar / 3);
    if (hasTwo && weightsOf(station)) button.append("text").attr("class", "amount").attr("x", from + side * (long + 5)).attr("y", y + bar / 2).attr("dy", ".35em").text(formatLarge(weightsOf(station)));
  }
  const sizes = new Map(tower.layers.map((layer) => { const own = blocks.filter(({ station }) => station.layer === layer); return [layer, [own[0].low, own.at(-1).high]]; }));
  let last = Infinity;
  for (const [layer, [low, high]] of sizes) {
    if (last - (low + high) / 2 < 14) continue;
    last = (low + high) / 2;
    group.append("text").attr("class", layer.index === layerOf(layer.stack) ? "number on" : "number").attr("x", edge + side * 11).attr("y", last).attr("dy", ".35em").attr("aria-hidden", "true").text(layer.index + 1);
  }
}

/* The lines of the tokens, the links of attention and what each part adds. */
function drawStreams(svg, tower, spoken) {
  const { blocks, n, x, across, clip, chosen } = tower, top = Math.max(...blocks.flatMap(({ after }) => after ?? []), 1e-9), wide = Math.min(across * 0.5, 15), width = (size) => Math.max(wide * size / top, 0.7);
  const pale = svg.append("g").attr("class", "streams pale").attr("aria-hidden", "true"), links = svg.append("g").attr("class", "links").attr("aria-hidden", "true").attr("clip-path", `url(#${clip})`);
  const streams = svg.append("g").attr("class", ["norm", "residual"].includes(spoken.step) ? "streams lit" : "streams").attr("aria-hidden", "true").attr("clip-path", `url(#${clip})`);
  for (const i of d3.range(n)) for (const group of [pale, streams]) group.append("path").attr("class", i === chosen ? "stream on" : "stream").attr("d", ribbon(x(i), ribbonPoints(tower, i, width)));
  for (const block of blocks) {
    const { station, low, high, height, added, isOpen } = block, isCrossing = station.core && isCross(station.core) && page.data.sides.length > 1;
    if (height >= 14 && !isCrossing) for (const [q, k, w] of linksOf(block, n)) if (q !== k && (isOpen || q === chosen)) links.append("path").attr("class", q === chosen ? "link on" : "link").attr("d", rise(x(k), low, x(q), high + 4)).attr("stroke-width", linkWidth(tower, w));
    if (station.kind === "recurrent" && height >= 10) links.append("path").attr("class", "link run").attr("d", stateRun(tower, block));
    if (station.kind === "pooling") for (const i of pooledTokens(station, n)) links.append("path").attr("class", "link pooled").attr("d", `${rise(x(i), low, (tower.left + tower.right) / 2, high)}V${tower.top + 12}`);
    if (station.kind === "moe" && height >= 24) drawExperts(streams, tower, block, chosen);
    else if (added && height >= 5) for (const i of d3.range(n)) streams.append("circle").attr("class", i === chosen ? "added on" : "added").attr("stroke-width", Math.min(width(added[i]) / 4, 1.2)).attr("cx", x(i)).attr("cy", hasLinks(station) && !isCrossing ? high + Math.min(height * 0.22, 12) : (low + high) / 2).attr("r", Math.min(Math.max(width(added[i]) / 2, 0.8), height / 2, across * 0.45).toFixed(2));
  }
}

/* The state of a recurrent network, which runs along the text. */
function stateRun({ x, n, across }, { station, low, high }) {
  const y = (low + high) / 2, [first, last] = station.core.facts.is_reverse ? [n - 1, 0] : [0, n - 1], sign = Math.sign(last - first) || 1, tip = x(last) + sign * Math.min(across * 0.45, 12);
  return `M${x(first)} ${y}H${tip}M${tip - 4 * sign} ${y - 3}L${tip} ${y}L${tip - 4 * sign} ${y + 3}`;
}
const pooledTokens = ({ steps }, n) => ({ first: [0], last: [n - 1] })[steps[0].facts.pooling?.replace(/^pool_|_token$|_pool$/g, "").toLowerCase()] ?? d3.range(n);

/* The experts that the router chooses: a row of places for each expert, filled where a token goes there. */
function drawExperts(group, { x, n, across }, { station, low, high }, chosen) {
  const { core } = station, all = core.facts.experts, size = (low - high - 8) / all, y = (e) => low - 4 - size * (e + 0.5), r = Math.min(size * 0.6, across * 0.3, 5);
  for (const i of d3.range(n)) {
    const experts = chosenExperts(core, i);
    for (const e of d3.range(all)) group.append("circle").attr("class", `expert${experts.has(e) ? " chosen" : ""}${i === chosen ? " on" : ""}`).attr("cx", x(i)).attr("cy", y(e)).attr("r", experts.has(e) ? r * Math.sqrt(experts.get(e)) : 0.5);
  }
}

/* A line through points with round corners. */
function bend(points, radius = 6) {
  return points.map(([x, y], i) => {
    if (i === 0) return `M${x} ${y}`;
    if (i === points.length - 1) return `L${x} ${y}`;
    const near = ([px, py]) => { const far = Math.hypot(px - x, py - y), r = Math.min(radius, far / 2) / (far || 1); return `${x + (px - x) * r} ${y + (py - y) * r}`; };
    return `L${near(points[i - 1])}Q${x} ${y} ${near(points[i + 1])}`;
  }).join("");
}

const lanesWidth = ({ n }) => Math.min(2.4 * n, 26);
/* Cross-attention: what the encoder has read runs in a lane for each token beside the decoder, whose tokens take from it. */
function drawCrossing(group, source, target) {
  const { chosen } = target, isBeside = target.left > source.right, n = source.n, middle = isBeside ? (source.right + target.left) / 2 : target.left - 16, room = lanesWidth(source), lane = (k) => room * ((k + 0.5) / n);
  const start = (k) => { const x = isBeside ? middle + room / 2 - lane(k) : middle - room / 2 + lane(k), y = source.top - 7 - (isBeside ? room - lane(k) : lane(k)); return [[source.x(k), source.top], [source.x(k), y], [x, y]]; };
  for (const block of target.blocks) {
    const { station, low, high, height, isOpen } = block;
    if (!station.core || !isCross(station.core)) continue;
    if (!isOpen || station.layer.index !== layerOf(station.layer.stack)) { group.append("path").attr("class", "link lane").attr("d", bend([[middle, source.top - 7], [middle, (low + high) / 2], [target.left, (low + high) / 2]])); continue; }
    const down = (k) => low - 6 - Math.min(room, height * 0.4) * (1 - (k + 0.5) / n), end = high + Math.min(height * 0.22, 12), path = (k, x) => { const [a, b, c] = start(k); return [a, b, c, [c[0], down(k)], [x, down(k)]]; };
    for (const k of d3.range(n)) group.append("path").attr("class", "link lane").attr("d", bend(path(k, target.x(target.n - 1))));
    for (const [q, k, w] of linksOf(block, target.n)) {
      const x = target.x(q), points = q === chosen ? [...path(k, x), [x, end]] : [[x - 8, down(k)], [x, down(k)], [x, end]];
      group.append("path").attr("class", q === chosen ? "link on" : "link").attr("d", bend(points)).attr("stroke-width", linkWidth(target, w));
    }
  }
}

/* A word for each column at height y, below it or above it; a click chooses the token. */
function drawWords(group, { x, across, chosen, isShown }, words, y, choose = null) {
  const isFlat = areFlat(words, across), kind = isFlat ? "middle" : choose ? "end" : "";
  group.attr("aria-hidden", "true");
  words.forEach((word, i) => {
    if (isShown(i, words)) group.append("text").attr("class", `token ${kind}${i === chosen ? " on" : ""}`).attr("transform", isFlat ? `translate(${x(i)} ${y})` : `translate(${x(i) + 3} ${y - (choose ? 4 : 0)}) rotate(-50)`).text(word).on("click", choose && (() => choose(i)));
  });
}

/* Above the output: the best guess of each token, and three of the chosen one; or classes, or a vector. */
function roofOf() {
  const { output } = page.data, all = output.positions ? output.positions[chosenOutput(output)].top : [...output.classes ?? []].sort((a, b) => b.p - a.p);
  const words = output.positions ? output.positions.map((one) => clipText(showToken(one.top[0].text), 9)) : output.replaced?.map(formatPercent) ?? [];
  return { words, guesses: all.slice(0, 3).map((one) => [clipText(one.label ?? showToken(one.text), 16), one.p]) };
}
const roofHeight = ({ across }) => { const { words, guesses } = roofOf(); return 10 + 19 * guesses.length + wordsHeight(words, across) + (page.data.output.vector ? 18 : 0); };
function drawRoof(group, tower) {
  const { x, across, top, left, right, chosen } = tower, { output } = page.data, { words, guesses } = roofOf(), isEach = Boolean(output.positions), centre = isEach ? Math.min(Math.max(x(chosen), left + 60), right - 60) : (left + right) / 2, low = top - 10 - wordsHeight(words, across);
  drawWords(group.append("g"), tower, words, top - 8);
  guesses.forEach(([text, p], i) => {
    const y = low - 19 * (guesses.length - 1 - i), kind = i === 0 ? " first" : "";
    group.append("text").attr("class", `guess${kind}`).attr("x", centre - 5).attr("y", y).text(text);
    group.append("rect").attr("class", `share${kind}`).attr("x", centre + 4).attr("y", y - 9).attr("width", Math.max(54 * p, 1)).attr("height", 8).attr("rx", 2);
    group.append("text").attr("class", "amount").attr("x", centre + 10 + 54 * p).attr("y", y - 1).text(formatPercent(p));
  });
  if (output.vector) group.append("text").attr("class", "guess whole").attr("x", centre).attr("y", low).text(t("a vector of {n} numbers", { n: output.vector.length }));
}

/* The blocks have one stop of the Tab key; up and down move among them, left and right choose the token. */
function moveAmongBlocks(svg) {
  const blocks = [...svg.querySelectorAll(".block")], at = Math.max(blocks.findIndex((one) => one.dataset.focus === page.block), 0);
  blocks.forEach((one, i) => { one.setAttribute("tabindex", i === at ? 0 : -1); one.addEventListener("focus", () => { page.block = one.dataset.focus; blocks.forEach((other) => other.setAttribute("tabindex", other === one ? 0 : -1)); }); });
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowUp: 1, ArrowDown: -1, Home: -blocks.length, End: blocks.length }[event.key], turn = { ArrowLeft: -1, ArrowRight: 1 }[event.key], here = blocks.indexOf(event.target.closest(".block"));
    if (!step && !turn) return;
    event.preventDefault();
    if (step) { blocks[keepIn(here + step, blocks.length)].focus(); return; }
    const side = currentStation().side, [first, stop] = windowOf(side);
    chooseToken(side, first + keepIn(state.tokens[side] + turn - first, stop - first));
  });
}

/* Show the drawing as far as the text has been read: one text after the other, each from the bottom up. */
function setReading(svg) {
  const towers = [...svg.querySelectorAll("clipPath rect")];
  towers.forEach((rect, i) => {
    const part = Math.min(Math.max(reading.at * towers.length - i, 0), 1), low = Number(rect.dataset.low), high = part >= 1 ? -20 : low - (low - rect.dataset.high) * part;
    rect.setAttribute("y", high);
    rect.setAttribute("height", low + 200 - high);
  });
  const active = page.towers[keepIn(Math.floor(reading.at * towers.length), towers.length)], at = Math.max(reading.at * towers.length % 1, 0), y = active.bottom - (active.bottom - active.top) * at, block = active.blocks.findLast(({ low }) => low >= y);
  const now = svg.querySelector(".now");
  now.textContent = fullName(block.station); // in the room of the guesses, which come last
  now.setAttribute("x", (active.left + active.right) / 2);
  svg.classList.toggle("reading", reading.at < 1);
  svg.classList.toggle("apart", reading.at * towers.length < 1);
}

/* Let the text rise through the model once. */
function readOnce() {
  cancelAnimationFrame(reading.frame);
  const start = performance.now(), length = 1000 * SECONDS * page.data.sides.length ** 0.5;
  const next = (now) => {
    const svg = document.querySelector("svg.glance");
    reading.at = svg ? Math.min((now - start) / length, 1) : 1;
    if (svg) setReading(svg);
    if (reading.at < 1) reading.frame = requestAnimationFrame(next);
  };
  reading.at = 0;
  next(start);
}

/* The same as a table: the blocks with their weights and operations, and for the chosen token |x| and what is added to it. */
function glanceTable(towers) {
  const blocks = towers.flatMap(({ blocks, side }) => blocks.map((block) => ({ ...block, r: rowOf(side) })));
  return numbersTable(t("The model at a glance"), () => [t("weights"), t("operations"), t("length of what is added"), t("length after")], () => [...blocks.map(({ station, added, after, r }) =>
    [fullName(station), formatCount(weightsOf(station)), formatLarge(operationsOf(station)), added ? added[r] : "", after ? after[r] : ""]), [t("the model, shared weights once"), formatCount(page.data.run.parameters), formatLarge(page.data.costs.total.flops), "", ""]]);
}
