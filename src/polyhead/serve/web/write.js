
/* ---- language models: what a text goes on with, and conversations ---- */
const likeliest = orWord("0", () => t("greedy decoding")), everything = orWord("1", () => t("all")), noneAt = (number) => orWord(number, () => t("none"));
const sampling = (own, most) => [
  // a slider stands at its end where the usual length is more
  { name: "max_tokens", title: () => t("Maximum answer length in tokens"), min: 1, max: Math.max(1, Math.min(1000, most, model.limits.max_tokens)), value: own.max_new_tokens },
  { name: "temperature", title: () => t("Temperature"), min: 0, max: 2, step: 0.01, value: own.temperature, shown: likeliest },
  { name: "top_p", title: () => t("Top p"), min: 0.01, max: 1, step: 0.01, value: own.top_p, shown: everything },
];
const STREAMED = { truncate: true, stream: true, stream_options: { include_usage: true } };

TOOLS["chat/completions"] = [() => t("Chat"), () => {
  const own = model.generation, talk = create("div", { class: "talk answer", role: "log", tabindex: "0", "aria-label": () => t("Conversation") });
  const knobs = settings([
    { name: "system", title: () => t("System prompt"), type: "text", value: "", placeholder: () => t("none") },
    ...sampling(own, model.max_len >> 1), // what is asked needs room as well
  ]);
  const message = field(() => t("Message"), () => t("Ask something …"));
  let messages = [];
  const show = (role, content) => {
    const text = make("p", { class: "text" }, content), head = put(make("div", { class: "head" }), create("b", {}, () => role === "user" ? t("You") : model.id));
    if (role === "assistant") head.append(copyButton(() => t("the answer"), () => text.textContent));
    talk.append(put(make("div", { class: `turn ${role}` }), head, text));
    return text;
  };
  const before = (text) => {
    const thoughts = make("p", { class: "text reasoning" }, "");
    text.before(thoughts);
    return thoughts;
  };
  const here = tool(() => t("Send"), async ({ signal, note }) => {
    const asked = { role: "user", content: message.input.value }, system = knobs.value("system");
    if (isBlank(asked.content)) { message.input.focus(); return; }
    const body = { model: model.id, messages: [...(system ? [{ role: "system", content: system }] : []), ...messages, asked] };
    for (const name of ["max_tokens", "temperature", "top_p"]) body[name] = knobs.value(name);
    program("/v1/chat/completions", body);
    const answer = await ask("/v1/chat/completions", { ...body, ...STREAMED }, signal), begun = performance.now();
    show("user", asked.content);
    message.set("");
    const text = show("assistant", "");
    text.classList.add("going");
    let usage = null, thoughts = null;
    try {
      for await (const event of events(answer)) {
        for (const { delta } of event.choices) {
          if (delta.reasoning) (thoughts ??= before(text)).append(delta.reasoning);
          text.append(delta.content ?? "");
        }
        text.scrollIntoView({ block: "nearest" });
        usage = event.usage ?? usage;
      }
    } finally {
      text.classList.remove("going");
      messages = [...messages, asked, { role: "assistant", content: text.textContent }];
      message.input.focus();
    }
    const ms = Math.round(performance.now() - begun);
    note(() => t("{n} tokens in {ms} ms, after {read}", { n: grouped(usage.completion_tokens), ms: grouped(ms), read: grouped(usage.prompt_tokens) }));
  });
  const anew = create("button", { class: "button", type: "button" }, () => t("New conversation"));
  anew.addEventListener("click", () => { messages = []; empty(talk); message.input.focus(); });
  here.addButton(anew);
  put(here.sheet, talk, message.box, exampleRow(model.examples, message.set, here), here.actions);
  here.root.append(more(() => t("Settings"), knobs.box));
  return here.root;
}];

TOOLS.completions = [() => t("Continue"), () => {
  const own = model.generation, output = create("p", { class: "text", role: "log", "aria-label": () => t("Continuation") });
  const penalties = ["frequency_penalty", "presence_penalty"], titles = { frequency_penalty: () => t("Frequency penalty"), presence_penalty: () => t("Presence penalty") };
  const knobs = settings([
    ...sampling(own, 1000),
    { name: "top_k", title: () => t("Top k"), min: 0, max: 100, value: Math.min(own.top_k, 100), shown: orWord("0", () => t("all")) },
    { name: "repetition_penalty", title: () => t("Repetition penalty"), min: 1, max: 2, step: 0.01, value: own.repetition_penalty, shown: noneAt("1") },
    ...penalties.map((name) => ({ name, title: titles[name], min: -2, max: 2, step: 0.01, value: own[name], shown: noneAt("0") })),
    { name: "seed", title: () => t("Seed"), type: "number", min: 0, value: "", placeholder: () => t("random") },
    { name: "stop", title: () => t("Stop at"), type: "text", value: "", placeholder: () => t("a text") },
  ]);
  const prompt = field(() => t("Text to continue"), () => t("Write the beginning …"));
  const request = (text) => {
    const body = { model: model.id, prompt: text };
    for (const name of ["max_tokens", "temperature", "top_p", "top_k", "repetition_penalty", ...penalties]) body[name] = knobs.value(name);
    if (knobs.value("seed") !== null) body.seed = knobs.value("seed");
    if (knobs.value("stop")) body.stop = knobs.value("stop");
    return body;
  };
  const here = tool(() => t("Continue"), async ({ signal, note }) => {
    const body = request(prompt.input.value), fresh = make("span", { class: "new" }), begun = performance.now();
    program("/v1/completions", { ...body, truncate: true });
    put(empty(output), make("span", { class: "prompt" }, prompt.input.value), fresh);
    answer.hidden = false;
    output.classList.add("going");
    let first = null, reason = "", usage = null;
    try {
      for await (const event of events(await ask("/v1/completions", { ...body, ...STREAMED }, signal))) {
        first ??= performance.now();
        for (const one of event.choices) { fresh.append(one.text); reason = one.finish_reason ?? reason; }
        usage = event.usage ?? usage;
      }
    } finally { output.classList.remove("going"); further.disabled = false; }
    const tokens = usage.completion_tokens, rate = tokens / ((performance.now() - begun) / 1000); // all may come in one event
    const values = { n: grouped(tokens), rate: rate < 10 ? rate.toFixed(1) : Math.round(rate), ms: Math.round(first - begun) };
    note(() => t("{n} tokens, {rate}/s, the first after {ms} ms; {end}", { ...values, end: reason === "length" ? t("as long as allowed") : t("finished") }));
  }, () => { answer.hidden = !output.querySelector(".new")?.textContent; });
  const further = create("button", { class: "button", type: "button", disabled: "" }, () => t("Use it as input"));
  further.addEventListener("click", () => { prompt.set(output.textContent); further.disabled = true; here.run(); });
  here.addButton(further);
  const result = fileOpener(here, "continuations.txt", async (texts, signal) => {
    const { choices } = await askJson("/v1/completions", { ...request(texts), truncate: true }, signal);
    return choices.map((one) => oneLine(one.text));
  });
  const head = put(make("div", { class: "head" }), create("b", {}, () => t("Continuation")), copyButton(() => t("the text"), () => output.textContent));
  const answer = put(make("div", { class: "answer", hidden: "" }), head, output);
  put(here.sheet, prompt.box, exampleRow([...new Set(model.examples.map(beginning))], prompt.set, here), answer, result, here.actions);
  here.root.append(more(() => t("Settings"), knobs.box));
  return here.root;
}];
