/* ---- drawings: strips of numbers, matrices, links; all by pointer and by arrow keys ---- */

/* The width of a drawing in one of two columns, if there is room for two. */
const halfWidth = () => page.width >= 540 ? (page.width - 36) / 2 : page.width;

/* The width of a drawing beside another one in class mode. */
const besideWidth = () => isClass() ? (page.width - 22) / 2 : page.width;

/* A colour of the style sheet as [r, g, b]. */
function readColor(name) {
  const probe = h("span", { style: `color: var(${name})` });
  document.body.append(probe);
  const numbers = getComputedStyle(probe).color.match(/[\d.]+/g).slice(0, 3).map(Number);
  probe.remove();
  return numbers;
}
/* The power keeps small numbers visible. */
const shade = (value, most) => most > 0 ? Math.min(Math.abs(value) / most, 1) ** 0.7 : 0;
const largest = (values) => { let most = 0; for (const v of values) if (Math.abs(v) > most && Number.isFinite(v)) most = Math.abs(v); return most; };

const signColors = () => ({ plus: readColor("--accent"), minus: readColor("--second") });
/* Numbers as an image of one pixel each, in rows of `width`: the accent colour above zero, the second colour below. */
function paintNumbers(values, most, colors, width = values.length) {
  const down = Math.ceil(values.length / width), canvas = h("canvas", { width, height: down }), brush = canvas.getContext("2d"), image = brush.createImageData(width, down);
  values.forEach((value, i) => image.data.set([...(value < 0 ? colors.minus : colors.plus), Math.round(255 * shade(value, most))], 4 * i));
  brush.putImageData(image, 0, 0);
  return canvas;
}

/* Pointer and keys over a grid of rows and columns: `at` finds the cell of a point, `show` marks a cell, `choose` takes it. The
   cell that is shown is shown again when the drawing is drawn again. */
function pointAtCells(svg, [rows, columns], at, show, choose, start = [0, 0]) {
  let [r, c] = pointedCell(svg.dataset.focus) ?? start;
  const move = (row, column) => {
    r = keepIn(row, rows); c = keepIn(column, columns);
    show(r, c);
    if (page.pointed) page.pointed.cell = [r, c];
  };
  const find = (event) => {
    const box = svg.getBoundingClientRect(), unit = svg.viewBox.baseVal.width / box.width;
    return at((event.clientX - box.left) * unit, (event.clientY - box.top) * unit);
  };
  const point = (event) => { const cell = find(event); if (cell) move(...cell); };
  svg.addEventListener("pointermove", point);
  svg.addEventListener("pointerdown", point);
  svg.addEventListener("focus", () => { if (svg.matches(":focus-visible")) move(r, c); });
  svg.addEventListener("again", () => move(r, c));
  if (choose) svg.addEventListener("click", (event) => { const cell = find(event); if (cell) choose(...cell); });
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], Home: [0, -columns], End: [0, columns] }[event.key];
    if (step) { event.preventDefault(); event.stopPropagation(); move(r + step[0], c + step[1]); }
    else if (choose && (event.key === "Enter" || event.key === " ")) { event.preventDefault(); choose(r, c); }
  });
}

/* The index of the item with the least value, -1 without items. */
const leastIndex = (items, value) => items.reduce((least, one, i) => least < 0 || value(one) < value(items[least]) ? i : least, -1);

/* Pointer and keys over marks of a drawing, {x, y, tell} each: the nearest one is shown, the arrow keys go from one to the next. */
function pointAtMarks(svg, marks, focus, { choose = null, start = 0 } = {}) {
  const here = svg.append("circle").attr("class", "here").attr("r", 7).attr("visibility", "hidden");
  const show = (_, i) => { here.attr("visibility", "visible").attr("cx", marks[i].x).attr("cy", marks[i].y); inspect(marks[i].tell(), here.node()); };
  const far = ({ x, y }, px, py) => Math.hypot(x - px, y - py), at = (px, py) => {
    const i = leastIndex(marks, (one) => far(one, px, py));
    return i >= 0 && far(marks[i], px, py) < 60 ? [0, i] : null;
  };
  svg.attr("tabindex", 0).attr("data-focus", focus).attr("aria-label", `${svg.attr("aria-label")}; ${t("arrow keys move")}`);
  pointAtCells(svg.node(), [1, marks.length], at, show, choose && ((_, i) => choose(i)), [0, start]);
  svg.node().addEventListener("pointerleave", () => here.attr("visibility", "hidden"));
  return svg.node();
}

/* Rows of numbers, one strip each: rows = [{label, values, on, of}]; `tell(r, c)` says what the inspector shows of a number,
   `choose(r, c)` is a click. `groups` is the width of a group of columns (a head) that lines set apart; `columns` are the
   names of the columns, of which those are above them that have room. */
function drawStrips({ name, rows, tell, choose = null, groups = 0, height = 0, gap: given = null, most = null, width = page.width, focus = name, legend = true, columnName = null, columns = null, start = 0 }) {
  const n = rows[0].values.length, colors = signColors();
  const top = most ?? largest(rows.flatMap((one) => [largest(one.values)]));
  const left = rows.some((one) => one.label) ? Math.min(16 + 7.8 * Math.max(...rows.map((one) => textWidth(clipText(one.label ?? "")))), 130) : 0;
  const cell = Math.min(Math.max((width - left - 2) / n, 1.2), 18), size = height || (rows.length > 24 ? 12 : rows.length > 5 ? 15 : 22), gap = given ?? (rows.length > 24 ? 2 : rows.length > 5 ? 3 : 6), head = columns ? 16 : 0, every = Math.ceil(34 / cell);
  const across = cell * n, w = Math.ceil(left + across + 2), down = head + rows.length * (size + gap);
  const span = rows.reduce(([lo, hi], one) => { const [a, b] = d3.extent(one.values); return [Math.min(lo, a), Math.max(hi, b)]; }, [Infinity, -Infinity]);
  const words = { name, rows: rows.length, n, lo: formatNumber(span[0], 3), hi: formatNumber(span[1], 3) };
  const label = rows.length === 1 ? t("{name}: {n} numbers from {lo} to {hi}; arrow keys move", words) : t("{name}: {rows} rows of {n} numbers from {lo} to {hi}; arrow keys move", words);
  const svg = d3.create("svg").attr("class", "strips").attr("viewBox", `0 0 ${w} ${down}`).attr("width", w).attr("height", down)
    .attr("role", "img").attr("tabindex", 0).attr("aria-label", label).attr("data-focus", focus);
  const y = (r) => head + r * (size + gap) + gap / 2;
  const lines = svg.selectAll("g").data(rows).join("g").attr("class", (one) => one.on ? "on" : null).attr("transform", (_, r) => `translate(0 ${y(r)})`);
  lines.filter((one) => one.label).append("text").attr("class", "label").attr("x", left - 8).attr("y", size / 2).attr("dy", ".35em").text((one) => clipText(one.label));
  svg.append("g").selectAll("text").data(columns ? d3.range(n).filter((c) => c === n - 1 || (c % every === 0 && c + every < n)) : []).join("text").attr("class", (c) => c === n - 1 ? "tick end" : "tick middle").attr("x", (c) => left + (c === n - 1 ? across : (c + 0.5) * cell)).attr("y", 11).text((c) => columns[c]);
  lines.append("rect").attr("class", "under").attr("x", left).attr("width", across).attr("height", size).attr("rx", 2);
  lines.append("image").attr("x", left).attr("width", across).attr("height", size).attr("preserveAspectRatio", "none")
    .attr("href", (one) => paintNumbers(one.values, one.most ?? top, colors).toDataURL());
  if (groups > 0 && groups < n) {
    svg.selectAll("line").data(d3.range(groups, n, groups)).join("line").attr("class", "divider")
      .attr("x1", (c) => left + c * cell).attr("x2", (c) => left + c * cell).attr("y1", head).attr("y2", down);
  }
  lines.filter((one) => one.on).append("rect").attr("class", "chosen").attr("x", left - 1).attr("y", -1).attr("width", across + 2).attr("height", size + 2).attr("rx", 3);
  const here = svg.append("rect").attr("class", "here").attr("width", Math.max(cell, 3)).attr("height", size).attr("visibility", "hidden");
  const show = (r, c) => {
    here.attr("visibility", "visible").attr("x", left + c * cell - (cell < 3 ? (3 - cell) / 2 : 0)).attr("y", y(r));
    inspect(tell(r, c), here.node());
  };
  const at = (px, py) => px < left || px >= left + across || py < head || py >= down ? null : [keepIn(Math.floor((py - head) / (size + gap)), rows.length), keepIn(Math.floor((px - left) / cell), n)];
  pointAtCells(svg.node(), [rows.length, n], at, show, choose, [Math.max(rows.findIndex((one) => one.on), 0), start]);
  svg.node().addEventListener("pointerleave", () => here.attr("visibility", "hidden"));
  const table = numbersTable(name, () => d3.range(n).map((i) => columnName ? columnName(i) : columns?.[i] ?? `${i}`), () => rows.map((one) => [one.label ?? "", ...one.values]));
  return h("div", { class: "strip-set" }, scrollRegion(name, svg.node()), h("div", { class: "below" }, legend ? rampOf(top) : null, table));
}

const rampOf = (most) => h("p", { class: "ramp" }, h("span", {}, formatNumber(-most, 2)), h("i", { class: "both" }), h("span", {}, formatNumber(most, 2)));
const shareRamp = () => h("p", { class: "ramp" }, h("span", {}, "0"), h("i", { class: "plus" }), h("span", {}, "1"));

/* The label of a row: of a decoder the token that goes in and the one that is written, "in → written". */
function clipRow(text) {
  const parts = text.split(" → "), n = parts.length === 1 ? 14 : page.width < 540 ? 6 : 9;
  return parts.map((part) => clipText(part, n)).join(" → ");
}

/* The room that the names of rows and columns take beside a matrix. */
const matrixMargins = (rows, columns) => ({ left: 22 + 7.8 * Math.max(...rows.map((one) => textWidth(clipRow(one)))), right: 12 + 5.2 * Math.min(textWidth(columns[columns.length - 1]), 14) });
/* Those names that have room, the chosen one among them. */
const namesWithRoom = (names, size, chosen) => d3.range(names.length).filter((i) => (i - (chosen ?? 0)) % Math.ceil(13 / size) === 0);

/* A matrix of query rows and key columns. `value(r, c)`; `code(r, c)` is why a cell is hidden (0: visible). */
function drawMatrix({ name, rows, columns, value, code = () => 0, share = false, legend = true, chosen = [null, null], tell, choose, focus = name, width = besideWidth(), hasRows = true, size: fixed = null, most: given = null, label = null }) {
  const labels = rows.map(clipRow), margins = matrixMargins(rows, columns), { right } = margins, left = hasRows ? margins.left : 4, tilt = 7.2 * Math.min(Math.max(...columns.map(textWidth)), 14);
  const size = fixed ?? Math.min(Math.max(Math.floor((width - left - right) / columns.length), 15), isClass() ? Math.max(0.55 * page.room / rows.length, 10) : 40), gap = size < 10 ? 1 : 2, round = Math.min(3, size / 5), top = 22 + tilt;
  const w = Math.ceil(left + size * columns.length + right), down = Math.ceil(top + size * rows.length + 2);
  const cells = d3.range(rows.length).flatMap((r) => d3.range(columns.length).map((c) => ({ r, c, v: value(r, c), code: code(r, c) })));
  const most = share ? 1 : given ?? largest(cells.filter((one) => !one.code).map((one) => one.v));
  const svg = d3.create("svg").attr("class", "heat").attr("viewBox", `0 0 ${w} ${down}`).attr("width", w).attr("height", down)
    .attr("role", "img").attr("tabindex", 0).attr("data-focus", focus)
    .attr("aria-label", label ?? t("{name}: {rows} queries by {columns} keys; arrow keys move, Enter chooses", { name, rows: rows.length, columns: columns.length }));
  const x = (c) => left + size * c, y = (r) => top + size * r;
  svg.append("g").selectAll("text").data(namesWithRoom(columns, size, chosen[1])).join("text").attr("class", (c) => c === chosen[1] ? "token on" : "token")
    .attr("transform", (c) => `translate(${x(c) + size / 2} ${top - 8}) rotate(-60)`).text((c) => clipText(columns[c]));
  svg.append("g").selectAll("text").data(hasRows ? namesWithRoom(labels, size, chosen[0]) : []).join("text").attr("class", (r) => r === chosen[0] ? "token end on" : "token end")
    .attr("x", left - 8).attr("y", (r) => y(r) + size / 2).attr("dy", ".35em").text((r) => labels[r]);
  const box = (selection) => selection.attr("x", (d) => x(d.c)).attr("y", (d) => y(d.r)).attr("width", size - gap).attr("height", size - gap).attr("rx", round);
  box(svg.append("g").selectAll("rect").data(cells).join("rect").attr("class", (d) => d.code ? `hidden-${d.code}` : "under"));
  box(svg.append("g").selectAll("rect").data(cells.filter((d) => !d.code)).join("rect"))
    .attr("class", (d) => d.v < 0 ? "cell minus" : "cell").attr("fill-opacity", (d) => shade(d.v, most).toFixed(3));
  if (chosen[0] !== null && rows[chosen[0]] !== undefined) {
    svg.append("rect").attr("class", "chosen").attr("x", left - 2).attr("y", y(chosen[0]) - 2).attr("width", size * columns.length + 2).attr("height", size + 2).attr("rx", 4);
  }
  if (chosen[1] !== null && chosen[0] !== null) svg.append("rect").attr("class", "cross").attr("x", x(chosen[1])).attr("y", y(chosen[0])).attr("width", size - gap).attr("height", size - gap).attr("rx", round);
  const here = svg.append("rect").attr("class", "here").attr("width", size - gap).attr("height", size - gap).attr("rx", round).attr("visibility", "hidden");
  const show = (r, c) => { here.attr("visibility", "visible").attr("x", x(c)).attr("y", y(r)); inspect(tell(r, c), here.node()); };
  const at = (px, py) => px < left || py < top || px >= x(columns.length) || py >= y(rows.length) ? null : [Math.floor((py - top) / size), Math.floor((px - left) / size)];
  pointAtCells(svg.node(), [rows.length, columns.length], at, show, choose, [chosen[0] ?? 0, chosen[1] ?? 0]);
  svg.node().addEventListener("pointerleave", () => here.attr("visibility", "hidden"));
  const codes = [...new Set(cells.map((one) => one.code))].filter(Boolean);
  const reasons = codes.map((one) => h("span", { class: "reason" }, swatch(one), HIDDEN[one]()));
  const table = numbersTable(name, () => columns, () => rows.map((text, r) => [text, ...columns.map((_, c) => code(r, c) ? HIDDEN[code(r, c)]() : value(r, c))]));
  return h("div", { class: "strip-set" }, scrollRegion(name, svg.node()),
    h("div", { class: "below" }, !legend ? null : share ? shareRamp() : rampOf(most), reasons.length ? h("p", { class: "reasons" }, reasons) : null, table));
}

const HIDDEN = {
  1: () => t("padding"), 2: () => t("future token"), 3: () => t("outside of the window"), 4: () => t("another document"),
};
function swatch(code) {
  return d3.create("svg").attr("class", "swatch").attr("viewBox", "0 0 14 14").attr("width", 14).attr("height", 14).attr("aria-hidden", "true")
    .call((svg) => svg.append("rect").attr("class", `hidden-${code}`).attr("width", 14).attr("height", 14).attr("rx", 3)).node();
}

/* The patterns of hidden cells, once for all drawings. */
function hatchPatterns() {
  const svg = d3.create("svg").attr("width", 0).attr("height", 0).attr("aria-hidden", "true").attr("class", "patterns");
  const paths = { 1: "M2 2h1v1h-1z", 2: "M-1 1l2-2M0 6l6-6M5 7l2-2", 3: "M0 3h6", 4: "M3 0v6" };
  for (const [code, path] of Object.entries(paths)) {
    const pattern = svg.append("pattern").attr("id", `hidden-${code}`).attr("width", 6).attr("height", 6).attr("patternUnits", "userSpaceOnUse");
    pattern.append("rect").attr("width", 6).attr("height", 6).attr("class", "hidden-ground");
    pattern.append("path").attr("d", path).attr("class", "hidden-lines");
  }
  return svg.node();
}

/* Who looks at whom: lines from the query tokens to the key tokens, as thick as the weights; `tell` is of a key of the chosen query. */
function drawLinks({ name, queries, keys, weight, chosen, choose, tell }) {
  const width = Math.min(page.width, 460), size = 24, down = Math.max(queries.length, keys.length) * size + 8, labels = queries.map(clipRow);
  const side = Math.min(22 + 7.8 * Math.min(Math.max(...[...labels, ...keys].map(textWidth)), 22), width * 0.36);
  const svg = d3.create("svg").attr("class", "links").attr("viewBox", `0 0 ${width} ${down}`).attr("width", width).attr("height", down).attr("role", "img")
    .attr("aria-label", t("{name}: what each token looks at", { name }));
  const y = (i) => 4 + size * (i + 0.5), path = d3.linkHorizontal();
  const links = queries.flatMap((_, r) => keys.map((__, c) => ({ r, c, w: weight(r, c) }))).filter((one) => one.w > 0.02);
  svg.append("g").selectAll("path").data(links.sort((a, b) => (a.r === chosen) - (b.r === chosen))).join("path")
    .attr("class", (d) => d.r === chosen ? "link on" : "link").attr("d", (d) => path({ source: [side, y(d.r)], target: [width - side, y(d.c)] }))
    .attr("stroke-width", (d) => (0.5 + 9 * d.w).toFixed(2)).attr("stroke-opacity", (d) => d.r === chosen ? 0.85 : 0.08);
  const names = (texts, x, kind, on) => svg.append("g").selectAll("text").data(texts).join("text").attr("class", (_, i) => `token ${kind}${on(i) ? " on" : ""}`)
    .attr("x", x).attr("y", (_, i) => y(i)).attr("dy", ".35em").text((text) => clipText(text));
  names(labels, side - 8, "end", (i) => i === chosen).style("cursor", "pointer").on("click", (event, text) => choose(labels.indexOf(text)));
  names(keys, width - side + 8, "", (i) => chosen !== null && weight(chosen, i) > 0.15);
  return pointAtMarks(svg, keys.map((_, k) => ({ x: width - side, y: y(k), tell: () => tell(k) })), "links");
}
