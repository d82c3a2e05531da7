/* ---- what the reader looks at: one state, kept in the address, and what is drawn again when it changes ---- */
const page = { language: "en", data: null, arrays: null };

/* station: a step of the path; card: a part of it to scroll to; tokens: the chosen token of each side; key: the chosen
   key of an attention; layer: the chosen layer of each stack; head: the chosen query head; step: the chosen step of the
   output; mark and map: the chosen step of training and its attention; lever and leverCase: what is changed, also at an
   attention; stage: the stage of class mode. */
const state = { station: "", card: "", tokens: [0, 0], key: null, layers: {}, head: 0, chapter: 0, step: 0, mark: Infinity, map: 0, stage: null, lever: null, leverCase: 0 };
const listeners = [];
const isFramed = location.href === "about:srcdoc", addressBar = isFramed ? parent : window; // of two pages in one
let addressed = null; // the station that the address has; another one is a new entry of the browser's history

/* Change the state, and draw again what follows from it. */
function go(changes, { scroll = false } = {}) {
  if (changes.station && changes.station !== state.station && state.station !== "glance") page.before = state.station;
  Object.assign(state, changes);
  const chosen = page.stations?.find((station) => station.id === state.station);
  if (chosen?.layer) state.layers[chosen.layer.stack] = chosen.layer.index;
  const address = writeAddress();
  for (const listener of listeners) listener({ scroll });
  if (!page.isMirroring) sibling()?.mirrorPage(address);
}

/* Of two pages in one document the other one, when it is drawn. What is chosen in one is chosen in the other, by the address;
   a part that a page lacks leaves it where it is. */
const sibling = () => isFramed ? d3.range(parent.length).map((i) => parent[i]).find((one) => one !== window)?.explain : null;
function mirrorPage(address) {
  if (!page.data) return;
  const at = new URLSearchParams(address.slice(1)).get("at"), { station, ...found } = readAddress(address);
  page.isMirroring = true;
  page.isAstray = at !== null && station !== at;
  go({ key: null, ...found, station: page.isAstray ? state.station : station }, { scroll: station !== state.station });
  page.isMirroring = false;
}
/* What a reader of two pages must know of the other one. */
function pairNotes(sides) {
  const other = sibling()?.page.data, texts = (data, side) => data.sides[side]?.tokens.map(({ text }) => text).join("\n");
  return [other && sides.some((side) => texts(other, side) !== texts(page.data, side)) ? t("The other run has other tokens: they are matched by their index.") : "", page.isAstray ? t("The other page is at a part that this run lacks.") : ""].filter(Boolean);
}

function writeAddress() {
  const parts = { at: state.station, head: state.head, tokens: state.tokens.map((n) => n + 1).join("-"), chapter: chaptersOf()[state.chapter]?.name ?? state.chapter + 1 };
  if (state.card) parts.card = state.card;
  if (state.stage !== null) Object.assign(parts, { stage: state.stage + 1, ...(writePointed() && { number: writePointed() }) });
  if (state.station === "generation") parts.step = state.step + 1;
  if (state.station === "learnt") Object.assign(parts, { mark: markAt() + 1, map: state.map + 1 });
  const lever = state.station === "levers" ? chosenLever(page.data.levers.levers) : changeAt(currentStation());
  if (lever) {
    Object.assign(parts, { lever: lever.name, setting: JSON.stringify(lever.cases[state.leverCase]?.setting ?? {}) });
  }
  const hash = `#${new URLSearchParams(parts)}`, isOther = addressed !== state.station;
  const bar = page.isMirroring ? null : addressBar;
  try { if (isOther) bar?.history.pushState(null, "", hash); else if (hash !== bar?.location.hash) bar?.history.replaceState(null, "", hash); } catch { /* some viewers of files refuse it */ }
  addressed = state.station;
  return hash;
}

/* The state that the address has, for what it has; without a station the first. */
function readAddress(address = addressBar.location.hash) {
  const parts = new URLSearchParams(address.slice(1)), found = { card: parts.get("card") ?? "" }, count = (name) => Math.max(Number(parts.get(name)) - 1, 0) || 0;
  const station = page.stations.find(({ id }) => id === parts.get("at")) ?? page.stations[0];
  found.station = addressed = station.id;
  found.stage = parts.has("stage") ? keepIn(count("stage"), stagesOf().length) : null;
  if (parts.has("number")) readPointed(parts.get("number"), station.id);
  if (parts.has("head")) found.head = Math.max(Number(parts.get("head")), 0) || 0;
  for (const name of ["step", "mark", "map"]) if (parts.has(name)) found[name] = count(name);
  const named = chaptersOf().findIndex(({ name }) => name === parts.get("chapter"));
  found.chapter = named >= 0 ? named : parts.has("chapter") ? count("chapter") : chapterOf(station);
  if (parts.has("tokens")) {
    found.tokens = parts.get("tokens").split("-").map((text, side) => keepIn((Number(text) || 1) - 1, page.data.sides[side]?.tokens.length ?? 1));
  }
  return parts.has("lever") ? { ...found, ...readLever(parts.get("lever"), parts.get("setting")) } : found;
}

/* Replace the children of an element; what had the focus gets it again if a new child has the same data-focus. */
function redraw(element, ...children) {
  const focused = element.contains(document.activeElement) ? document.activeElement.dataset.focus : null;
  const offsets = new Map([...element.querySelectorAll(".scroll")].map((region) => [region.getAttribute("aria-label"), region.scrollLeft]));
  element.replaceChildren(...children.flat().filter(Boolean));
  for (const region of element.querySelectorAll(".scroll")) {
    const left = offsets.get(region.getAttribute("aria-label"));
    if (left) region.scrollLeft = left;
  }
  if (focused) element.querySelector(`[data-focus="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
}
