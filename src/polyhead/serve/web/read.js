
/* ---- models that read: classes, ranks, hidden words, vectors ---- */
const paired = (example) => Array.isArray(example) ? example.join("\t") : example;
const texts = (n, ms) => () => n > 1 ? t("{n} texts in {ms} ms", { n, ms }) : t("1 text in {ms} ms", { ms });

TOOLS.classify = [() => t("Classify"), () => {
  const pairs = model.nsp_head, found = make("div");
  const input = field(() => pairs ? t("Pairs of texts") : t("Texts"), () => pairs ? t("One pair per line, separated by a tab …") : t("One text per line; a tab separates the two texts of a pair …"), { byLine: true });
  const request = (all) => ({ model: model.id, input: all.some((line) => line.includes("\t")) ? all.map((line) => line.split("\t")) : all });
  let answer = null;
  const copy = () => copyButton(() => t("the classes"), () => answer.map((one) => `${one.label}\t${one.score}`).join("\n"));
  const here = tool(() => t("Classify"), async ({ signal, note }) => {
    const all = lines(input.input.value), begun = performance.now();
    if (!all.length) { input.input.focus(); return; }
    const body = request(all);
    program("/v1/classify", body);
    answer = (await (await ask("/v1/classify", body, signal)).json()).data;
    put(empty(found), ...answer.map((one, i) => bars(all.length > 1 ? all[i] : "", Object.entries(one.scores).sort((a, b) => b[1] - a[1]))));
    found.prepend(put(make("div", { class: "head answer" }), create("b", {}, () => t("Classes")), copy()));
    note(texts(answer.length, Math.round(performance.now() - begun)));
  }, () => empty(found));
  const result = fileOpener(here, "classes.tsv", async (all, signal) => {
    const { data } = await (await ask("/v1/classify", request(all), signal)).json();
    return data.map((one) => `${one.label}\t${one.score}`);
  });
  put(here.sheet, input.box, exampleRow(model.examples.map(paired), input.set, here, (one) => one.replace("\t", " | ")), found, result, here.actions);
  return here.root;
}];

TOOLS.tag = [() => t("Find"), () => {
  const input = field(() => t("Texts"), () => t("One text per line …"), { byLine: true }), found = make("div", { class: "spans" });
  const request = (all) => ({ model: model.id, input: all });
  const nothing = () => put(make("div", { class: "bar" }), create("span", {}, () => t("nothing found")));
  const spell = (spans) => spans.map((span) => `${span.text} = ${span.label}`);
  let answer = null;
  const copy = () => copyButton(() => t("the spans"), () => answer.map((one) => spell(one.spans).join("\t")).join("\n"));
  const here = tool(() => t("Find"), async ({ signal, note }) => {
    const all = lines(input.input.value), begun = performance.now();
    if (!all.length) { input.input.focus(); return; }
    program("/v1/tag", request(all));
    answer = (await (await ask("/v1/tag", request(all), signal)).json()).data;
    put(empty(found), ...answer.map((one, i) => bars(all[i], spell(one.spans).map((name, j) => [name, one.spans[j].score]))));
    answer.forEach((one, i) => one.spans.length || found.children[i].append(nothing()));
    found.prepend(put(make("div", { class: "head answer" }), create("b", {}, () => t("Spans")), copy()));
    note(texts(answer.length, Math.round(performance.now() - begun)));
  }, () => empty(found));
  const result = fileOpener(here, "spans.jsonl", async (all, signal) => {
    const { data } = await (await ask("/v1/tag", request(all), signal)).json();
    return data.map((one, i) => JSON.stringify({ text: all[i], spans: one.spans }));
  });
  put(here.sheet, input.box, exampleRow(model.examples, input.set, here), found, result, here.actions);
  return here.root;
}];

TOOLS.answer = [() => t("Answer"), () => {
  const question = field(() => t("Question"), () => t("Question about the text …"));
  const context = field(() => t("Context"), () => t("Text with the answer …")), found = make("div", { class: "spans" });
  const here = tool(() => t("Answer"), async ({ signal, note }) => {
    const begun = performance.now(), body = { model: model.id, question: question.input.value, context: context.input.value };
    if (isBlank(body.question)) { question.input.focus(); return; }
    program("/v1/answer", body);
    const one = await (await ask("/v1/answer", body, signal)).json();
    put(empty(found), bars("", [[one.answer || t("no answer in this text"), one.score]]));
    note(texts(1, Math.round(performance.now() - begun)));
  }, () => empty(found));
  const choose = ([one, text]) => { question.set(one); context.set(text); };
  put(here.sheet, question.box, context.box, exampleRow(model.examples.filter(Array.isArray), choose, here, ([one]) => one), found, here.actions);
  return here.root;
}];

TOOLS.rank = [() => t("Rank"), () => {
  const question = field(() => t("Question"), () => t("Search text …"));
  const input = field(() => t("Texts"), () => t("One text per line, ranked by how well it answers …"), { byLine: true });
  const found = make("div", { class: "answer" }), request = (all) => ({ model: model.id, input: all.map((text) => [question.input.value, text]) });
  const isAsked = () => { if (isBlank(question.input.value)) { question.input.focus(); throw new Error(t("Write a question first.")); } };
  let ranked = [];
  const copy = () => copyButton(() => t("the texts in order"), () => ranked.map(([text, score]) => `${score}\t${text}`).join("\n"));
  const here = tool(() => t("Rank"), async ({ signal, note }) => {
    const all = lines(input.input.value), begun = performance.now();
    isAsked();
    if (!all.length) { input.input.focus(); return; }
    const body = request(all);
    program("/v1/classify", body);
    const { data } = await (await ask("/v1/classify", body, signal)).json();
    ranked = data.map((one, i) => [all[i], one.score]).sort((a, b) => b[1] - a[1]);
    put(empty(found), put(make("div", { class: "head" }), create("b", {}, () => t("The best answer first")), copy()), ...ranked.map(([text, score]) => row(text, score.toFixed(6), () => t("how well it answers"))));
    note(texts(data.length, Math.round(performance.now() - begun)));
  }, () => empty(found));
  const result = fileOpener(here, "scores.tsv", async (all, signal) => {
    isAsked();
    const { data } = await (await ask("/v1/classify", request(all), signal)).json();
    return data.map((one, i) => `${one.score}\t${all[i]}`);
  });
  const choose = ([asked]) => { question.set(asked); input.set([...new Set(model.examples.map(([, text]) => text))].join("\n")); };
  put(here.sheet, question.box, input.box, exampleRow(model.examples, choose, here, ([asked]) => asked), found, result, here.actions);
  return here.root;
}];

TOOLS["fill-mask"] = [() => t("Fill in"), () => {
  const input = field(() => t("Text with masks"), "The cat sat on the <mask> ."), found = make("div");
  const request = (text, most) => ({ model: model.id, input: text, top_k: most });
  const hole = create("button", { class: "button", type: "button" }, () => t("Insert <mask>"));
  hole.addEventListener("click", () => {
    input.input.setRangeText("<mask>", input.input.selectionStart, input.input.selectionEnd, "end");
    input.set(input.input.value);
    input.input.focus();
  });
  let best = "";
  const copy = () => copyButton(() => t("the most likely text"), () => best);
  const here = tool(() => t("Fill in"), async ({ signal, note }) => {
    if (isBlank(input.input.value)) { input.input.focus(); return; }
    const body = request(input.input.value, 8), begun = performance.now();
    program("/v1/fill-mask", body);
    const [{ masks }] = (await (await ask("/v1/fill-mask", body, signal)).json()).data;
    best = fillIn(input.input.value, masks);
    put(empty(found), put(make("div", { class: "head answer" }), create("b", {}, () => t("Most likely words")), copy()), ...masks.map((fills) => bars("", fills.map((f) => [bare(f.token_str), f.score, f.sequence]))));
    if (masks.length > 1) [...found.querySelectorAll(".bars")].forEach((box, i) => box.prepend(create("h3", {}, () => t("Mask {n}", { n: i + 1 }))));
    const ms = Math.round(performance.now() - begun);
    note(() => t("{ms} ms", { ms }));
  }, () => empty(found));
  here.addButton(hole);
  const result = fileOpener(here, "filled.txt", async (all, signal) => {
    const { data } = await (await ask("/v1/fill-mask", request(all, 1), signal)).json();
    return data.map((one, i) => fillIn(all[i], one.masks));
  });
  put(here.sheet, input.box, exampleRow(model.examples.map(paired).map(hideWord), input.set, here), found, result, here.actions);
  return here.root;
}];

/* The text with the likeliest token in place of each mask. */
function fillIn(text, masks) {
  let next = 0;
  return text.replace(/<mask>|\[MASK\]/g, () => bare(masks[next++][0].token_str));
}

TOOLS.embeddings = [() => t("Compare"), () => {
  const names = Object.keys(model.prompts);
  const before = settings(names.length ? [{ name: "prompt", title: () => t("Before each text"), value: "", options: [["", () => model.prompt || t("nothing")], ...names.filter((one) => one !== model.prompt).map((one) => [one, one])] }] : []);
  const input = field(() => t("Texts"), () => t("One text per line, compared by similarity …"), { byLine: true });
  const found = create("div", { class: "scroll answer", hidden: "", tabindex: "0", role: "region", "aria-label": () => t("Similarity of the texts") });
  const request = (all) => ({ model: model.id, input: all, ...(names.length && before.value("prompt") && { prompt: before.value("prompt") }) });
  let alike = [];
  const copy = () => copyButton(() => t("the table"), () => alike.map((line) => line.join("\t")).join("\n"));
  const here = tool(() => t("Compare"), async ({ signal, note }) => {
    const all = lines(input.input.value), begun = performance.now();
    if (!all.length) { input.input.focus(); return; }
    const body = request(all);
    program("/v1/embeddings", body);
    const vectors = (await (await ask("/v1/embeddings", body, signal)).json()).data.map((one) => one.embedding);
    alike = cosines(vectors);
    put(empty(found), put(make("div", { class: "head" }), create("b", {}, () => t("Similarity of the texts")), copy()), alikeTable(all, alike));
    found.hidden = false;
    const ms = Math.round(performance.now() - begun);
    note(() => t("cosine similarities, {n} dimensions, {ms} ms", { n: grouped(vectors[0].length), ms }));
  }, () => { found.hidden = true; });
  const result = fileOpener(here, "vectors.tsv", async (all, signal) => {
    const { data } = await (await ask("/v1/embeddings", request(all), signal)).json();
    return data.map((one) => one.embedding.join("\t"));
  });
  const plain = model.examples.map((one) => paired(one).replace("\t", " "));
  put(here.sheet, input.box, exampleRow(plain.length ? [plain] : [], (all) => input.set(all.join("\n")), here, (all) => t("{n} texts", { n: all.length })), found, result, here.actions);
  if (names.length) here.sheet.prepend(before.box);
  return here.root;
}];

function cosines(vectors) {
  const dot = (a, b) => a.reduce((sum, v, i) => sum + v * b[i], 0), sizes = vectors.map((v) => Math.sqrt(dot(v, v)) || 1);
  return vectors.map((a, i) => vectors.map((b, j) => dot(a, b) / sizes[i] / sizes[j]));
}

function alikeTable(all, alike) {
  const rest = alike.flatMap((line, i) => line.filter((_, j) => i !== j)), low = rest.reduce((a, b) => Math.min(a, b), 1), high = rest.reduce((a, b) => Math.max(a, b), low + 1e-6);
  const digits = high - low < 0.1 ? 3 : 2, grid = make("table", { class: "alike" }), head = make("tr"), body = make("tbody");
  put(head, make("td"), ...all.map((_, i) => make("th", { scope: "col" }, `${i + 1}`)));
  alike.forEach((values, i) => {
    const line = put(make("tr"), put(make("th", { scope: "row", title: all[i] }), make("b", {}, `${i + 1}`), all[i]));
    values.forEach((value, j) => {
      const cell = make("td", {}, i === j ? "" : value.toFixed(digits));
      if (i !== j) cell.style.background = `color-mix(in srgb, var(--accent) ${Math.round(6 + 34 * (value - low) / (high - low))}%, transparent)`;
      line.append(cell);
    });
    body.append(line);
  });
  return put(grid, put(make("thead"), head), body);
}
