"use strict";
/* ---- elements, texts in the language of the page, numbers as text ---- */

/* An element with attributes, listeners ("onclick") and children; texts are never parsed as HTML. */
function h(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "style") element.style.cssText = value; // not setAttribute, which the policy of the page refuses
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/* The text in the page's language with its {placeholders} filled. Write the text as a literal in double quotes: the
   catalog of the page holds those that it finds in the script as the first argument of this function. */
const CHINESE = JSON.parse(document.getElementById("catalog")?.textContent ?? "{}");
const t = (text, values = {}) =>
  ((page.language === "zh" && CHINESE[text]) || text).replace(/\{(\w+)\}/g, (whole, name) => values[name] ?? whole);

const MINUS = "\u2212";
/* A number with up to `digits` significant digits, with a true minus sign; very small and large ones as powers of ten. */
function formatNumber(value, digits = 4) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : `${MINUS}∞`;
  const size = Math.abs(value);
  let text;
  if (size === 0) text = "0";
  else if (size >= 1e6 || size < 1e-4) {
    const [digitsOf, power] = value.toExponential(Math.max(digits - 2, 1)).split("e");
    text = `${digitsOf}·10${superscript(Number(power))}`;
  } else text = size >= 1e4 && digits < 6 ? String(Math.round(value)) : String(Number(value.toPrecision(digits)));
  return text.replace("-", MINUS);
}
const superscript = (n) => String(n).replace(/./g, (c) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(c)]);
/* A name before what it names, with the colon of the language. */
const labelled = (name, text) => t("{name}: {text}", { name, text });
const formatCount = (n) => n.toLocaleString(page.language === "zh" ? "zh-CN" : "en");
const formatPercent = (p) => p >= 0.9995 || p === 0 ? `${Math.round(100 * p)}%`
  : p < 0.0001 ? "<0.01%" : `${Number((100 * p).toPrecision(p < 0.01 ? 2 : 3))}%`;
function formatLarge(n) {
  if (n === null || n === undefined) return t("no formula");
  const units = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
  const [size, unit] = units.find(([size]) => n >= size) ?? [1, ""];
  return `${Number((n / size).toPrecision(3))}${unit && `\u2009${unit}`}`;
}
const formatBytes = (n) => n === null || n === undefined ? t("no formula") : `${formatLarge(n)}B`.replace(/(\d)B/, "$1\u2009B");

const SPACES = { " ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍" };
/* A token as it is shown: spaces and control characters are visible. */
const showToken = (text) => text === "" ? "∅" : text.replace(/[ \n\t\r]/g, (c) => SPACES[c]);
const clipText = (text, n = 14) => [...text].length <= n ? text : `${[...text].slice(0, n - 1).join("")}…`;
const textWidth = (text) => [...text].reduce((sum, c) => sum + (c > "\u2e7f" ? 2 : 1), 0);
const keepIn = (value, n) => Math.min(Math.max(value, 0), n - 1);

/* A region that scrolls sideways if it does not fit, also by keyboard. It fades at an edge behind which there is more. */
function scrollRegion(name, ...children) {
  const region = h("div", { class: "scroll", role: "region", tabindex: 0, "aria-label": t("{name}, scrollable", { name }), onscroll: (event) => markEdges(event.currentTarget) }, ...children);
  resizes.observe(region);
  return region;
}
const resizes = new ResizeObserver((all) => all.forEach(({ target }) => {
  const chosen = target.querySelector(".still[aria-pressed=true], .tree .tick.on"); // of a film or a tree, in sight
  if (chosen) centre(target, chosen);
  markEdges(target);
}));
function markEdges(region) {
  region.classList.toggle("more-before", region.scrollLeft > 1);
  region.classList.toggle("more-after", region.scrollLeft + region.clientWidth < region.scrollWidth - 1);
}

/* Sentences one after the other; null is left out. */
const joinSentences = (...all) => all.filter(Boolean).join(page.language === "zh" ? "" : " ");

/* The numbers behind a drawing as a table, built when it is opened. */
function numbersTable(name, columns, rows) {
  const details = h("details", { class: "numbers" }, h("summary", {}, t("Numbers as a table")));
  details.addEventListener("toggle", () => {
    if (!details.open || details.childElementCount > 1) return;
    const head = h("tr", {}, h("td"), columns().map((text) => h("th", { scope: "col" }, text)));
    const body = rows().map(([label, ...cells]) =>
      h("tr", {}, h("th", { scope: "row" }, label), cells.map((cell) => h("td", {}, typeof cell === "number" ? formatNumber(cell) : cell))));
    details.append(scrollRegion(t("{name} as a table", { name }), h("table", {}, h("caption", { class: "unseen" }, name), h("thead", {}, head), h("tbody", {}, body))));
  });
  return details;
}
