/* ---- the inspector: one number with its formula, the numbers put in, its shape, its cost and its line of source ---- */

/* spec = {title, value, unit, cell, lines: [formula or {soft: words}], shape, flops, bytes, step, source}; null empties it. The
   source is by default that of the step. `at` is the element of the number. */
function inspect(spec, at = null) {
  const place = document.getElementById("inspector"), counting = h("p", { class: "soft counting" }, t("Ids, positions, features, heads, units, experts and buckets count from 0, as in NumPy and model.safetensors."));
  page.inspected = spec;
  if (!isSameCell(spec?.cell, page.trail?.at(-1))) page.trail = spec?.cell ? [spec.cell] : [];
  page.pointed = spec && at ? { focus: at.closest("[data-focus]")?.dataset.focus, station: state.station, cell: null } : null;
  notePointed();
  if (!spec) {
    place.replaceChildren(h("h2", {}, t("Formula")), h("p", { class: "soft" }, t("Point at any number, or move there with the arrow keys, to see its formula here.")), counting);
    place.classList.add("idle");
    place.classList.remove("above");
    return;
  }
  place.classList.remove("idle");
  const step = spec.step, source = spec.source ?? step?.source;
  const facts = [
    spec.shape && [t("shape"), `(${spec.shape.map(formatCount).join(", ")})`],
    spec.flops !== undefined && [t("this number"), `${countedOperations(spec.flops)}${spec.bytes ? ` · ${formatBytes(spec.bytes)}` : ""}`],
    step?.cost && [t("this part"), `${countedOperations(step.cost.flops)} · ${formatBytes(step.cost.weight_bytes)} ${t("of weights")}`],
    source && [t("line of source"), `${source.file}:${source.line}`],
  ].filter(Boolean);
  place.replaceChildren(...[
    h("h2", {}, spec.title),
    h("p", { class: "value" }, h("output", { "data-value": spec.value }, typeof spec.value !== "number" ? spec.value : Number.isInteger(spec.value) ? formatCount(spec.value) : formatResult(spec.value, 6)), spec.unit ? ` ${spec.unit}` : null),
    ...(spec.lines ?? []).map((line) => h("p", { class: line.soft ? "soft" : "formula" }, line.soft ?? line)),
    ...(spec.cell ? trailElement(spec.cell) : []),
    h("dl", {}, facts.map(([name, text]) => h("div", {}, h("dt", {}, name), h("dd", {}, text)))), counting,
    h("button", { type: "button", class: "close", "aria-label": t("Close"), onclick: () => { page.isHeld = false; inspect(null); } }, "×"),
  ]);
  place.scrollTop = 0;
  if (at) keepInSight(at, place);
}

const countedOperations = (n) => n === 1 ? t("1 operation") : t("{n} operations", { n: formatLarge(n) });

/* The cell of a drawing that is shown, by the name of the drawing. */
const pointedCell = (focus) => page.pointed?.station === state.station && page.pointed.focus === focus ? page.pointed.cell : null;
/* After all is drawn again: the number that was shown, if it is still there. */
function inspectAgain() {
  const { pointed, trail } = page, element = pointed?.focus && pointed.station === state.station ? document.querySelector(`#stage [data-focus="${CSS.escape(pointed.focus)}"]`) : null;
  inspect(null);
  page.trail = trail;
  element?.dispatchEvent(new Event("again"));
  page.isHeld &&= Boolean(page.inspected);
}

/* Scroll to the number that the keyboard reaches. On a small screen the inspector is a sheet over one end of the window,
   which moves to the other end before it covers the number. */
function keepInSight(at, sheet) {
  if (at.closest(":focus-visible")) at.scrollIntoView({ block: "nearest", inline: "nearest" });
  if (getComputedStyle(sheet).position !== "fixed") return;
  const number = at.getBoundingClientRect(), { top, bottom } = sheet.getBoundingClientRect();
  if (number.bottom > top && number.top < bottom) sheet.classList.toggle("above");
}

/* A number or a name as a button: the inspector shows what `tell` says of it under the pointer and in focus. */
const pointable = (text, tell, choose = null, focus = null) => h("button", { type: "button", class: "pointable", "data-focus": focus, ...inspected(tell), ...(choose && { onclick: choose }) }, text);

/* The listeners of an element whose number the inspector shows: under the pointer, in focus and after a click. */
function inspected(tell) {
  const show = (event) => inspect(tell(), event.currentTarget);
  return { onpointerenter: show, onfocus: show, onclick: show, onagain: show };
}

/* A number of a table. */
const numberCell = (text, tell, kind = "number") => h("td", { class: kind }, pointable(text, tell));

/* The numbers of the rows of an element have one stop of the Tab key; the arrow keys move among them. */
function moveInRows(element, of) {
  const rows = of.map((row) => [...row.querySelectorAll(".pointable")]).filter((row) => row.length);
  rows.flat().forEach((one, i) => { one.tabIndex = i ? -1 : 0; });
  element.addEventListener("keydown", (event) => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key], r = rows.findIndex((row) => row.includes(event.target));
    if (!step || r < 0) return;
    event.preventDefault();
    const shown = (row) => row.filter((one) => one.offsetParent), next = shown(rows[keepIn(r + step[0], rows.length)]);
    next[keepIn(shown(rows[r]).indexOf(event.target) + step[1], next.length)]?.focus();
  });
  return element;
}
const moveInTable = (table) => moveInRows(table, [...table.rows]);

const dot = (a, b) => { let sum = 0; for (let i = 0; i < a.length; i++) sum += a[i] * b[i]; return sum; };
