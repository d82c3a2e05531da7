/* ---- class mode: one token through at most 12 stages, each a card of the walk in large type, by the arrow keys ---- */
const MOST_STAGES = 12, LARGE = 3.4; // of type and drawings, at most
/* The cards that are stages, by the kind of their station; those that a long walk leaves out, first to last. */
const STAGE_CARDS = { tokens: ["tokens"], embedding: ["embedding"], position: ["position"], attention: ["qkv", "scores", "softmax", "mix", "heads"], linear_attention: ["qkv", "state", "mix"], recurrent: ["state", "gates"], conv: ["convolution"], feed_forward: ["feed-forward"], moe: ["experts", "out"], lens: ["rise"], output: ["last", "probabilities"] };
const LEFT_OUT = ["heads", "last", "qkv"];
/* The stages of the text that is written: its input, the chosen layer, the output. */
function stagesOf() {
  const side = page.data.output.side ?? page.data.sides.length - 1, layer = page.stations.find((one) => one.layer && one.side === side && one.layer.index === layerOf(one.layer.stack))?.layer;
  const stages = page.stations.filter((one) => one.side === side && (one.layer ? one.layer === layer : one.kind !== "position" || one.steps.some(({ values }) => Object.keys(values).length)))
    .flatMap((station) => (station.core && isCross(station.core) ? ["softmax"] : STAGE_CARDS[station.kind] ?? []).filter((card) => card !== "last" || page.data.output.positions?.length).map((card) => ({ station, card })));
  for (const card of LEFT_OUT) if (stages.length > MOST_STAGES) stages.splice(stages.findIndex((one) => one.card === card && !isCross(one.station.core ?? {})), 1);
  return stages.slice(0, MOST_STAGES);
}
const isClass = () => state.stage !== null;
function goStage(stage) {
  const { station, card } = stagesOf()[keepIn(stage, stagesOf().length)];
  page.isHeld = false;
  inspect(null);
  go({ stage: keepIn(stage, stagesOf().length), station: station.id, card, key: null, chapter: chapterOf(station) }, { scroll: true });
}
function enterClass() {
  siteRoot.requestFullscreen?.().catch(() => { /* some browsers refuse it */ });
  goStage(Math.max(stagesOf().findIndex(({ station }) => station === currentStation()), 0));
}
function leaveClass() {
  if (!isClass()) return;
  go({ stage: null }, { scroll: true });
  if (document.fullscreenElement) document.exitFullscreen();
}
/* Draw the stage; in class mode as large as it fits into the window, else it scrolls. */
function fitStage(stage, draw) {
  document.body.classList.toggle("class-mode", isClass());
  const most = isClass() ? Math.max(Math.min(LARGE, innerWidth / 380), 1) : 1, { style } = document.body;
  style.setProperty("--bar", Math.min(most, 2));
  const zooms = d3.range(isClass() ? 11 : 1).map((n) => Math.max(most * 0.9 ** n, 1)), doesFit = (zoom) => {
    style.setProperty("--zoom", zoom);
    page.room = innerHeight / zoom;
    draw(isClass() ? innerWidth / zoom - 24 : stage.clientWidth);
    return [siteRoot, ...stage.querySelectorAll(".staged, .staged .scroll:not(:has(.film))")].every((one) => one.scrollHeight <= one.clientHeight && one.scrollWidth <= one.clientWidth);
  };
  if (!zooms.find(doesFit) && isClass()) doesFit(zooms[5]);
}
/* The bar of class mode, with the stage before and the next one. */
function stageBar(cards) {
  const stages = stagesOf(), at = state.stage, shown = cards.find((one) => one.id === `card-${state.card}`) ?? cards.find((one) => one.matches(".card"));
  shown?.classList.add("staged");
  const turn = (step, text, name) => h("button", { type: "button", class: "turn", "aria-label": name, disabled: !stages[at + step], "data-focus": `stage${step}`, onclick: () => goStage(at + step) }, text), side = currentStation().side;
  return h("nav", { class: "stage-bar", "aria-label": t("Class mode") }, turn(-1, "←", t("Back")), h("b", {}, `${at + 1} / ${stages.length}`), turn(1, "→", t("Forward")), h("span", { class: "where" }, `“${tokenText(side, state.tokens[side])}” · ${fullName(currentStation())}`), h("button", { type: "button", class: "turn", "data-focus": "leave", onclick: leaveClass }, t("Leave (Esc)")));
}
/* The keys of class mode; true if one was meant for it. In a drawing the arrow keys move in it. */
function classKey(event, step) {
  if (!isClass()) return false;
  if (event.key === "Escape") leaveClass();
  const by = { PageDown: 1, PageUp: -1 }[event.key] ?? step;
  if (by) { event.preventDefault(); goStage(state.stage + by); }
  return true;
}
document.addEventListener("fullscreenchange", () => { if (!document.fullscreenElement) leaveClass(); });

/* The chosen number in the address: its drawing, and row and column there. */
const writePointed = () => page.pointed?.focus ? [page.pointed.focus, ...(page.pointed.cell ?? [])].join("~") : null;
function readPointed(text, station) {
  const [focus, ...cell] = text.split("~");
  Object.assign(page, { pointed: { focus, station, cell: cell.length ? cell.map(Number) : null }, isHeld: true });
}
let pointedTimer = 0;
const notePointed = () => { clearTimeout(pointedTimer); if (isClass()) pointedTimer = setTimeout(writeAddress, 200); };
