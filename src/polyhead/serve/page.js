
/* ---- the service ---- */
let key = ""; // kept here alone, until the page is closed
let model = null;
const put = (parent, ...children) => { parent.append(...children); return parent; };
const empty = (element) => { element.replaceChildren(); return element; };

async function ask(path, body, signal) {
  const headers = { ...(key && { Authorization: `Bearer ${key}` }), ...(body && { "Content-Type": "application/json" }) };
  let answer;
  try {
    answer = await fetch(path, { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body), signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The service does not answer.");
  }
  if (answer.ok) return answer;
  const told = await answer.json().catch(() => null);
  const mistake = new Error(told?.error?.message ?? `The service answered ${answer.status}.`);
  mistake.status = answer.status;
  throw mistake;
}

/* The events of a stream; one that carries an error is thrown. */
async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("The answer broke off.");
    held += value;
    const parts = held.split("\n\n");
    held = parts.pop();
    for (const part of parts) {
      if (!part.startsWith("data: ")) continue;
      if (part === "data: [DONE]") return;
      const event = JSON.parse(part.slice(6));
      if (event.error) throw new Error(event.error.message);
      yield event;
    }
  }
}

/* ---- what all tools are made of ---- */
let serial = 0;
function field(name, placeholder) {
  const id = `field${++serial}`;
  return [make("label", { for: id }, name), make("textarea", { id, placeholder, spellcheck: "false", rows: 3 })];
}

function settings(list) {
  const box = make("div", { class: "settings" }), inputs = {};
  for (const { name, title, value, shown = (v) => v, options, ...rest } of list) {
    const label = make("label", {}, title), told = make("output");
    const input = options ? put(make("select"), ...options.map((one) => new Option(one || value, one))) : make("input", { type: "range", ...rest, value });
    const tell = () => { told.textContent = input.type === "range" ? shown(input.value) : ""; };
    input.addEventListener("input", tell);
    tell();
    box.append(put(label, told, input));
    inputs[name] = input;
  }
  const value = (name) => ["text", "select-one"].includes(inputs[name].type) ? inputs[name].value : inputs[name].value === "" ? null : Number(inputs[name].value);
  return { box, value };
}

/* A tool: its sheet, a main button that Ctrl+Enter presses too, a button that stops, a note, and a line for mistakes. */
function tool(action, work) {
  const root = make("section"), sheet = make("div", { class: "sheet" }), actions = make("div", { class: "actions" });
  const go = make("button", { class: "button main", type: "button" }, action), stop = make("button", { class: "button", type: "button" }, "Stop");
  const note = make("span", { class: "note", role: "status" }), mistake = make("p", { class: "mistake", role: "alert" });
  let control = null;
  go.append(make("kbd", {}, navigator.platform.startsWith("Mac") ? "⌘⏎" : "Ctrl ⏎"));
  stop.disabled = true;
  async function run() {
    if (control) return;
    control = new AbortController();
    const held = document.activeElement === go; // who came by the keyboard stays where something can be pressed
    go.disabled = true; stop.disabled = false; if (held) stop.focus();
    mistake.textContent = ""; note.textContent = "";
    try { await work({ signal: control.signal, note }); } catch (error) {
      if (error.name !== "AbortError") mistake.textContent = error.message;
      else note.textContent = "stopped";
    }
    control = null;
    const back = document.activeElement === stop;
    go.disabled = false; if (back) go.focus();
    stop.disabled = true;
  }
  go.addEventListener("click", run);
  stop.addEventListener("click", () => control?.abort());
  root.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); run(); }
  });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") control?.abort(); });
  put(root, sheet, mistake);
  put(actions, go, stop, note);
  return { root, sheet, actions, run };
}

function more(summary, ...children) {
  return put(make("details"), make("summary", {}, summary), ...children);
}

const lines = (text) => text.split("\n").filter((line) => line.trim());
const bare = (token) => token.replace(/^␣(?=.)/u, ""); // without the blank before a word
const percent = (p) => `${(100 * p).toFixed(p < 0.1 ? 2 : 1)} %`;

function bars(title, rows) {
  const box = make("div", { class: "bars" });
  if (title) box.append(make("h3", {}, title));
  for (const [name, p, about] of rows) {
    const bar = make("div", { class: "bar", title: about ?? name }), full = make("b");
    full.style.width = `${100 * p}%`;
    box.append(put(bar, make("span", {}, name), put(make("i"), full), make("output", {}, percent(p))));
  }
  return box;
}

function row(text, figure, title) {
  return put(make("div", { class: "row" }), make("span", {}, text), make("span", { class: "figure", title }, figure));
}

/* The request as a program would send it. */
function program(path, body) {
  const quoted = JSON.stringify(body, null, 1).replaceAll("'", "'\\''");
  const secret = key ? " -H 'Authorization: Bearer $KEY'" : "";
  document.querySelector(".program pre").textContent = `curl ${location.origin}${path} -H 'Content-Type: application/json'${secret} -d '${quoted}'`;
  document.querySelector(".program").hidden = false;
}

/* ---- the tools ---- */
const TOOLS = {
  "chat/completions": ["Converse", () => {
    const own = model.generation, talk = make("div", { class: "talk answer", role: "log", "aria-label": "conversation" });
    const knobs = settings([
      { name: "system", title: "The system says", type: "text", value: "", placeholder: "nothing" },
      // what is asked needs room as well, and a slider stands at its end where the usual length is more
      { name: "max_tokens", title: "Longest answer, in tokens", min: 1, max: Math.max(1, Math.min(1000, model.max_len >> 1)), value: own.max_new_tokens },
      { name: "temperature", title: "Temperature", min: 0, max: 2, step: 0.01, value: own.temperature, shown: (v) => v === "0" ? "the likeliest" : v },
      { name: "top_p", title: "Top p", min: 0.01, max: 1, step: 0.01, value: own.top_p, shown: (v) => v === "1" ? "all" : v },
    ]);
    const [label, input] = field("Message", "Ask something …");
    let messages = [];
    const show = (role, content) => {
      const said = make("p", { class: "text" }, content);
      talk.append(put(make("div", { class: `turn ${role}` }), make("b", {}, role === "user" ? "You" : model.id), said));
      return said;
    };
    const here = tool("Send", async ({ signal, note }) => {
      if (!input.value.trim()) { input.focus(); return; }
      const asked = { role: "user", content: input.value }, system = knobs.value("system");
      const body = { model: model.id, messages: [...(system ? [{ role: "system", content: system }] : []), ...messages, asked], truncate: true, stream: true, stream_options: { include_usage: true } };
      for (const name of ["max_tokens", "temperature", "top_p"]) body[name] = knobs.value(name);
      program("/v1/chat/completions", { ...body, stream: false, stream_options: undefined });
      const answer = await ask("/v1/chat/completions", body, signal), begun = performance.now();
      show("user", asked.content);
      input.value = "";
      const said = show("assistant", "");
      said.classList.add("going");
      let usage = null;
      try {
        for await (const event of events(answer)) {
          for (const choice of event.choices) said.append(choice.delta.content ?? "");
          said.scrollIntoView({ block: "nearest" });
          usage = event.usage ?? usage;
        }
      } finally {
        said.classList.remove("going");
        messages = [...messages, asked, { role: "assistant", content: said.textContent }];
        input.focus();
      }
      note.textContent = `${usage.completion_tokens} tokens in ${Math.round(performance.now() - begun)} ms, after ${usage.prompt_tokens}`;
    });
    const anew = make("button", { class: "button", type: "button" }, "Begin anew");
    anew.addEventListener("click", () => { messages = []; empty(talk); input.focus(); });
    here.actions.insertBefore(anew, here.actions.lastChild);
    put(here.sheet, talk, label, input, here.actions);
    here.root.append(more("Settings", knobs.box));
    return here.root;
  }],

  completions: ["Continue", () => {
    const own = model.generation, said = make("p", { class: "text", role: "log", "aria-label": "continuation" });
    const knobs = settings([
      { name: "max_tokens", title: "Longest, in tokens", min: 1, max: 1000, value: own.max_new_tokens },
      { name: "temperature", title: "Temperature", min: 0, max: 2, step: 0.01, value: own.temperature, shown: (v) => v === "0" ? "the likeliest" : v },
      { name: "top_p", title: "Top p", min: 0.01, max: 1, step: 0.01, value: own.top_p, shown: (v) => v === "1" ? "all" : v },
      { name: "top_k", title: "Top k", min: 0, max: 100, value: Math.min(own.top_k, 100), shown: (v) => v === "0" ? "all" : v },
      { name: "repetition_penalty", title: "Against repeating", min: 1, max: 2, step: 0.01, value: own.repetition_penalty, shown: (v) => v === "1" ? "none" : v },
      { name: "frequency_penalty", title: "Frequency penalty", min: -2, max: 2, step: 0.01, value: own.frequency_penalty, shown: (v) => v === "0" ? "none" : v },
      { name: "presence_penalty", title: "Presence penalty", min: -2, max: 2, step: 0.01, value: own.presence_penalty, shown: (v) => v === "0" ? "none" : v },
      { name: "seed", title: "Seed", type: "number", min: 0, value: "", placeholder: "by chance" },
      { name: "stop", title: "Stop at", type: "text", value: "", placeholder: "a text" },
    ]);
    const [label, input] = field("Text", "Write how it begins …");
    const here = tool("Continue", async ({ signal, note }) => {
      const body = { model: model.id, prompt: input.value, truncate: true, stream: true, stream_options: { include_usage: true } };
      for (const name of ["max_tokens", "temperature", "top_p", "top_k", "repetition_penalty", "frequency_penalty", "presence_penalty"]) body[name] = knobs.value(name);
      if (knobs.value("seed") !== null) body.seed = knobs.value("seed");
      if (knobs.value("stop")) body.stop = knobs.value("stop");
      program("/v1/completions", { ...body, stream: false, stream_options: undefined });
      const fresh = make("span", { class: "new" }), begun = performance.now();
      put(empty(said), make("span", { class: "prompt" }, input.value), fresh);
      answer.hidden = false;
      said.classList.add("going");
      let first = null, reason = "", usage = null;
      try {
        for await (const event of events(await ask("/v1/completions", body, signal))) {
          first ??= performance.now();
          for (const choice of event.choices) { fresh.append(choice.text); reason = choice.finish_reason ?? reason; }
          usage = event.usage ?? usage;
        }
      } finally { said.classList.remove("going"); further.disabled = false; }
      const tokens = usage.completion_tokens, rate = tokens / ((performance.now() - begun) / 1000); // all may come in one event
      const ended = reason === "length" ? "as long as allowed" : "ended by itself";
      note.textContent = `${tokens} tokens, ${rate < 10 ? rate.toFixed(1) : Math.round(rate)} a second, the first after ${Math.round(first - begun)} ms; ${ended}`;
    });
    const further = make("button", { class: "button", type: "button", disabled: "" }, "Go on from there");
    further.addEventListener("click", () => { input.value = said.textContent; further.disabled = true; here.run(); });
    here.actions.insertBefore(further, here.actions.lastChild);
    const answer = put(make("div", { class: "answer", hidden: "" }), said);
    put(here.sheet, label, input, answer, here.actions);
    here.root.append(more("Settings", knobs.box));
    return here.root;
  }],

  translations: ["Translate", () => {
    const knobs = settings([
      { name: "beam_size", title: "Beams", min: 1, max: 16, value: model.generation.beam_size },
      { name: "length_penalty", title: "Length penalty", min: 0, max: 2, step: 0.01, value: model.generation.length_penalty },
      { name: "n", title: "Alternatives", min: 1, max: 8, value: 1 },
    ]);
    const sides = Object.entries(model.languages).filter(([, names]) => names.length > 1);
    const choice = settings(sides.map(([name, names]) => ({ name, title: name === "source" ? "From" : "To", value: "as the model is", options: ["", ...names] })));
    const [label, input] = field(model.source ? `Text (${model.source})` : "Text", "A sentence a line …");
    const said = make("p", { class: "text", role: "log" }), others = make("div", { class: "answer" }), looks = make("section", { hidden: "" });
    const here = tool("Translate", async ({ signal, note }) => {
      const texts = lines(input.value);
      if (!texts.length) { input.focus(); return; }
      const n = knobs.value("n"), begun = performance.now();
      const body = { model: model.id, input: texts, beam_size: Math.max(n, knobs.value("beam_size")), length_penalty: knobs.value("length_penalty"), n };
      for (const [name] of sides) if (choice.value(name)) body[name] = choice.value(name);
      program("/v1/translations", body);
      said.classList.add("going");
      let answer;
      try { answer = await (await ask("/v1/translations", { ...body, return_attention: model.attention && !body.source && !body.target && texts.join("").length <= 2000 }, signal)).json(); }
      finally { said.classList.remove("going"); }
      said.textContent = answer.data.map((one) => one.text).join("\n");
      empty(others);
      if (n > 1) for (const one of answer.data) for (const way of [one, ...one.alternatives])
        others.append(row(way.text, way.score?.toFixed(3) ?? "", "log-probability / length ^ penalty"));
      const maps = answer.data.filter((one) => one.attention).map(({ text, attention: { source, target, layers, weights } }) =>
        ({ kind: "cross-attention", title: text, source: source.map(bare), target: target.map(bare), layers, weights }));
      looks.hidden = !maps.length;
      if (maps.length) {
        const root = make("div", { class: "attention" });
        root.append(make("script", { type: "application/json" }, JSON.stringify(maps)));
        put(empty(looks), make("h2", {}, "Where it looked"), make("p", { class: "about" }, "Each row is a token as it was written; the stronger a cell, the more the decoder looked at the token above it."), root);
        attention(root);
      }
      note.textContent = `${answer.usage.completion_tokens} tokens in ${Math.round(performance.now() - begun)} ms`;
    });
    put(here.sheet, put(make("div", { class: "panes" }), put(make("div", { class: "pane" }), label, input),
      put(make("div", { class: "pane" }), make("b", {}, model.target ? `Translation (${model.target})` : "Translation"), said)), others, here.actions);
    if (sides.length) here.sheet.prepend(choice.box);
    put(here.root, more("Settings", knobs.box), looks);
    return here.root;
  }],

  classify: ["Classify", () => {
    const [label, input] = field("Texts", "A text a line; a tab parts the two texts of a pair …"), found = make("div");
    const here = tool("Classify", async ({ signal, note }) => {
      const texts = lines(input.value), paired = texts.some((line) => line.includes("\t")), begun = performance.now();
      if (!texts.length) { input.focus(); return; }
      const body = { model: model.id, input: paired ? texts.map((line) => line.split("\t")) : texts };
      program("/v1/classify", body);
      const answer = await (await ask("/v1/classify", body, signal)).json();
      put(empty(found), ...answer.data.map((one, i) => bars(texts.length > 1 ? texts[i] : "", Object.entries(one.scores).sort((a, b) => b[1] - a[1]))));
      note.textContent = `${answer.data.length} ${answer.data.length > 1 ? "texts" : "text"} in ${Math.round(performance.now() - begun)} ms`;
    });
    put(here.sheet, label, input, found, here.actions);
    return here.root;
  }],

  rank: ["Rank", () => {
    const [label, question] = field("Question", "What is looked for …"), [label2, input] = field("Texts", "A text a line: see which answer it best …");
    const found = make("div", { class: "answer" });
    const here = tool("Rank", async ({ signal, note }) => {
      const texts = lines(input.value), begun = performance.now();
      if (!question.value.trim() || !texts.length) { (question.value.trim() ? input : question).focus(); return; }
      const body = { model: model.id, input: texts.map((text) => [question.value, text]) };
      program("/v1/classify", body);
      const { data } = await (await ask("/v1/classify", body, signal)).json();
      const ranked = data.map((one, i) => [texts[i], one.score]).sort((a, b) => b[1] - a[1]);
      put(empty(found), ...ranked.map(([text, score]) => row(text, score.toFixed(6), "how well it answers")));
      note.textContent = `${data.length} ${data.length > 1 ? "texts" : "text"} in ${Math.round(performance.now() - begun)} ms`;
    });
    put(here.sheet, label, question, label2, input, found, here.actions);
    return here.root;
  }],

  "fill-mask": ["Fill in", () => {
    const [label, input] = field("Text with masks", "The cat sat on the <mask> ."), found = make("div");
    const hole = make("button", { class: "button", type: "button" }, "Insert <mask>");
    hole.addEventListener("click", () => { input.setRangeText("<mask>", input.selectionStart, input.selectionEnd, "end"); input.focus(); });
    const here = tool("Fill in", async ({ signal, note }) => {
      const body = { model: model.id, input: input.value, top_k: 8 }, begun = performance.now();
      program("/v1/fill-mask", body);
      const [{ masks }] = (await (await ask("/v1/fill-mask", body, signal)).json()).data;
      put(empty(found), ...masks.map((fills, i) => bars(masks.length > 1 ? `Mask ${i + 1}` : "", fills.map((f) => [bare(f.token_str), f.score, f.sequence]))));
      note.textContent = `${Math.round(performance.now() - begun)} ms`;
    });
    here.actions.insertBefore(hole, here.actions.lastChild);
    put(here.sheet, label, input, found, here.actions);
    return here.root;
  }],

  embeddings: ["Compare", () => {
    const names = Object.keys(model.prompts), before = settings(names.length ? [{ name: "prompt", title: "What stands before each", value: model.prompt || "nothing", options: ["", ...names.filter((one) => one !== model.prompt)] }] : []);
    const [label, input] = field("Texts", "A text a line: see which are alike …"), found = make("div", { class: "scroll answer", hidden: "" });
    const here = tool("Compare", async ({ signal, note }) => {
      const texts = lines(input.value), begun = performance.now();
      if (!texts.length) { input.focus(); return; }
      const body = { model: model.id, input: texts };
      if (names.length && before.value("prompt")) body.prompt = before.value("prompt");
      program("/v1/embeddings", body);
      const vectors = (await (await ask("/v1/embeddings", body, signal)).json()).data.map((one) => one.embedding);
      const dot = (a, b) => a.reduce((sum, v, i) => sum + v * b[i], 0), sizes = vectors.map((v) => Math.sqrt(dot(v, v)) || 1);
      const alike = vectors.map((a, i) => vectors.map((b, j) => dot(a, b) / sizes[i] / sizes[j]));
      const rest = alike.flatMap((row, i) => row.filter((_, j) => i !== j)), low = Math.min(...rest, 1), high = Math.max(...rest, low + 1e-6), digits = high - low < 0.1 ? 3 : 2;
      const grid = make("table", { class: "alike" }), head = make("tr");
      put(head, make("td"), ...texts.map((_, i) => make("th", { scope: "col" }, `${i + 1}`)));
      const body2 = make("tbody");
      alike.forEach((row, i) => {
        const line = put(make("tr"), put(make("th", { scope: "row", title: texts[i] }), make("b", {}, `${i + 1}`), texts[i]));
        row.forEach((value, j) => {
          const cell = make("td", {}, i === j ? "" : value.toFixed(digits));
          if (i !== j) cell.style.background = `color-mix(in srgb, var(--accent) ${Math.round(8 + 62 * (value - low) / (high - low))}%, transparent)`;
          line.append(cell);
        });
        body2.append(line);
      });
      put(empty(found), put(grid, put(make("thead"), head), body2));
      found.hidden = false;
      note.textContent = `cosines of vectors of ${vectors[0].length} numbers, ${Math.round(performance.now() - begun)} ms`;
    });
    put(here.sheet, label, input, found, here.actions);
    if (names.length) here.sheet.prepend(before.box);
    return here.root;
  }],
};

/* ---- the page ---- */
const KINDS = { decoder: "A language model", "encoder-decoder": "An encoder-decoder", encoder: "An encoder", classifier: "A classifier" };
const place = document.querySelector("#tools");

async function pulse() {
  const state = document.querySelector(".state");
  try { await ask("/health/ready"); state.textContent = "ready"; state.className = "state well"; } catch (error) {
    state.textContent = error.status === 401 ? "wants a key" : error.status ? "not ready" : "gone";
    state.className = "state ill";
    state.title = error.message;
  }
}

function show() {
  const ranks = model.labels.length === 1; // no class, but a number
  const about = [`${model.vocab_size.toLocaleString("en")} tokens in its vocabulary`, `reads ${model.max_len.toLocaleString("en")} at once`, model.dtype];
  document.title = `${model.id} · Polyhead`;
  document.querySelector("h1").textContent = model.id;
  document.querySelector(".lead").textContent = `${ranks ? "A reranker" : KINDS[model.kind]}${model.labels.length > 1 ? ` of ${model.labels.length} classes` : ""}: ${about.join(", ")}.`;
  const tasks = model.tasks.map((task) => (ranks && task === "classify" ? "rank" : task));
  const offered = Object.keys(TOOLS).filter((task) => tasks.includes(task) && !(task === "completions" && model.kind === "encoder-decoder"));
  const panels = offered.map((task) => TOOLS[task][1]()), tabs = make("div", { class: "tabs", role: "tablist" });
  const choose = (i, focus) => {
    panels.forEach((panel, j) => { panel.hidden = i !== j; });
    [...tabs.children].forEach((tab, j) => { tab.setAttribute("aria-selected", i === j); tab.tabIndex = i === j ? 0 : -1; });
    if (focus) tabs.children[i].focus();
  };
  offered.forEach((task, i) => {
    const tab = make("button", { class: "tab", role: "tab", type: "button", id: `tab${i}`, "aria-controls": `panel${i}` }, TOOLS[task][0]);
    Object.entries({ role: "tabpanel", id: `panel${i}`, "aria-labelledby": `tab${i}` }).forEach((pair) => panels[i].setAttribute(...pair));
    tab.addEventListener("click", () => choose(i));
    tab.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (step) choose((i + step + offered.length) % offered.length, true);
    });
    tabs.append(tab);
  });
  put(empty(place), ...(offered.length > 1 ? [tabs] : []), ...panels);
  choose(0);
  place.querySelector("textarea").focus();
}

async function enter() {
  try {
    const [found] = (await (await ask("/v1/models")).json()).data;
    model = { id: found.id, ...found.polyhead };
    show();
    document.querySelector("footer nav").hidden = Boolean(key); // a link cannot carry it
  } catch (error) {
    const wants = error.status === 401;
    document.querySelector("h1").textContent = wants ? "Behind a key" : "Not there";
    const door = make("section", { class: "door" }), form = make("form"), word = make("input", { type: "password", autocomplete: "off", "aria-label": "key", placeholder: "key" });
    put(form, word, make("button", { class: "button main" }, "Enter"));
    form.addEventListener("submit", (event) => { event.preventDefault(); key = word.value.trim(); enter(); pulse(); });
    put(empty(place), put(door, make("p", { class: key ? "mistake" : "about" }, wants ? (key ? "This is not one of its keys." : "This service asks for a key. It stays in this page.") : error.message), ...(wants ? [form] : [])));
    if (wants) word.focus();
  }
}
enter();
pulse();
setInterval(() => { if (model) pulse(); }, 5000);
