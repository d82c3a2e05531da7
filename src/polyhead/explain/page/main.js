/* ---- start ---- */
const embedded = (id) => { const element = document.getElementById(id); return element ? JSON.parse(element.textContent) : null; };

async function start() {
  page.lesson = embedded("explain-chapters");
  page.live = embedded("explain-live");
  page.home = page.live ? "./" : siteHome();
  page.language = siteLanguage();
  siteRoot.lang = page.language === "zh" ? "zh-CN" : "en";
  document.body.append(hatchPatterns());
  const data = embedded("explain-data");
  page.asked = { text: "", target: null };
  drawAll();
  if (data) await showDocument(data);
  else await startLive();
  listeners.push((options) => drawAll(options));
  addEventListener("themechange", () => { drawAll(); if (sibling()?.isDark() === !isDark()) sibling().setTheme(siteRoot.dataset.theme); });
  addressBar.addEventListener("hashchange", () => { if (page.data) go({ key: null, ...readAddress() }, { scroll: true }); });
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; drawAll(); } });
  addEventListener("keydown", moveToken);
  holdChosen(document.getElementById("stage"));
  if (page.data) sibling()?.mirrorPage(addressBar.location.hash); // its notes are of this page
  document.documentElement.dataset.ready = "";
}

/* Draw a document from its first station, or from where the address says. */
async function showDocument(data) {
  if (data.packed) Object.assign(data, await inflateText(data.packed).json());
  const arrays = await openArrays(data);
  Object.assign(page, { data, arrays, stations: listStations(data) });
  orderChapters();
  Object.assign(state, { key: null, tokens: data.sides.map(middleToken), layers: {} }, readAddress());
  const chosen = currentStation();
  if (chosen.layer) state.layers[chosen.layer.stack] = chosen.layer.index;
  drawAll({ scroll: Boolean(state.card) });
  if (currentStation().kind === "glance" && !matchMedia("(prefers-reduced-motion: reduce)").matches) readOnce();
}

/* The token of a side to begin with: its mask, else a piece of the text in the middle. */
function middleToken(side) {
  const pieces = d3.range(...side.window).filter((position) => !side.tokens[position].special);
  const mask = d3.range(...side.window).find((position) => side.tokens[position].mark === "mask");
  return mask ?? pieces[Math.floor(pieces.length / 2)] ?? side.window[0];
}

/* Left and right choose the token before and after, where nothing else listens to the arrow keys. */
function moveToken(event) {
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  const isTaken = event.target.closest("input, select, textarea, [role=radiogroup], svg, .scroll");
  if (!page.data || event.defaultPrevented || event.altKey || event.ctrlKey || event.metaKey) return;
  if (classKey(event, isTaken ? 0 : step) || !step || isTaken) return;
  const side = currentStation().side, [first, stop] = windowOf(side);
  chooseToken(side, first + keepIn(state.tokens[side] + step - first, stop - first));
}

/* What tests and curious readers ask: the numbers as the page has them. */
window.explain = { page, state, go, mirrorPage, setLanguage, setTheme, isDark, find: (look) => findTarget(look), value: (name) => page.arrays.get(name), score: (path, q, k) => scoreParts(page.data.walk.find((step) => step.path === path), q, k) };
start();
