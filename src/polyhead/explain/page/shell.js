/* ---- the page around the stage: header, path, pickers, stage ---- */

/* A group of buttons of which one is chosen; the arrow keys move the choice. */
function picker(name, options, chosen, choose, { kind = "", focus }) {
  const buttons = options.map(([value, text, label], i) => h("button", { type: "button", role: "radio", "aria-checked": String(value === chosen), tabindex: value === chosen || (i === 0 && !options.some(([one]) => one === chosen)) ? 0 : -1,
    "aria-label": label ?? null, "data-focus": `${focus}-${value === chosen ? "chosen" : value}`, onclick: () => choose(value) }, text));
  const group = h("div", { class: `picker ${kind}`.trim(), role: "radiogroup", "aria-label": name }, buttons);
  group.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1, Home: -options.length, End: options.length }[event.key];
    if (!step) return;
    event.preventDefault();
    const at = options.findIndex(([value]) => value === chosen);
    choose(options[keepIn(at + step, options.length)][0]);
  });
  return group;
}

/* In plain words what the model does, and what its files say of how it learnt that. */
function describeDeed() {
  const { run, output } = page.data, { languages, examples, steps } = run, { classes } = output, [n, kind] = examples ?? [];
  const nameOf = (code) => { try { return new Intl.DisplayNames([page.language], { type: "language" }).of(code.replaceAll("_", "-")); } catch { return code; } };
  const deeds = { "encoder-decoder": () => languages ? t("Translates {source} to {target}", { source: nameOf(languages[0]), target: nameOf(languages[1]) }) : t("Turns one text into another"), decoder: () => run.tokenizer === "characters" ? t("Continues a text, character by character") : t("Continues a text, token by token"),
    classifier: () => t("Sorts texts into {n} classes: {labels}", { n: classes.length, labels: classes.slice(0, 4).map(({ label }) => label).join(", ") + (classes.length > 4 ? ", …" : "") }), encoder: () => output.vector ? t("Turns a text into a vector") : t("Fills in masked words"), "sentence-encoder": () => t("Turns a text into a vector"), "replaced-token-detection": () => t("Finds replaced words") };
  const amount = { pairs: () => t("{n} pairs of texts", { n: formatCount(n) }), text: () => t("{n} lines of text", { n: formatCount(n) }), labelled: () => t("{n} texts", { n: formatCount(n) }) }[kind]?.();
  const layers = page.data.layers.length === 1 ? t("1 layer") : t("{n} layers", { n: layerCounts().join(" + ") });
  const learnt = !steps ? null : amount ? t("trained on {amount} for {n} steps", { amount, n: formatCount(steps) }) : t("trained for {n} steps", { n: formatCount(steps) });
  return [deeds[run.kind]?.(), layers, learnt].filter(Boolean).join(t("; "));
}

function describeModel() {
  const { run } = page.data, config = run.config, word = (part) => typeof part === "string" ? part : part?.name, hasHeads = stepsOf("attention", "linear_attention").length > 0;
  const kinds = { decoder: t("language model"), "encoder-decoder": t("encoder-decoder"), encoder: t("encoder"), classifier: t("classifier"), "sentence-encoder": t("sentence encoder"), "replaced-token-detection": t("detector of replaced tokens") };
  return [kinds[run.kind] ?? run.kind, t("{n} parameters", { n: formatLarge(run.parameters) }), hasHeads && (config.n_heads === 1 ? t("1 head") : t("{n} heads", { n: config.n_heads })),
    hasHeads && config.n_kv_heads !== config.n_heads && (config.n_kv_heads === 1 ? t("1 key/value head") : t("{n} key/value heads", { n: config.n_kv_heads })), `d = ${config.d_model}`, word(hasHeads ? config.attention : config.block), word(config.position) === "none" ? t("no positions") : word(config.position), word(config.norm), stepsOf("feed_forward", "moe").length > 0 && t("{name} feed-forward", { name: word(config.feed_forward) })].filter(Boolean).join(" · ");
}

function drawHeader() {
  const title = (n) => {
    if (!page.data) return t("See a model read a text");
    const { name } = page.data.run, text = clipText(page.data.inputs.text, n);
    return name ? t("How {name} reads “{text}”", { name, text }) : t("How the model reads “{text}”", { text });
  };
  document.title = `${title(40)} · Polyhead`;
  redraw(document.getElementById("top"), h("div", { class: "top-line" }, h("p", { class: "brand" }, page.home ? h("a", { href: page.home, title: page.live ? t("To the page of the service") : SITE_LINKS.home ? t("To the documentation") : t("To the report of the run") }, "Polyhead") : "Polyhead"), page.data ? h("button", { type: "button", class: "site-switch enter", "data-focus": "class", onclick: enterClass }, t("Class mode")) : null, drawSwitches(h("div"), page.language, setLanguage)), h("h1", {}, title(60)), page.data ? h("p", { class: "deed" }, describeDeed()) : null, h("div", { class: "lead" }, page.data ? h("p", {}, describeModel()) : null, page.live ? null : drawSiteLinks(h("nav"))));
}
function setLanguage(language) { page.language = language; siteRoot.lang = language === "zh" ? "zh-CN" : "en"; drawAll(); if (sibling() && sibling().page.language !== language) sibling().setLanguage(language); }

/* The path: all stations in order, the layers of a stack folded into the chosen one. */
function drawPath() {
  const chosen = currentStation(), items = [], lastLayer = page.stations.findLastIndex((station) => station.layer);
  let group = null;
  for (const [i, station] of page.stations.entries()) {
    const key = station.layer ? `stack-${station.layer.stack}` : station.kind === "tokens" ? `side-${station.side}` : null;
    if (station.layer && station.layer.index !== layerOf(station.layer.stack)) continue;
    if (key !== null && key !== group) {
      group = key;
      items.push(station.layer ? layerHeading(station.layer.stack) : h("li", { class: "heading" }, page.data.sides.length > 1 ? sideName(station.side) : t("Input")));
    } else if (key === null && i > lastLayer && !station.stack && !INPUT.has(station.kind) && group !== "end") {
      group = "end";
      items.push(h("li", { class: "heading" }, t("Output")));
    }
    items.push(h("li", { class: station === chosen ? "stop on" : "stop" }, h("button", { type: "button", "aria-current": station === chosen ? "step" : null, "data-focus": `station-${station.id}`, onclick: () => walkTo(station) },
      stationName(station))));
  }
  redraw(document.getElementById("path"), h("ol", {}, items));
  const current = document.querySelector("#path [aria-current]");
  const list = document.querySelector("#path ol");
  if (current) centre(list, current);
}
/* Scroll a row sideways so that one of its elements is in the middle. */
function centre(list, element) {
  const box = element.getBoundingClientRect(), frame = list.getBoundingClientRect();
  if (list.scrollWidth > list.clientWidth) list.scrollLeft += box.left + box.width / 2 - frame.left - frame.width / 2;
}

/* To another station; the lesson turns to the chapter about it. Back and forward stop at each of its chapters. */
const walkTo = (station) => go({ station: station.id, card: "", key: null, chapter: chapterOf(station) }, { scroll: true });
const walkToStop = ({ station, card, chapter }) => go({ station: station.id, card, key: null, chapter: chapter ?? state.chapter }, { scroll: true });
const layerOf = (stack) => state.layers[stack] ?? Math.min(...page.data.layers.filter((layer) => layer.stack === stack).map((layer) => layer.index));

function layerHeading(stack) {
  const layers = page.data.layers.filter((layer) => layer.stack === stack).map((layer) => layer.index), index = layerOf(stack);
  return h("li", { class: "heading" }, h("span", {}, stackName(stack)), layers.length > 1
    ? picker(t("{stack}: layer", { stack: stackName(stack) }), layers.map((one) => [one, String(one + 1), t("layer {n}", { n: one + 1 })]), index, (one) => chooseLayer(stack, one), { kind: "layers", focus: `layer-${stack}` }) : null);
}
function chooseLayer(stack, index) {
  const here = currentStation(), target = here.layer?.stack === stack ? sameInLayer(here, stack, index) : null;
  state.layers[stack] = index;
  go(target ? { station: target.id, key: null } : {});
}

/* Tokens of each side and heads: they stay in view. */
function drawPickers() {
  const station = currentStation(), rows = [], cross = station.core && isCross(station.core);
  const sides = ["learnt", "cost"].includes(station.kind) ? [] : station.kind === "glance" ? page.data.sides.map((_, side) => side) : cross ? [keySide(station.core), station.side] : [station.side];
  for (const side of sides) {
    const options = shownPositions(side).map((position) => [position, clipText(tokenText(side, position)), t("token {n}: {text}", { n: position + 1, text: tokenText(side, position) })]);
    rows.push(h("div", { class: "picker-row" }, h("span", { class: "picker-name" }, sideName(side)), picker(t("{side}: token", { side: sideName(side) }), options, state.tokens[side], (position) => chooseToken(side, position), { kind: "tokens", focus: `token-${side}` })));
  }
  const heads = headsOf(station);
  if (heads > 1) rows.push(h("div", { class: "picker-row" }, h("span", { class: "picker-name" }, t("Head")), picker(t("Head"), d3.range(heads).map((n) => [n, String(n), t("head {n}", { n })]), state.head, (head) => go({ head, key: null }), { kind: "heads", focus: "head" })));
  redraw(document.getElementById("pickers"), rows, pairNotes(sides).map((text) => h("p", { class: "note" }, text)));
  for (const chosen of document.querySelectorAll("#pickers [aria-checked=true]")) {
    centre(chosen.parentElement, chosen);
  }
}

const SHOW = { glance: showGlance, tokens: showTokens, embedding: showEmbedding, position: showPosition, output: showOutput, lens: showLens, patching: showPatching, learnt: showLearnt, generation: showGeneration, levers: showLevers, cost: showCost };

/* The heading of a station and its cards. */
function stationElements(station) {
  const where = station.layer ? `${stackName(station.layer.stack)} · ${t("layer {n} of {all}", { n: station.layer.index + 1, all: page.data.layers.filter((layer) => layer.stack === station.layer.stack).length })}` : page.data.sides.length > 1 && station.side !== undefined && !["glance", "learnt", "levers", "cost"].includes(station.kind) ? sideName(station.side) : "";
  const core = station.core ?? station.steps[0];
  const facts = core ? [h("code", {}, core.path), core.part ? h("span", {}, core.part) : null, core.paper ? h("span", {}, core.paper) : null].filter(Boolean) : [];
  return [h("div", { class: "stage-head" }, lessonLine(), where ? h("p", { class: "where" }, where) : null, h("h2", {}, stationName(station)), facts.length ? h("p", { class: "module" }, facts) : null), ...(SHOW[station.kind] ?? showLayerSteps)(station)];
}

function drawStage({ scroll = false } = {}) {
  const station = currentStation(), stage = document.getElementById("stage");
  document.body.dataset.station = station.kind;
  page.accent = readColor("--accent");
  if (headsOf(station)) state.head = keepIn(state.head, headsOf(station));
  const at = stopAt(), neighbour = (step, text) => {
    const stop = page.stops[at + step];
    return stop ? h("button", { type: "button", class: "walk", "data-focus": `walk${step}`, onclick: () => walkToStop(stop) }, h("small", {}, text), h("span", {}, stop.station === station ? chaptersOf()[stop.chapter].title : fullName(stop.station))) : h("span", {});
  };
  fitStage(stage, (across) => {
    page.width = Math.max(across - (across < 560 ? 30 : 46), 220);
    const cards = addSaveMenus(markCards(station, stationElements(station)));
    redraw(stage, isClass() ? stageBar(cards) : null, ...cards, h("nav", { class: "walk-on", "aria-label": t("Along the path") }, neighbour(-1, t("Back")), neighbour(1, t("Forward"))));
  });
  if (scroll && isClass()) scrollTo(0, 0);
  else if (scroll) scrollToCard();
}
function fullName(station) {
  const name = stationName(station), isInput = ["tokens", "embedding", "position"].includes(station.kind);
  if (station.layer?.stack === "stack") return t("Layer {n}: {name}", { n: station.layer.index + 1, name });
  if (station.layer) return t("{stack} {n}: {name}", { stack: stackName(station.layer.stack), n: station.layer.index + 1, name });
  return page.data.sides.length > 1 && isInput ? labelled(sideName(station.side), name) : name;
}

/* Scroll to the chosen card below the pickers, which stay in view; without one to the top of the stage if it is above. */
function scrollToCard() {
  const stage = document.getElementById("stage"), card = state.card && document.getElementById(`card-${state.card}`);
  const pinned = document.getElementById("pickers").offsetHeight, top = (card || stage).getBoundingClientRect().top - pinned - (card ? 12 : 0);
  const behavior = card && !matchMedia("(prefers-reduced-motion: reduce)").matches ? "smooth" : "instant";
  if (card || top < 0) scrollBy({ top, behavior });
}

function drawAll(options) {
  drawHeader();
  if (page.live) drawForm();
  if (page.data) { drawPath(); drawPickers(); drawStage(options); drawLesson(); }
  inspectAgain();
  document.getElementById("skip").textContent = t("Skip to the stage");
  document.getElementById("path").setAttribute("aria-label", t("The path through the model"));
  document.getElementById("pickers").setAttribute("aria-label", t("Tokens and heads"));
  document.getElementById("inspector").setAttribute("aria-label", t("The number under the pointer"));
  document.getElementById("lesson").setAttribute("aria-label", t("Lesson"));
}
