/* ---- the lesson: chapters in plain words, each with what to look at ---- */
const PARTS_OF_STATION = new Set(["norm", "residual"]);
/* The card of a station that draws a value. */
const CARD_OF_VALUE = { q: "qkv", k: "qkv", v: "qkv", q_raw: "qkv", k_raw: "qkv", phi_q: "qkv", phi_k: "qkv", scores: "scores", similarity: "scores", hidden: "scores", bias: "scores", weights: "softmax", mix: "mix", joined: "heads",
  state: "state", rows: "position", cos: "position", sin: "position", slopes: "position", scaled: "scaled", mean: "norm", variance: "norm", rate: "position", mean_square: "norm", branch: "residual", unit: "feed-forward", act: "feed-forward", pre: "feed-forward", up: "feed-forward", expert: "experts", weight: "experts", probability: "experts", value: "convolution", gate: "convolution" };

const CARDS = ["qkv", "scores", "state", "softmax", "mix", "heads"]; // of an attention, in the order of the page

const stepName = (step) => step.kind === "attention" && isCross(step) ? "cross_attention" : step.kind;

/* Whether a station is one that a target of a chapter names. */
function fitsLook(look, station) {
  if (look.side !== undefined && station.side !== look.side) return false;
  if (look.stack !== undefined && station.stack !== look.stack) return false;
  if (PARTS_OF_STATION.has(look.step)) return station.steps.some((step) => step.kind === look.step);
  return station.core ? stepName(station.core) === look.step : station.kind === look.step || station.steps.some((step) => step.kind === look.step);
}
/* The card of a target at a station; each norm after the first part has one of its own. */
function cardOf(look, station) {
  if (look.step === "embedding" && look.value === "rows") return "embedding";
  const norm = look.step === "norm" && station.kind !== "norm" ? station.steps.findIndex((step) => step.kind === "norm") : 0;
  return norm > 0 ? `norm${norm}` : CARD_OF_VALUE[look.value] ?? (PARTS_OF_STATION.has(look.step) ? look.step : "");
}

/* The station, card and changes of a target of a chapter; null if the model has no such part. */
function findTarget(look) {
  if (!meets(look)) return null;
  const found = page.stations.filter((station) => fitsLook(look, station));
  if (!found.length) return null;
  const here = currentStation(), layers = [...new Set(found.filter((one) => one.layer).map((one) => one.layer.index))];
  const layer = look.layer === "first" ? layers[0] : look.layer === "last" ? layers[layers.length - 1] : look.layer !== undefined ? look.layer - 1 : null;
  const inLayer = found.filter((one) => layer === null || (look.layer === "last" ? one.layer === found.at(-1).layer : one.layer?.index === layer));
  const station = layer === null ? found.find((one) => one === here) ?? found.find((one) => one.layer && one.layer.index === layerOf(one.layer.stack)) ?? found[0] : inLayer[0];
  if (!station) return null;
  const heads = headsOf(station), head = look.head === "first" ? 0 : look.head === "last" ? heads - 1 : look.head !== undefined ? look.head - 1 : state.head;
  return { station: station.id, card: cardOf(look, station), head, key: null, ...(station.kind === "levers" && { lever: null, leverCase: 0 }) };
}

function meets(paragraph) {
  const name = paragraph.if;
  if (!name) return true;
  const { run, walk, output } = page.data, config = run.config, part = (value) => typeof value === "string" ? value : value?.name, isEncoder = run.kind !== "decoder" && run.kind !== "encoder-decoder", recurrent = walk.filter((step) => step.kind === "recurrent");
  const isCausal = walk.some((step) => step.facts?.causal), readsForward = recurrent.length > 0 && recurrent.every((step) => (step.facts.networks ?? 1) === 1);
  const facts = { decoder_only: run.kind === "decoder", encoder_decoder: run.kind === "encoder-decoder", encoder: isEncoder, causal: isCausal, bidirectional: isEncoder && !isCausal && !readsForward, causal_recurrent: readsForward,
    grouped: config.n_kv_heads < config.n_heads, gated: walk.some((step) => step.facts?.is_gated), relu: walk.some((step) => step.kind === "feed_forward" && step.facts?.activation === "relu"), layernorm: part(config.norm) === "layernorm", post_norm: config.norm_first === false, pre_norm: config.norm_first !== false,
    classifier: Boolean(output.classes?.length), bpe: run.tokenizer === "bpe", wordpiece: run.tokenizer === "wordpiece", unigram: run.tokenizer === "unigram", characters: run.tokenizer === "characters", recorded: Number.isInteger(run.steps), beams: page.data.generation?.method === "beam" && wonPath(page.data.generation).size > 0, scored: lossesOf().length > 0 };
  const found = facts[name] ?? (walk.some((step) => stepName(step) === name) || part(config.position) === name);
  return Boolean(found) !== Boolean(paragraph.not);
}

function measureElement(spec) {
  if (spec.name === "table") return TABLES[spec.of]();
  const value = (TEXTS[spec.name] ?? measure)(spec);
  return h(spec.of || typeof value === "number" ? "b" : "span", { class: "measure" }, typeof value === "number" ? Number.isInteger(value) ? formatCount(value) : formatNumber(value, 3) : value ?? "–");
}
const follow = (target) => go(target, { scroll: true });
function spanElement(span) {
  if (span.measure) return measureElement(span.measure);
  if (span.href) return h("a", { href: span.href, rel: "noopener" }, span.text);
  const target = span.look ? findTarget(span.look) ?? findTarget({ ...span.look, stack: undefined }) : span.lever ? findLever(span.lever) : null;
  if (target) return h("a", { href: "#stage", onclick: (event) => { event.preventDefault(); follow(target); } }, span.text);
  return { strong: h("strong", {}, span.text), emphasis: h("em", {}, span.text), code: h("code", {}, span.text) }[span.style] ?? document.createTextNode(span.text);
}

const chaptersOf = () => page.chapters?.[page.language] ?? page.chapters?.en ?? [];
/* Where a chapter opens: the first of its places that the model has, with its first station and the rank of its card there. */
function placeOf(chapter) {
  for (const [choice, at] of chapter.at.entries()) {
    const station = meets(at) ? page.stations.findIndex((one) => fitsLook(at, one)) : -1;
    if (station >= 0) return { at, choice, station, card: cardOf(at, page.stations[station]), rank: rankOf(page.stations[station], at) };
  }
  return null;
}
/* How far down a station the card of a place is: after the steps before it, and within an attention by its cards. */
function rankOf(station, at) {
  const step = station.steps.findIndex((one) => PARTS_OF_STATION.has(at.step) ? one.kind === at.step : one === station.core);
  return step + Math.max(CARDS.indexOf(cardOf(at, station)), 0) / CARDS.length;
}

/* Whether a place is not of the chapter's own part, which the model lacks: such chapters come last at a station. */
const FAMILY = { residual: "norm", linear_attention: "attention", cross_attention: "attention" }, familyOf = ({ step }) => FAMILY[step] ?? step;
const isElse = ({ at }, place) => familyOf(place) !== familyOf(at[0]);

/* Put the chapters in the order in which a reader of this model meets them, and list the stops of the walk: each station,
   with the chapters that open there. A station without one of its own has the first that is about its kind. */
function orderChapters() {
  const lesson = page.lesson?.[page.language] ?? page.lesson?.en ?? [], placed = lesson.map((chapter, i) => { const place = placeOf(chapter); return { i, station: page.stations.length, rank: 0, choice: 0, ...place, isElse: Number(Boolean(place) && isElse(chapter, place.at)) }; }).sort((a, b) => a.station - b.station || a.isElse - b.isElse || (!a.isElse && (a.rank - b.rank || a.choice - b.choice)) || a.i - b.i);
  page.chapters = Object.fromEntries(Object.entries(page.lesson ?? {}).map(([language, all]) => [language, placed.map(({ i }) => all[i])]));
  page.places = placed;
  page.stops = page.stations.flatMap((station, s) => {
    const own = placed.flatMap((place, chapter) => place.station === s ? [{ station, card: place.card, chapter }] : []);
    if (own.length) return [{ ...own[0], card: "" }, ...own.slice(1)];
    return [{ station, card: "", chapter: aboutStation(station)[0] ?? null }];
  });
}
/* The chapters about a station: those about its core before those about the norms and residuals around it. */
function aboutStation(station) {
  const isAround = (at) => PARTS_OF_STATION.has(at.step), about = (chapter, isCore) => chaptersOf()[chapter].at.some((at, i) => isAround(at) !== isCore && (isAround(at) || i === page.places[chapter].choice) && fitsLook(at, station));
  return [true, false].flatMap((isCore) => d3.range(page.places.length).filter((chapter) => about(chapter, isCore)));
}
/* The stop of the walk where the reader is. */
const stopAt = () => {
  const here = currentStation(), found = page.stops.findIndex((stop) => stop.station === here && stop.chapter === state.chapter);
  return found >= 0 ? found : page.stops.findIndex((stop) => stop.station === here);
};
/* The chapter that a station opens with: the one that is open if it is about it, else that of its first stop. */
function chapterOf(station) {
  if (aboutStation(station).includes(state.chapter)) return state.chapter;
  return page.stops.find((stop) => stop.station === station).chapter ?? state.chapter;
}
/* Name on the cards of a station the chapters that are about them. */
function markCards(station, cards) {
  const found = aboutStation(station).map((chapter) => {
    const place = chaptersOf()[chapter].at.find((one) => fitsLook(one, station));
    return { chapter, isElse: isElse(chaptersOf()[chapter], place), card: cards.find((one) => one.id === `card-${cardOf(place, station)}`) };
  });
  for (const { chapter, isElse, card } of found.reverse()) {
    if (isElse && found.some((other) => other.card === card && !other.isElse)) continue;
    card?.querySelector("h3")?.after(h("p", { class: "chapter-link" }, h("button", { type: "button", class: "link-button", "data-focus": `chapter-${chapter}`, onclick: () => { go({ chapter }); showLesson(); } }, labelled(t("Lesson"), chaptersOf()[chapter].title))));
  }
  return cards;
}

const VERDICTS = { held: () => t("held"), undecided: () => t("undecided"), "did not hold": () => t("did not hold"), mixed: () => t("mixed: it depends on the material") };
/* The text of a chapter, what the lab found about its claims, the recipe of its variant and its papers; `between` stands
   after the text. */
function chapterElements(chapter, between = null) {
  const paragraph = ({ spans }) => h(spans.some(({ measure }) => measure?.name === "table") ? "div" : "p", {}, spans.map(spanElement));
  const experiments = chapter.experiment.map((one) => h("p", { class: "experiment" }, h("span", {}, t("A claim, tested: {claim}", { claim: one.claim })), h("span", {}, labelled(t("In the lab"), ""), h("b", { class: `verdict ${one.verdict.replaceAll(" ", "-")}` }, VERDICTS[one.verdict]())), h("a", { href: one.href, rel: "noopener" }, h("code", {}, one.command))));
  const recipe = chapter.recipe ? h("p", { class: "experiment" }, h("span", {}, t("Train it yourself:")), h("a", { href: chapter.recipe.href, rel: "noopener" }, h("code", {}, chapter.recipe.text))) : null;
  const papers = chapter.papers.flatMap(({ text, href }, i) => [i ? "; " : "", h("a", { href, rel: "noopener" }, text)]);
  return [...chapter.paragraphs.filter(meets).map(paragraph), between, ...experiments, recipe, papers.length ? h("p", { class: "papers" }, papers) : null];
}

/* To the top of the lesson, which is beside the stage or below it. */
function showLesson() {
  const beside = document.querySelector(".beside");
  if (getComputedStyle(beside).position === "sticky") beside.scrollTop = 0;
  else document.getElementById("lesson").scrollIntoView();
}
/* On a small screen the lesson is below the stage: its beginning above that leads there. */
function lessonLine() {
  const chapter = chaptersOf()[state.chapter], text = chapter?.paragraphs.find(meets)?.spans.map((span) => span.text ?? "").join("");
  return chapter && h("button", { type: "button", class: "link-button lesson-line", "data-focus": "lesson-line", onclick: showLesson }, h("b", {}, labelled(t("Lesson"), chapter.title)), h("span", {}, ` ${text}`));
}

function drawLesson() {
  const place = document.getElementById("lesson"), chapters = chaptersOf();
  place.hidden = chapters.length === 0;
  if (!chapters.length) return;
  const at = keepIn(state.chapter, chapters.length), chapter = chapters[at];
  const select = h("select", { "aria-label": t("Chapter"), "data-focus": "chapter", onchange: (event) => open(Number(event.target.value)) }, chapters.map((one, i) => h("option", { value: i, selected: i === at }, `${i + 1}. ${one.title}${isPassed(one) ? " ✓" : ""}`)));
  const look = chapter.look.map((one) => [one.label, findTarget(one)]).find(([, target]) => target), lever = chapter.lever.map((one) => [one.label, findLever(one)]).find(([, target]) => target);
  const open = (n) => { go({ chapter: n }); showLesson(); };
  const buttons = [look, lever].filter(Boolean).map(([label, target], i) => h("button", { type: "button", class: "action", "data-focus": `look-${i}`, onclick: () => follow(target) }, label));
  const turn = (step, text) => chapters[at + step] ? h("button", { type: "button", class: "turn", "data-focus": `turn${step}`, onclick: () => open(at + step) }, text) : h("span", {});
  redraw(place, h("button", { type: "button", class: "turn back", "data-focus": "to-stage", onclick: () => document.getElementById("pickers").scrollIntoView() }, t("Back to the drawings")), h("p", { class: "eyebrow" }, t("Lesson, chapter {n} of {all}", { n: at + 1, all: chapters.length })), select, h("h2", {}, chapter.title), ...chapterElements(chapter, buttons.length ? h("div", { class: "actions" }, buttons) : null),
    quizElement(chapter), h("div", { class: "turns" }, turn(-1, t("Chapter before")), turn(1, t("Next chapter"))),
    h("div", { class: "turns" }, h("button", { type: "button", class: "turn", "data-focus": "print", onclick: () => print() }, t("Print the whole walk")), h("label", {}, h("input", { type: "checkbox", checked: page.hasAnswers, "data-focus": "answers", onchange: (event) => { page.hasAnswers = event.target.checked; } }), ` ${t("with answers")}`)));
}
