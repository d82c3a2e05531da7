"use strict";
const SVG = "http://www.w3.org/2000/svg";

/* Create an element with attributes and text; text is never parsed as HTML. */
function make(name, attributes = {}, text = null, svg = false) {
  const element = svg ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== null) element.textContent = text;
  return element;
}
const draw = (name, attributes, text) => make(name, attributes, text, true);
const embedded = (element) => JSON.parse(element.querySelector("script[type='application/json']").textContent);

/* The language of the page: that of the reader, if the page has its texts in both. */
const ALL_TEXTS = JSON.parse(document.getElementById("catalog")?.textContent ?? "{}"), OTHER_TEXTS = document.getElementById("texts");
const pageLanguage = OTHER_TEXTS ? siteLanguage() : siteRoot.lang;

/* The text in the page's language with its {placeholders} filled; English where the catalog lacks it. Write the text as
   a literal in double quotes: the page's catalog holds those that it finds in the script as the argument of this function. */
const CATALOG = pageLanguage === "zh" ? { ...ALL_TEXTS } : {};
const t = (text, values = {}) => (CATALOG[text] ?? text).replace(/\{(\w+)\}/g, (whole, name) => values[name] ?? whole);

/* Put the texts of the other language into a document; of a text with several translations each occurrence has its own. */
const TRANSLATED = new Set(["aria-label", "title", "placeholder", "data-name", "alt"]);
function translateDocument(page) {
  const texts = new Map(Object.entries(JSON.parse(page.getElementById("texts")?.textContent ?? "{}"))), seen = new Map();
  const swap = (text) => {
    const own = text.replace(/^[ \n\t]+|[ \n\t]+$/g, ""), found = texts.get(own), nth = seen.get(own) ?? 0;
    if (found === undefined) return text;
    seen.set(own, nth + 1);
    return text.replace(own, () => Array.isArray(found) ? found[nth] : found);
  };
  const isProgram = ({ localName, id, type }) => localName === "style" || (localName === "script" && (!type || id));
  const walker = page.createTreeWalker(page.documentElement, NodeFilter.SHOW_ELEMENT | NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    if (node.nodeType === Node.TEXT_NODE) { if (!isProgram(node.parentElement)) node.data = swap(node.data); }
    else for (const one of node.attributes) if (TRANSLATED.has(one.name)) one.value = swap(one.value);
  }
}
if (OTHER_TEXTS && pageLanguage !== siteRoot.lang) {
  translateDocument(document);
  siteRoot.lang = pageLanguage;
}
const SWITCHES = document.querySelector(".site-switches");
const showSwitches = () => { drawSwitches(SWITCHES, pageLanguage, OTHER_TEXTS && (() => { location.reload(); })); };
showSwitches();
if (document.querySelector("nav.site-links")) drawSiteLinks(document.querySelector("nav.site-links"));
if (siteHome()) document.querySelector(".brand").replaceChildren(make("a", { href: siteHome() }, "Polyhead"));
addEventListener("themechange", showSwitches);

/* ---- curves: the legend shows the values at the step under the pointer ---- */
function plot(figure) {
  const curves = embedded(figure);
  const outputs = [...figure.querySelectorAll(".key output")], at = figure.querySelector(".at output");
  const initial = [...outputs, at].map((o) => o.textContent);
  const short = (v) => Math.abs(v) >= 1000 ? Math.round(v).toLocaleString("en") : String(Number(v.toPrecision(3)));
  for (const svg of figure.querySelectorAll("svg")) {
    const scale = (words) => {
      const [lo, hi, start, end, log] = words.split(" ").map(Number), f = log ? Math.log : (v) => v;
      return {
        to: (v) => start + (f(v) - f(lo)) / (f(hi) - f(lo)) * (end - start),
        from: (p) => lo + (p - start) / (end - start) * (hi - lo),
        start, end,
      };
    };
    const x = scale(svg.dataset.x), y = scale(svg.dataset.y);
    const line = draw("line", { class: "cursor", y1: y.start, y2: y.end, visibility: "hidden" });
    const spots = curves.map((_, i) => draw("circle", { class: `spot c${i}`, r: 4.5, visibility: "hidden" }));
    svg.append(line, ...spots);
    const show = (event) => {
      const box = svg.getBoundingClientRect();
      const step = x.from((event.clientX - box.left) / box.width * svg.viewBox.baseVal.width);
      const near = curves.map((c) => c.reduce((a, b) => Math.abs(b[0] - step) < Math.abs(a[0] - step) ? b : a));
      const best = near.reduce((a, b) => Math.abs(b[0] - step) < Math.abs(a[0] - step) ? b : a)[0];
      line.setAttribute("x1", x.to(best)); line.setAttribute("x2", x.to(best));
      line.setAttribute("visibility", "visible");
      near.forEach((point, i) => {
        spots[i].setAttribute("cx", x.to(point[0])); spots[i].setAttribute("cy", y.to(point[1]));
        spots[i].setAttribute("visibility", "visible");
        outputs[i].textContent = short(point[1]);
      });
      at.textContent = best.toLocaleString("en");
    };
    const leave = () => {
      [line, ...spots].forEach((e) => e.setAttribute("visibility", "hidden"));
      [...outputs, at].forEach((o, i) => { o.textContent = initial[i]; });
    };
    svg.addEventListener("pointermove", show);
    svg.addEventListener("pointerdown", show);
    svg.addEventListener("pointerleave", leave);
  }
}

/* ---- attention: example, layer and head; -1 is the mean ---- */
const MEAN = -1;
const average = (maps) => maps[0].map((row, t) => row.map((_, s) => maps.reduce((sum, m) => sum + m[t][s], 0) / maps.length));
const opacity = (thousandths) => Math.pow(Math.max(thousandths, 0) / 1000, 0.7);
const kindName = (kind) => ({
  "cross-attention": t("cross-attention"), "self-attention": t("self-attention"),
  "encoder self-attention": t("encoder self-attention"), "decoder self-attention": t("decoder self-attention"),
})[kind] ?? kind;
const clip = (text, n = 14) => [...text].length <= n ? text : [...text].slice(0, n - 1).join("") + "…";
/* The label of a row, of a decoder "in → written". */
const clipRow = (text) => { const parts = text.split(" → "); return parts.map((part) => clip(part, parts.length > 1 ? 9 : 14)).join(" → "); };

function attention(root) {
  const maps = embedded(root);
  const state = { map: 0, layer: maps[0].weights.length - 1, head: MEAN, row: 0, column: null };
  const byLayer = (m, layer, head) => head === MEAN ? average(m.weights[layer]) : m.weights[layer][head];
  const matrix = (layer, head) => {
    const m = maps[state.map];
    return layer === MEAN ? average(m.weights.map((_, l) => byLayer(m, l, head))) : byLayer(m, layer, head);
  };
  const clear = (element) => { while (element.firstChild) element.firstChild.remove(); return element; };
  for (const svg of root.querySelectorAll("svg")) svg.remove();

  const controls = make("div", { class: "controls" }), reading = make("div", { class: "reading" });
  const views = make("div", { class: "views" }), left = make("div"), scroll = make("div", { class: "scroll" });
  const readout = make("p", { class: "readout", "aria-live": "polite" });
  const overview = make("figure", { class: "overview" }), thumbs = make("div", { class: "thumbs" });
  const ramp = make("div", { class: "ramp" });
  ramp.append(make("span", {}, "0"), make("i"), make("span", {}, "1"));
  overview.append(make("figcaption", {}, t("All heads at a glance")), thumbs);
  left.append(scroll, readout, ramp);
  views.append(left, overview);
  root.append(controls, reading, views);

  function chooser(name, options, value, change, wide) {
    const label = make("label", wide ? { class: "wide" } : {}, name), select = make("select");
    for (const [v, text] of options) select.append(make("option", { value: v }, text));
    select.value = value;
    select.addEventListener("change", () => { change(Number(select.value)); });
    label.append(select);
    return label;
  }
  const oneKind = maps.every((m) => m.kind === maps[0].kind), oneText = maps.length > 1 && maps.every((m) => m.title === maps[0].title);
  const name = (m, i) => oneText ? kindName(m.kind) : `${i + 1}  ${oneKind ? "" : `${kindName(m.kind)}: `}${m.title}`;
  const layerName = (l) => l === MEAN ? t("mean of layers") : t("layer {n}", { n: maps[state.map].layers[l] });
  const chosen = () => ({ layer: layerName(state.layer), head: headName(state.head) });
  const headName = (h) => h === MEAN ? t("mean of heads") : t("head {n}", { n: h });

  function drawControls() {
    const m = maps[state.map], heads = [...m.weights[0].keys()];
    const numbered = (names, mean) => [...names.map((name, i) => [i, `${name}`]), [MEAN, mean]];
    clear(controls).append(
      chooser(oneText ? t("Attention") : t("Example"), maps.map((m, i) => [i, name(m, i)]), state.map, (v) => {
        state.map = v; state.row = 0; state.column = null;
        state.layer = Math.min(state.layer, maps[v].weights.length - 1);
        state.head = Math.min(state.head, maps[v].weights[0].length - 1);
        drawAll();
      }, true),
      chooser(t("Layer"), numbered(m.layers, t("mean of layers")), state.layer, (v) => { state.layer = v; drawAll(); }),
      chooser(t("Head"), numbered(heads, t("mean of heads")), state.head, (v) => { state.head = v; drawAll(); }),
    );
  }

  function drawThumbs() {
    const m = maps[state.map], L = m.weights.length, H = m.weights[0].length;
    thumbs.style.color = "var(--accent)"; // resolved for the theme
    const layers = [...Array(L).keys(), MEAN], heads = [...Array(H).keys(), MEAN], mean = (n, name) => n === MEAN ? t("mean") : `${name}`;
    thumbs.style.gridTemplateColumns = `2.2em repeat(${H + 1}, minmax(0, 1fr))`;
    fillWeightsGrid(thumbs, layers.map((layer) => mean(layer, m.layers[layer])), heads.map((head) => mean(head, head)), (r, c) => ({
      matrix: matrix(layers[r], heads[c]).map((row) => row.map((w) => w / 1000)), name: `${layerName(layers[r])}, ${headName(heads[c])}`, on: layers[r] === state.layer && heads[c] === state.head,
      choose: () => { state.layer = layers[r]; state.head = heads[c]; drawAll(); },
    }), getComputedStyle(thumbs).color);
  }

  const width = (text) => [...text].reduce((n, c) => n + (c > "\u2e7f" ? 2 : 1), 0);
  let cells = [], rowLabels = [], columnLabels = [], chips = [], targetChips = [], weights = [];

  function drawMap() {
    const m = maps[state.map], size = Math.max(26, Math.min(38, Math.floor(420 / m.source.length)));
    const source = m.source.map((text) => clip(text)), target = (m.rows ?? m.target).map(clipRow);
    weights = matrix(state.layer, state.head);
    const x0 = 14 + 7.6 * Math.max(...target.map(width)), y0 = 24 + 6.6 * Math.max(...source.map(width));
    const w = x0 + size * source.length + 14 + 5.4 * width(source[source.length - 1]), h = y0 + size * target.length + 4;
    const focused = scroll.firstChild !== null && scroll.firstChild === document.activeElement;
    const svg = draw("svg", { class: "heat", viewBox: `0 0 ${w} ${h}`, width: w, height: h, tabindex: 0, role: "img",
      "aria-label": t("{kind}, {layer}, {head}; arrow keys move", { kind: kindName(m.kind), ...chosen() }) });
    columnLabels = source.map((text, s) => draw("text", { class: "token",
      transform: `translate(${x0 + size * (s + 0.5)} ${y0 - 8}) rotate(-50)` }, text));
    rowLabels = target.map((text, t) => draw("text", { class: "token end", x: x0 - 9, y: y0 + size * t + size / 2 + 4 }, text));
    svg.append(...columnLabels, ...rowLabels);
    cells = weights.map((row, t) => row.map((weight, s) => {
      const box = { x: x0 + size * s, y: y0 + size * t, width: size - 2, height: size - 2, rx: 3 };
      const under = draw("rect", { class: "under", ...box });
      const cell = draw("rect", { class: "cell", ...box, "fill-opacity": opacity(weight).toFixed(3) });
      for (const kind of ["pointerenter", "pointerdown"]) cell.addEventListener(kind, () => point(t, s));
      svg.append(under, cell);
      return cell;
    }));
    svg.addEventListener("keydown", (event) => {
      const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
      if (!move) return;
      event.preventDefault();
      const keep = (v, n) => Math.min(Math.max(v, 0), n - 1);
      point(keep(state.row + move[0], target.length), keep((state.column ?? 0) + move[1], source.length));
    });
    clear(scroll).append(svg);
    if (focused) svg.focus();
  }

  function drawReading() {
    const m = maps[state.map], line = (name) => { const p = make("div", { class: "sentence" }); p.append(make("b", {}, name)); return p; };
    const writes = m.kind === "cross-attention" || m.kind.startsWith("decoder");
    const target = line(writes ? t("writing") : t("reading")), source = line(t("looks at"));
    targetChips = m.target.map((text, t) => {
      const chip = make("button", { class: "chip", type: "button" }, text);
      for (const kind of ["pointerenter", "focus", "click"]) chip.addEventListener(kind, () => point(t, null));
      return chip;
    });
    chips = m.source.map((text) => make("span", { class: "chip" }, text));
    target.append(...targetChips); source.append(...chips);
    clear(reading).append(target, source);
  }

  function point(row, column) {
    const m = maps[state.map];
    state.row = row; state.column = column;
    const best = column ?? weights[row].indexOf(Math.max(...weights[row]));
    cells.forEach((line, t) => line.forEach((cell, s) => cell.classList.toggle("on", t === row && s === best)));
    rowLabels.forEach((label, t) => label.classList.toggle("on", t === row));
    columnLabels.forEach((label, s) => label.classList.toggle("on", s === best));
    targetChips.forEach((chip, t) => chip.setAttribute("aria-pressed", t === row));
    chips.forEach((chip, s) => {
      chip.style.background = `color-mix(in srgb, var(--accent) ${Math.round(45 * opacity(weights[row][s]))}%, transparent)`;
      chip.title = (weights[row][s] / 1000).toFixed(3);
    });
    clear(readout).append(
      make("b", {}, (m.rows ?? m.target)[row]), ` ${t("looks at")} `, make("b", {}, m.source[best]), ": ",
      make("output", {}, (weights[row][best] / 1000).toFixed(3)), " ", t("({layer}, {head})", chosen()),
    );
  }

  function drawAll() { drawControls(); drawReading(); drawMap(); drawThumbs(); point(state.row, state.column); }
  addEventListener("themechange", drawThumbs);
  drawAll();
}

document.querySelectorAll("figure.plot").forEach(plot);
document.querySelectorAll(".attention").forEach(attention);
