
/* ---- translation ---- */
const TOOLS = {};
TOOLS.translations = [() => t("Translate"), () => {
  const limits = model.limits, own = model.generation;
  const knobs = settings([
    { name: "beam_size", title: () => t("Beams"), min: 1, max: Math.min(16, limits.beams), value: own.beam_size },
    { name: "length_penalty", title: () => t("Length penalty"), min: 0, max: 2, step: 0.01, value: own.length_penalty },
    { name: "n", title: () => t("Alternatives"), min: 1, max: Math.min(8, limits.n, limits.beams), value: 1 },
  ]);
  const sides = Object.entries(model.languages).filter(([, names]) => names.length > 1).map(([side]) => side);
  const choice = settings(sides.map((side) => ({
    name: side, title: () => side === "source" ? t("From") : t("To"), value: model.settled[side],
    options: [...(model.settled[side] ? [] : [["", () => t("choose a language")]]), ...model.languages[side].map((code) => [code, () => languageName(code)])],
  })));
  const titled = (word, code) => () => code ? t("{word} ({language})", { word: word(), language: languageName(code) }) : word();
  const source = field(titled(() => t("Text"), sides.includes("source") ? "" : model.source), () => t("One sentence per line …"), { byLine: true, lang: model.source ?? "" });
  const output = make("p", { class: "text", role: "log", "aria-label": "", lang: model.target ?? "" }), copy = copyButton(() => t("the translation"), () => output.textContent);
  setAttribute(output, "aria-label", () => t("Translation"));
  const why = make("span"), others = make("div", { class: "answer" }), looks = make("section", { hidden: "" });

  const request = (texts) => {
    const n = knobs.value("n"), body = { model: model.id, input: texts, beam_size: Math.max(n, knobs.value("beam_size")), length_penalty: knobs.value("length_penalty"), n };
    for (const side of sides) if (choice.value(side) !== model.settled[side]) body[side] = choice.value(side);
    return body;
  };
  const here = tool(() => t("Translate"), async ({ signal, note }) => {
    const texts = lines(source.input.value);
    if (!texts.length) { source.input.focus(); return; }
    const body = request(texts), begun = performance.now();
    program("/v1/translations", body);
    output.classList.add("going");
    let answer;
    const looked = model.attention && !body.source && !body.target && texts.join("").length <= 2000;
    try { answer = await askJson("/v1/translations", { ...body, return_attention: looked }, signal); } finally { output.classList.remove("going"); }
    output.textContent = answer.data.map((one) => one.text).join("\n");
    copy.hidden = false;
    put(empty(why), whyLinks(body.source || body.target ? [] : texts));
    empty(others);
    if (body.n > 1) for (const one of answer.data) for (const way of [one, ...one.alternatives])
      others.append(row(way.text, way.score?.toFixed(3) ?? "", () => t("log-probability / length ^ penalty")));
    showAttention(looks, answer.data.filter((one) => one.attention));
    const seconds = performance.now() - begun;
    note(() => t("{n} tokens in {ms} ms", { n: grouped(answer.usage.completion_tokens), ms: grouped(Math.round(seconds)) }));
  }, () => { output.textContent = ""; copy.hidden = true; empty(why); empty(others); showAttention(looks, []); });
  copy.hidden = true;
  const result = fileOpener(here, "translation.txt", async (texts, signal) => {
    const { data } = await askJson("/v1/translations", { ...request(texts), n: 1 }, signal);
    return data.map((one) => oneLine(one.text));
  });
  const head = put(make("div", { class: "head" }), create("b", {}, titled(() => t("Translation"), sides.includes("target") ? "" : model.target)), put(make("span", { class: "ways" }), why, copy));
  put(here.sheet, put(make("div", { class: "panes" }), put(make("div", { class: "pane" }), source.box), put(make("div", { class: "pane" }), head, output)),
    exampleRow(model.examples, source.set, here), others, result, here.actions);
  if (sides.length) here.sheet.prepend(put(choice.box, ...swapButton(choice, source, output)));
  put(here.root, more(() => t("Settings"), knobs.box), looks);
  return here.root;
}];

/* Where the model translates both ways: exchanges the languages, and the translation becomes the text. */
function swapButton(choice, source, output) {
  const { source: from, target: to } = choice.inputs;
  if (!from || !to) return [];
  const button = create("button", { class: "button swap", type: "button", "aria-label": () => t("Swap the languages"), title: () => t("Swap the languages") }, "⇄");
  button.addEventListener("click", () => {
    [from.value, to.value] = [to.value, from.value];
    if (output.textContent) source.set(output.textContent);
    output.textContent = "";
  });
  return [button];
}

function showAttention(section, answers) {
  const maps = answers.map(({ text, attention: { source, target, layers, weights } }) =>
    ({ kind: "cross-attention", title: text, source: source.map(bare), target: target.map(bare), layers, weights }));
  section.hidden = !maps.length;
  section.redraw = () => {
    empty(section);
    if (!maps.length) return;
    const root = make("div", { class: "attention" });
    root.append(make("script", { type: "application/json" }, JSON.stringify(maps)));
    put(section, make("h2", {}, t("Attention of the decoder")), make("p", { class: "about" }, t("Each row is an output token; the stronger the colour of a cell, the higher the attention weight of the source token above it.")), root);
    attention(root);
  };
  section.redraw();
}
