/* ---- the lesson: chapters in plain words, each with what to look at ---- */
const PARTS_OF_STATION = new Set(["norm", "residual"]);
/* The card of a station that draws a value. */
const CARD_OF_VALUE = { q: "qkv", k: "qkv", v: "qkv", q_raw: "qkv", k_raw: "qkv", phi_q: "qkv", phi_k: "qkv", scores: "scores", similarity: "scores", hidden: "scores", bias: "scores", weights: "softmax", mix: "mix", joined: "heads",
  state: "state", rows: "position", cos: "position", sin: "position", slopes: "position", scaled: "scaled", mean: "norm", variance: "norm", rate: "position", mean_square: "norm", branch: "residual", unit: "feed-forward", act: "feed-forward", pre: "feed-forward", up: "feed-forward" };

const stepName = (step) => step.kind === "attention" && isCross(step) ? "cross_attention" : step.kind;

/* The station, card and changes of a target of a chapter; null if the model has no such part. */
function findTarget(look) {
  const fits = (station) => {
    if (look.side !== undefined && station.side !== look.side) return false;
    if (look.stack !== undefined && station.stack !== look.stack) return false;
    if (PARTS_OF_STATION.has(look.step)) return station.steps.some((step) => step.kind === look.step);
    return station.core ? stepName(station.core) === look.step : station.kind === look.step || station.steps.some((step) => step.kind === look.step);
  };
  const found = page.stations.filter(fits);
  if (!found.length) return null;
  const here = currentStation(), layers = [...new Set(found.filter((one) => one.layer).map((one) => one.layer.index))];
  const layer = look.layer === "first" ? layers[0] : look.layer === "last" ? layers[layers.length - 1] : look.layer !== undefined ? look.layer - 1 : null;
  const inLayer = found.filter((one) => layer === null || one.layer?.index === layer);
  const station = layer === null ? found.find((one) => one === here) ?? found.find((one) => one.layer && one.layer.index === layerOf(one.layer.stack)) ?? found[0] : inLayer[0];
  if (!station) return null;
  const heads = headsOf(station), head = look.head === "first" ? 0 : look.head === "last" ? heads - 1 : look.head !== undefined ? look.head - 1 : state.head;
  const isEmbedding = look.step === "embedding" && look.value === "rows";
  const cardName = isEmbedding ? "embedding" : CARD_OF_VALUE[look.value] ?? (PARTS_OF_STATION.has(look.step) ? look.step : "");
  return { station: station.id, card: cardName, head, key: null };
}

function meets(paragraph) {
  const name = paragraph.if;
  if (!name) return true;
  const { run, walk } = page.data, config = run.config, part = (value) => typeof value === "string" ? value : value?.name;
  const facts = { decoder_only: run.kind === "decoder", encoder_decoder: run.kind === "encoder-decoder", encoder: run.kind !== "decoder" && run.kind !== "encoder-decoder", causal: walk.some((step) => step.facts?.causal),
    bidirectional: run.kind !== "decoder" && run.kind !== "encoder-decoder" && !walk.some((step) => step.facts?.causal),
    grouped: config.n_kv_heads < config.n_heads, gated: walk.some((step) => step.facts?.is_gated), post_norm: config.norm_first === false, pre_norm: config.norm_first !== false };
  const found = facts[name] ?? (walk.some((step) => stepName(step) === name) || part(config.position) === name);
  return Boolean(found) !== Boolean(paragraph.not);
}

const follow = (target) => go(target, { scroll: true });
function spanElement(span) {
  if (span.href) return h("a", { href: span.href, rel: "noopener" }, span.text);
  const target = span.look ? findTarget(span.look) : span.lever ? findLever(span.lever) : null;
  if (target) return h("a", { href: "#stage", onclick: (event) => { event.preventDefault(); follow(target); } }, span.text);
  return { strong: h("strong", {}, span.text), emphasis: h("em", {}, span.text), code: h("code", {}, span.text) }[span.style] ?? document.createTextNode(span.text);
}

const chaptersOf = () => page.chapters?.[page.language] ?? page.chapters?.en ?? [];
/* The number of the chapter about a station: the one that is open if it is about it, else the first that is. */
function chapterOf(station) {
  const kinds = new Set([station.kind, ...station.steps.map(stepName)]), chapters = chaptersOf();
  const isAbout = (chapter) => kinds.has(chapter?.look?.find((look) => findTarget(look))?.step) || (station.kind === "levers" && chapter?.lever?.length);
  if (isAbout(chapters[state.chapter])) return state.chapter;
  const found = chapters.findIndex(isAbout);
  return found < 0 ? state.chapter : found;
}

function drawLesson() {
  const place = document.getElementById("lesson"), chapters = chaptersOf();
  place.hidden = chapters.length === 0;
  if (!chapters.length) return;
  const at = keepIn(state.chapter, chapters.length), chapter = chapters[at];
  const select = h("select", { "aria-label": t("Chapter"), "data-focus": "chapter", onchange: (event) => go({ chapter: Number(event.target.value) }) }, chapters.map((one, i) => h("option", { value: i, selected: i === at }, `${i + 1}. ${one.title}`)));
  const look = (chapter.look ?? []).map((one) => [one.label, findTarget(one)]).find(([, target]) => target), lever = (chapter.lever ?? []).map((one) => [one.label, findLever(one)]).find(([, target]) => target);
  const buttons = [look, lever].filter(Boolean).map(([label, target], i) => h("button", { type: "button", class: "action", "data-focus": `look-${i}`, onclick: () => follow(target) }, label));
  const experiments = (chapter.experiment ?? []).map((one) => h("p", { class: "experiment" }, h("span", {}, t("A claim to test: {claim}", { claim: one.claim })), h("code", {}, one.command)));
  const turn = (step, text) => chapters[at + step] ? h("button", { type: "button", class: "turn", "data-focus": `turn${step}`, onclick: () => go({ chapter: at + step }) }, text) : h("span", {});
  redraw(place, h("p", { class: "eyebrow" }, t("Lesson, chapter {n} of {all}", { n: at + 1, all: chapters.length })), h("h2", {}, chapter.title), ...chapter.paragraphs.filter(meets).map((one) => h("p", {}, one.spans.map(spanElement))),
    buttons.length ? h("div", { class: "actions" }, buttons) : null, ...experiments, chapter.papers?.length ? h("p", { class: "papers" }, chapter.papers.join("; ")) : null, h("div", { class: "turns" }, turn(-1, t("Chapter before")), select, turn(1, t("Next chapter"))));
}
