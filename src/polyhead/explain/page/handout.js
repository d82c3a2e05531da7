/* ---- the hand-out: what is printed is the whole walk in light colours, each station with the chapters that open there ---- */
const PAPER_WIDTH = 640; // of a drawing, in pixels

/* Draw every station as if it were chosen, for the token and the head that are; the screen is as before when it is printed. */
function drawHandout() {
  if (!page.data || document.getElementById("handout")) return;
  const before = { ...state }, { width, accent } = page, root = document.documentElement.dataset, { theme } = root;
  root.theme = "light"; // before the colours of the drawings are read
  Object.assign(page, { width: PAPER_WIDTH, accent: readColor("--accent") });
  const parts = page.stations.map((station) => {
    Object.assign(state, { station: station.id, key: null, head: keepIn(before.head, Math.max(headsOf(station), 1)) });
    return h("article", {}, withChapters(station, stationElements(station)));
  });
  Object.assign(state, before);
  Object.assign(page, { width, accent });
  const handout = h("div", { id: "handout" }, parts);
  for (const one of handout.querySelectorAll("[id]")) one.removeAttribute("id"); // those of the screen remain unique
  document.body.append(handout);
  handout.style.cssText = `display: block; position: absolute; visibility: hidden; width: ${PAPER_WIDTH}px`; // to measure tables
  for (const table of handout.querySelectorAll(".scroll > table")) table.style.zoom = Math.min(table.parentElement.clientWidth / table.offsetWidth, 1);
  handout.style.cssText = "";
  page.dropHandout = () => {
    handout.remove();
    if (theme === undefined) delete root.theme; else root.theme = theme;
  };
}
/* The elements of a station with the chapters that open there: each before the card that it is about, else below the heading. */
function withChapters(station, elements) {
  let top = 1;
  for (const stop of page.stops.filter((one) => one.station === station && page.stations[page.places[one.chapter]?.station] === station)) {
    const chapter = chaptersOf()[stop.chapter], at = elements.findIndex((one) => stop.card && one.id === `card-${stop.card}`);
    elements.splice(at < 0 ? top++ : at, 0, h("div", { class: "chapter" }, h("h3", {}, chapter.title), chapterElements(chapter, printedQuiz(chapter, page.hasAnswers))));
  }
  return elements;
}
addEventListener("beforeprint", drawHandout);
addEventListener("afterprint", () => page.dropHandout?.());
