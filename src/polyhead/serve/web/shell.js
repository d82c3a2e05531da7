
/* ---- the page: what the model does, a tab for each tool, the key, the language ---- */
const KINDS = { decoder: () => t("language model"), "encoder-decoder": () => t("encoder-decoder"), encoder: () => t("encoder"), classifier: () => t("classifier"), "token classifier": () => t("token classifier"), "question answerer": () => t("question answerer") };
const ORDER = ["chat/completions", "completions", "translations", "classify", "tag", "answer", "rank", "fill-mask", "embeddings"];
const SHOWN_LABELS = 8;
const place = document.querySelector("#tools");
const isReranker = () => model.labels.length === 1; // no class, but a number

function describeLimit() {
  const { words, characters, tokens } = model.text_limit;
  if (readsWindows()) return t("texts of any length");
  return words ? t("up to about {n} words", { n: grouped(words) }) : characters ? t("up to about {n} characters", { n: grouped(characters) }) : t("up to {n} tokens", { n: grouped(tokens) });
}

function describe() {
  const limit = describeLimit();
  return model.kind === "decoder" ? t("{what}; context of {limit}", { what: describeTask(), limit }) : t("{what}; {limit}", { what: describeTask(), limit });
}

function describeTask() {
  const { kind, labels, languages, settled, tasks } = model;
  if (kind === "decoder") return tasks.includes("chat/completions") ? t("Answers in a conversation") : t("Continues a text");
  if (isReranker()) return t("Ranks texts by how well they answer a question");
  if (kind === "classifier") {
    const values = { n: labels.length, labels: labels.slice(0, SHOWN_LABELS).join(", ") + (labels.length > SHOWN_LABELS ? ", …" : "") };
    return model.nsp_head ? t("Sorts pairs of texts into {n} classes: {labels}", values) : t("Sorts texts into {n} classes: {labels}", values);
  }
  if (kind === "question answerer") return t("Answers a question with words of a text");
  if (kind === "token classifier") {
    const names = [...new Set(labels.map((tag) => tag.replace(/^.-/, "")))].filter((name) => name !== "O");
    return t("Finds in texts what these labels name: {labels}", { labels: names.slice(0, SHOWN_LABELS).join(", ") + (names.length > SHOWN_LABELS ? ", …" : "") });
  }
  if (kind === "encoder") return tasks.includes("fill-mask") ? t("Fills in masked words, and compares texts by their embeddings") : t("Compares texts by their embeddings");
  if (model.learned === "denoising") return t("Restores damaged text");
  const [source, target] = ["source", "target"].map((side) => model[side] || settled[side]);
  const [a, b] = [source, target].map((code) => code && languageName(code));
  if (languages.source.length === 2 && source && target) return t("Translates between {a} and {b}", { a, b });
  if (languages.source.length > 1) return t("Translates between {n} languages", { n: languages.source.length });
  if (languages.target.length > 1) return t("Translates into {n} languages", { n: languages.target.length });
  if (source && target && source !== target) return t("Translates {source} to {target}", { source: a, target: b });
  return t("Turns one text into another");
}

function listFacts() {
  const learned = model.learned && model.text_limit.tokens < model.max_len - 4;
  return [
    KINDS[model.kind](), t("{n} tokens in the vocabulary", { n: grouped(model.vocab_size) }), t("context of {n} tokens", { n: grouped(model.max_len) }),
    ...(learned ? [t("trained on texts of up to {n} tokens", { n: grouped(model.text_limit.tokens) })] : []), model.dtype,
  ].join(" · ");
}

async function pulse() {
  const state = document.querySelector(".state");
  let text = () => t("ready"), look = "well", title = "";
  try { await ask("/health/ready"); } catch (error) {
    text = () => error.status === 401 ? t("key required") : error.status ? t("not ready") : t("no reply");
    [look, title] = ["ill", error.message];
  }
  if (state.textContent !== text()) setText(state, text); // else it would be read out every time
  state.className = `state ${look}`;
  setAttribute(state, "title", () => translateMessage(title));
}

function show() {
  document.title = `${model.id} · Polyhead`;
  setText(document.querySelector("h1"), model.id);
  setText(document.querySelector(".lead"), () => `${describe()}${language === "zh" ? "。" : "."}`);
  setText(document.querySelector(".facts-line"), listFacts);
  const tasks = model.tasks.map((task) => (isReranker() && task === "classify" ? "rank" : task));
  const offered = ORDER.filter((task) => tasks.includes(task) && !(task === "completions" && model.kind === "encoder-decoder"));
  const panels = offered.map((task) => TOOLS[task][1]()), tabs = create("div", { class: "tabs", role: "tablist", "aria-label": () => t("Tools") });
  const choose = (i, focus) => {
    panels.forEach((panel, j) => { panel.hidden = i !== j; });
    [...tabs.children].forEach((tab, j) => { tab.setAttribute("aria-selected", i === j); tab.tabIndex = i === j ? 0 : -1; });
    if (focus) tabs.children[i].focus();
  };
  if (offered.length > 1) offered.forEach((task, i) => {
    const tab = create("button", { class: "tab", role: "tab", type: "button", id: `tab${i}`, "aria-controls": `panel${i}` }, TOOLS[task][0]);
    Object.entries({ role: "tabpanel", id: `panel${i}`, "aria-labelledby": `tab${i}` }).forEach((pair) => panels[i].setAttribute(...pair));
    tab.addEventListener("click", () => choose(i));
    tab.addEventListener("keydown", (event) => {
      const last = offered.length - 1, next = { ArrowLeft: i ? i - 1 : last, ArrowRight: i < last ? i + 1 : 0, Home: 0, End: last }[event.key];
      if (next !== undefined) { event.preventDefault(); choose(next, true); }
    });
    tabs.append(tab);
  });
  put(empty(place), ...(offered.length > 1 ? [tabs] : []), ...panels);
  choose(0);
  place.querySelector("textarea").focus();
}

async function enter() {
  try {
    const [found] = (await askJson("/v1/models")).data;
    model = { id: found.id, ...found.polyhead };
    show();
    document.querySelector("footer nav").hidden = Boolean(key); // a link cannot carry it
    document.querySelector("footer p").hidden = !model.explain;
  } catch (error) {
    const locked = error.status === 401;
    setText(document.querySelector("h1"), () => locked ? t("A key is required") : t("The service does not answer"));
    const door = make("section", { class: "door" }), form = make("form");
    const word = create("input", { type: "password", autocomplete: "off", "aria-label": () => t("key"), placeholder: () => t("key") });
    put(form, word, create("button", { class: "button main" }, () => t("Enter")));
    form.addEventListener("submit", (event) => { event.preventDefault(); key = word.value.trim(); enter(); pulse(); });
    const reason = () => !locked ? translateMessage(error.message) : key ? t("Invalid key.") : t("This service requires a key. The key stays in this page.");
    put(empty(place), put(door, create("p", { class: key ? "mistake" : "about", role: "status" }, reason), ...(locked ? [form] : [])));
    if (locked) word.focus();
  }
}

function chooseLanguage(code) {
  setLanguage(code);
  drawSwitches(SWITCHES, code, chooseLanguage);
}
addEventListener("themechange", () => { drawSwitches(SWITCHES, language, chooseLanguage); });

setText(document.querySelector(".program summary"), () => t("The same request from a program"));
const sent = document.querySelector(".program pre");
sent.before(copyButton(() => t("the request"), () => sent.textContent));
setAttribute(sent, "aria-label", () => t("The request as a command"));
const [routes, metrics] = document.querySelectorAll("footer nav a");
setText(routes, () => t("routes"));
setText(metrics, () => t("metrics"));
setText(document.querySelector("footer p a"), () => t("Walk a text through the model, number by number"));
chooseLanguage(siteLanguage());
enter();
pulse();
setInterval(() => { if (model) pulse(); }, 5000);
