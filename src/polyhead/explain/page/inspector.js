/* ---- the inspector: one number with its formula, the numbers put in, its shape, its cost and its line of source ---- */

/* spec = {title, value, lines: [{text, code}], shape, flops, bytes, step}; null empties it. */
function inspect(spec) {
  const place = document.getElementById("inspector");
  page.inspected = spec;
  if (!spec) {
    place.replaceChildren(h("h2", {}, t("A number")), h("p", { class: "soft" }, t("Point at any number, or move there with the arrow keys, to see its formula here.")));
    place.classList.add("idle");
    return;
  }
  place.classList.remove("idle");
  const step = spec.step;
  const facts = [
    spec.shape && [t("shape"), `(${spec.shape.map(formatCount).join(", ")})`],
    spec.flops !== undefined && [t("this number"), `${formatLarge(spec.flops)} ${t("operations")}${spec.bytes ? ` · ${formatBytes(spec.bytes)}` : ""}`],
    step?.cost && [t("this part"), `${formatLarge(step.cost.flops)} ${t("operations")} · ${formatBytes(step.cost.weight_bytes)} ${t("of weights")}`],
    step?.source && [t("line of source"), `${step.source.file}:${step.source.line}`],
  ].filter(Boolean);
  place.replaceChildren(...[
    h("h2", {}, spec.title),
    h("p", { class: "value" }, h("output", { "data-value": spec.value }, typeof spec.value === "number" ? formatNumber(spec.value, 6) : spec.value)),
    ...(spec.lines ?? []).map((line) => h("p", { class: line.soft ? "soft" : "formula" }, line.soft ?? line)),
    h("dl", {}, facts.map(([name, text]) => h("div", {}, h("dt", {}, name), h("dd", {}, text)))),
    h("button", { type: "button", class: "close", "aria-label": t("Close"), onclick: () => inspect(null) }, "×"),
  ]);
}

/* A number or a name as a button: the inspector shows what `tell` says of it under the pointer and in focus. */
const pointable = (text, tell, choose = null, focus = null) => h("button", { type: "button", class: "pointable", "data-focus": focus, onpointerenter: () => inspect(tell()), onfocus: () => inspect(tell()), onclick: choose ?? (() => inspect(tell())) }, text);

/* The first terms of a sum and its total as text: "0.2·1.1 + 0.3·−0.4 + … (64 terms)". */
function sumText(a, b, n = 3) {
  const terms = d3.range(Math.min(n, a.length)).map((i) => `${formatNumber(a[i], 3)}·${bracket(b[i])}`);
  return a.length > n ? `${terms.join(" + ")} + … (${t("{n} terms", { n: formatCount(a.length) })})` : terms.join(" + ");
}
const bracket = (value) => value < 0 ? `(${formatNumber(value, 3)})` : formatNumber(value, 3);
const dot = (a, b) => { let sum = 0; for (let i = 0; i < a.length; i++) sum += a[i] * b[i]; return sum; };
