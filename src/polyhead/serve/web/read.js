
/* ---- models that read: classes, ranks, hidden words, vectors ---- */
const paired = (example) => Array.isArray(example) ? example.join("\t") : example;
const texts = (n, ms) => () => n > 1 ? t("{n} texts in {ms} ms", { n, ms }) : t("1 text in {ms} ms", { ms });

/* A tool that reads the texts in the lines of a field. `show` returns what is copied of the answer and the elements that show it,
   `spell` the lines of the file of results, `tell` the note; `check` throws where something else is missing. */
function lineTool(title, path, { input, above = [], buttons = [], examples, found, head, copied, request, show, file, spell, fileRequest = request,
  check = () => {}, clear = () => empty(found), tell = (data, ms) => texts(data.length, ms) }) {
  const send = async (body, signal) => (await askJson(path, body, signal)).data;
  const here = tool(title, async ({ signal, note }) => {
    const all = lines(input.input.value), begun = performance.now();
    check();
    if (!all.length) { input.input.focus(); return; }
    const body = request(all);
    program(path, body);
    const data = await send(body, signal), [text, ...parts] = show(data, all);
    const line = make("div", { class: found.matches(".answer") ? "head" : "head answer" });
    put(empty(found), put(line, create("b", {}, head), copyButton(copied, () => text)), ...parts);
    note(tell(data, Math.round(performance.now() - begun)));
  }, clear);
  buttons.forEach(here.addButton);
  const result = fileOpener(here, file, async (all, signal) => {
    check();
    return spell(await send(fileRequest(all), signal), all);
  });
  const [list, choose, name] = examples;
  put(here.sheet, ...above, input.box, exampleRow(list, choose, here, name), found, result, here.actions);
  return here.root;
}

TOOLS.classify = [() => t("Classify"), () => {
  const pairs = model.nsp_head, spell = (data) => data.map((one) => `${one.label}\t${one.score}`);
  const input = field(() => pairs ? t("Pairs of texts") : t("Texts"), () => pairs ? t("One pair per line, separated by a tab …") : t("One text per line; a tab separates the two texts of a pair …"), { byLine: true });
  return lineTool(TOOLS.classify[0], "/v1/classify", {
    input, found: make("div"), head: () => t("Classes"), copied: () => t("the classes"), file: "classes.tsv", spell,
    examples: [model.examples.map(paired), input.set, (one) => one.replace("\t", " | ")],
    request: (all) => ({ model: model.id, input: all.some((line) => line.includes("\t")) ? all.map((line) => line.split("\t")) : all }),
    show: (data, all) => [spell(data).join("\n"), ...data.map((one, i) => bars(all.length > 1 ? all[i] : "", Object.entries(one.scores).sort((a, b) => b[1] - a[1])))],
  });
}];

TOOLS.tag = [() => t("Find"), () => {
  const input = field(() => t("Texts"), () => t("One text per line …"), { byLine: true });
  const name = (span) => `${span.text} = ${span.label}`;
  const showSpans = (text, spans) => {
    const box = bars(text, spans.map((span) => [name(span), span.score]));
    if (!spans.length) box.append(put(make("div", { class: "bar" }), create("span", {}, () => t("nothing found"))));
    return box;
  };
  return lineTool(TOOLS.tag[0], "/v1/tag", {
    input, found: make("div", { class: "spans" }), head: () => t("Spans"), copied: () => t("the spans"), file: "spans.jsonl",
    examples: [model.examples, input.set],
    request: (all) => ({ model: model.id, input: all }),
    show: (data, all) => [data.map((one) => one.spans.map(name).join("\t")).join("\n"), ...data.map((one, i) => showSpans(all[i], one.spans))],
    spell: (data, all) => data.map((one, i) => JSON.stringify({ text: all[i], spans: one.spans })),
  });
}];

/* What is around an answer in its context; the service counts characters, of which some have two units here. */
function markAnswer({ answer, start, end }, context) {
  const characters = [...context], first = Math.max(0, start - 300), last = end + 300, part = (from, to) => characters.slice(from, to).join("");
  return put(make("p", { class: "text" }), first ? "…" : "", part(first, start), make("mark", {}, answer), part(end, last), last < characters.length ? "…" : "");
}

TOOLS.answer = [() => t("Answer"), () => {
  const question = field(() => t("Question"), () => t("Question about the text …"));
  const context = field(() => t("Context"), () => t("Text with the answer …")), found = make("div", { class: "spans" });
  const here = tool(TOOLS.answer[0], async ({ signal, note }) => {
    const begun = performance.now(), body = { model: model.id, question: question.input.value, context: context.input.value };
    if (isBlank(body.question)) { question.input.focus(); return; }
    program("/v1/answer", body);
    const one = await askJson("/v1/answer", body, signal);
    put(empty(found), bars("", [[one.answer || t("no answer in this text"), one.score]]), ...(one.answer ? [markAnswer(one, body.context)] : []));
    note(texts(1, Math.round(performance.now() - begun)));
  }, () => empty(found));
  const choose = ([one, text]) => { question.set(one); context.set(text); };
  put(here.sheet, question.box, context.box, exampleRow(model.examples.filter(Array.isArray), choose, here, ([one]) => one), found, here.actions);
  return here.root;
}];

TOOLS.rank = [() => t("Rank"), () => {
  const question = field(() => t("Question"), () => t("Search text …"));
  const input = field(() => t("Texts"), () => t("One text per line, ranked by how well it answers …"), { byLine: true });
  const choose = ([asked]) => { question.set(asked); input.set([...new Set(model.examples.map(([, text]) => text))].join("\n")); };
  return lineTool(TOOLS.rank[0], "/v1/classify", {
    input, above: [question.box], found: make("div", { class: "answer" }), head: () => t("The best answer first"), copied: () => t("the texts in order"), file: "scores.tsv",
    examples: [model.examples, choose, ([asked]) => asked],
    check: () => { if (isBlank(question.input.value)) { question.input.focus(); throw new Error(t("Write a question first.")); } },
    request: (all) => ({ model: model.id, input: all.map((text) => [question.input.value, text]) }),
    show: (data, all) => {
      const ranked = data.map((one, i) => [all[i], one.score]).sort((a, b) => b[1] - a[1]);
      return [ranked.map(([text, score]) => `${score}\t${text}`).join("\n"), ...ranked.map(([text, score]) => row(text, score.toFixed(6), () => t("how well it answers")))];
    },
    spell: (data, all) => data.map((one, i) => `${one.score}\t${all[i]}`),
  });
}];

TOOLS["fill-mask"] = [() => t("Fill in"), () => {
  const input = field(() => t("Text with masks"), "The cat sat on the <mask> .");
  const hole = create("button", { class: "button", type: "button" }, () => t("Insert <mask>"));
  hole.addEventListener("click", () => {
    input.input.setRangeText("<mask>", input.input.selectionStart, input.input.selectionEnd, "end");
    input.set(input.input.value);
    input.input.focus();
  });
  const showMask = (fills, i, masks) => {
    const box = bars("", fills.map((f) => [bare(f.token_str), f.score, f.sequence]));
    if (masks.length > 1) box.prepend(create("h3", {}, () => t("Mask {n}", { n: i + 1 })));
    return box;
  };
  return lineTool(TOOLS["fill-mask"][0], "/v1/fill-mask", {
    input, buttons: [hole], found: make("div"), head: () => t("Most likely words"), copied: () => t("the most likely text"), file: "filled.txt",
    examples: [model.examples.map(paired).map(hideWord), input.set],
    request: () => ({ model: model.id, input: input.input.value, top_k: 8 }), // one text, of all lines
    fileRequest: (all) => ({ model: model.id, input: all, top_k: 1 }),
    show: ([{ masks }]) => [fillIn(input.input.value, masks), ...masks.map(showMask)],
    spell: (data, all) => data.map((one, i) => fillIn(all[i], one.masks)),
    tell: (_, ms) => () => t("{ms} ms", { ms }),
  });
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
  const plain = model.examples.map((one) => paired(one).replace("\t", " "));
  return lineTool(TOOLS.embeddings[0], "/v1/embeddings", {
    input, above: names.length ? [before.box] : [], found, head: () => t("Similarity of the texts"), copied: () => t("the table"), file: "vectors.tsv",
    examples: [plain.length ? [plain] : [], (all) => input.set(all.join("\n")), (all) => t("{n} texts", { n: all.length })],
    request: (all) => ({ model: model.id, input: all, ...(names.length && before.value("prompt") && { prompt: before.value("prompt") }) }),
    show: (data, all) => {
      const alike = cosines(data.map((one) => one.embedding));
      found.hidden = false;
      return [alike.map((line) => line.join("\t")).join("\n"), alikeTable(all, alike)];
    },
    spell: (data) => data.map((one) => one.embedding.join("\t")),
    clear: () => { found.hidden = true; },
    tell: ([{ embedding }], ms) => () => t("cosine similarities, {n} dimensions, {ms} ms", { n: grouped(embedding.length), ms }),
  });
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
