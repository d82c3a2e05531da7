/* ---- questions at the end of a chapter: predict, then look; the truth is a measure of this page ---- */
const passKey = (chapter, i) => `explain-passed-${chapter.name}-${i}`;
/* The questions that this model has an answer to, with their place in the chapter. */
const questionsOf = (chapter) => chapter.quiz.map((question, i) => ({ question, i, truth: measure(question.truth) })).filter(({ truth }) => truth !== null);
const isPassed = (chapter) => questionsOf(chapter).length > 0 && questionsOf(chapter).every(({ i }) => siteStored(passKey(chapter, i)));

/* The number of the option that is right. */
const rightOption = ({ bounds }, truth) => bounds.filter((bound) => bound <= truth).length;
const isRight = (question, truth, answer) => question.options ? answer === rightOption(question, truth) : Math.abs(answer - truth) <= question.tolerance * Math.abs(truth) + 1e-9;
const truthText = (question, truth) => question.options ? `${question.options[rightOption(question, truth)]} (${formatNumber(truth, 3)})` : Number.isInteger(truth) ? formatCount(truth) : formatNumber(truth, 3);

/* The number of an answer, also with the page's own units: 5.66 M, 285k, 1.7 MB, 44 %. A comma that parts no thousands is that
   of decimals: 0,124. */
function readAnswer(text) {
  const spaceless = text.replace(/\s/g, "").replace(MINUS, "-"), isGrouped = /^-?[1-9]\d{0,2}(,\d{3})+(?![\d,])/.test(spaceless), plain = isGrouped ? spaceless.replaceAll(",", "") : spaceless.includes(".") ? spaceless : spaceless.replace(",", ".");
  const [, number, unit] = plain.match(/^(-?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)([%kMG]?)B?$/) ?? [];
  return Number(number) * ({ "%": 0.01, k: 1e3, M: 1e6, G: 1e9 }[unit] ?? 1);
}

/* Where the numbers of an answer stand: the first that the model has of some places, if not where the chapter looks. */
const HEAD_VECTORS = [{ step: "attention", value: "q" }, { step: "linear_attention", value: "phi_q" }], HEADER = [{ step: "glance" }];
const PLACES = {
  tokens: [{ step: "tokens" }], distances: [{ step: "tokens" }], pages: [{ step: "tokens", side: 1 }, { step: "tokens" }], empty_share: [{ step: "position" }, { step: "embedding" }], "config:d_model": [{ step: "embedding" }], "config:head_dim": HEAD_VECTORS, group: HEAD_VECTORS, tie_saving: HEAD_VECTORS, state_numbers: HEAD_VECTORS,
  top_weight: [{ step: "attention", value: "weights", layer: "first", head: "first" }], top_probability: [{ step: "output" }], parameters: [{ step: "cost" }], heads: HEADER, depth: HEADER, bubble: HEADER, family: HEADER,
};
function hintElement(chapter, { name, of, setting }) {
  const lever = ["kl", "changed", "largest_kl"].includes(name) ? findLever({ name: of, setting: name === "largest_kl" ? LARGEST : setting }) : null, target = lever ?? (PLACES[of ? `${name}:${of}` : name] ?? chapter.look).map(findTarget).find(Boolean), station = page.stations.find(({ id }) => id === target?.station);
  return station ? h("button", { type: "button", class: "link-button", onclick: () => follow(target) }, t("Hint: look at {place}", { place: fullName(station) })) : null;
}

function quizElement(chapter) {
  const asked = questionsOf(chapter);
  if (!asked.length) return null;
  return h("div", { class: "quiz" }, h("h3", {}, t("Predict, then look")), asked.map(({ question, i, truth }) => questionForm(chapter, question, i, truth)));
}
const tries = new Map(); // answers to each question
function questionForm(chapter, question, i, truth) {
  const name = passKey(chapter, i), verdict = h("p", { class: "note", role: "status" }, siteStored(name) ? `✓ ${truthText(question, truth)}` : "");
  const inputs = question.options ? question.options.map((text, n) => h("label", {}, h("input", { type: "radio", name, value: n, "data-focus": `${name}-${n}` }), ` ${text}`)) : [h("input", { type: "text", inputmode: "decimal", name, "aria-label": question.ask, "data-focus": name, autocomplete: "off" })];
  const form = h("form", { class: "question" }, h("p", {}, question.ask), h("div", { class: question.options ? "options" : "" }, inputs), h("button", { type: "submit", class: "turn", "data-focus": `${name}-check` }, t("Check")), verdict);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const answer = readAnswer(new FormData(form).get(name) ?? "");
    if (Number.isNaN(answer)) {
      if (!question.options) verdict.textContent = t("Write a number, such as 0.5, 44 % or 1.2 M.");
      return;
    }
    const right = isRight(question, truth, answer);
    if (right) siteStore(name, "1");
    tries.set(name, (tries.get(name) ?? 0) + 1);
    verdict.replaceChildren(...right ? [`✓ ${truthText(question, truth)}`] : [t("✗ Not so: look at the page, and try again."), tries.get(name) > 1 ? hintElement(chapter, question.truth) : null].filter(Boolean).flatMap((part) => [part, " "]));
  });
  return form;
}
/* The questions on paper, with a line for each answer or with the answers. */
function printedQuiz(chapter, hasAnswers) {
  const asked = questionsOf(chapter);
  return asked.length ? h("ol", { class: "quiz" }, asked.map(({ question, truth }) => h("li", {}, question.ask, question.options ? ` ${question.options.map((text) => `☐ ${text}`).join("  ")}` : "", hasAnswers ? h("b", {}, ` ${t("Answer: {text}", { text: truthText(question, truth) })}`) : question.options ? null : " ______"))) : null;
}
