
/* ---- what all tools are made of ---- */
let serial = 0;
/* whether nothing is visible: separators, control and format characters but those with a glyph, fillers */
const isBlank = (text) => !/[^\p{Z}\p{Cc}\p{Cf}\p{Default_Ignorable_Code_Point}\u2800]|[\u0600-\u0605\u06dd\u070f\u0890\u0891\u08e2]/u.test(text);
const lines = (text) => text.split("\n").filter((line) => !isBlank(line));
const bare = (token) => token.replace(/^␣(?=.)/u, ""); // without the blank before a word
const percent = (p) => `${(100 * p).toFixed(p < 0.1 ? 2 : 1)} %`;
const clipped = (text, most) => [...text].length > most ? [...text].slice(0, most - 1).join("") + "…" : text;

const readsWindows = () => ["question answerer", "token classifier"].includes(model.kind); // of a text of any length

/* A text area below its label, and the count of its characters, of the longest line where each is a text of its own. */
function field(label, placeholder, { byLine = false, counts = true, ...attributes } = {}) {
  const id = `field${++serial}`, count = make("span", { class: "count", id: `${id}count` });
  const input = create("textarea", { id, placeholder, spellcheck: "false", rows: 3, ...(counts && { "aria-describedby": `${id}count` }), ...attributes });
  const most = readsWindows() ? null : model.text_limit.characters;
  const tell = () => {
    const texts = byLine ? lines(input.value) : [input.value], longest = texts.reduce((n, text) => Math.max(n, [...text].length), 0);
    const over = most !== null && longest > most, values = () => ({ n: grouped(longest), most: grouped(most ?? 0), lines: grouped(texts.length) });
    count.classList.toggle("over", over);
    setText(count, () => {
      const size = most === null ? t("{n} characters", values()) : t("{n} of about {most} characters", values());
      return (texts.length > 1 ? t("{lines} lines; the longest has {size}", { ...values(), size }) : size) + (over ? t("; longer than its training texts") : "");
    });
  };
  input.addEventListener("input", tell);
  tell();
  const set = (text) => { input.value = text; tell(); };
  const box = put(make("div", { class: "field" }), create("label", { for: id }, label), input, ...(counts ? [count] : []));
  return { box, input, count, set };
}

/* Sliders, boxes and choices by name. */
function settings(list) {
  const box = make("div", { class: "settings" }), inputs = {};
  for (const { name, title, value, shown = (v) => v, options, placeholder, ...rest } of list) {
    const id = `setting${++serial}`, output = make("output", { for: id });
    const input = options ? make("select", { id }) : create("input", { id, type: "range", ...(placeholder && { placeholder }), ...rest });
    for (const [option, text] of options ?? []) put(input, create("option", { value: option }, text));
    input.value = value;
    const tell = () => {
      if (input.type !== "range") return;
      setText(output, () => shown(input.value));
      setAttribute(input, "aria-valuetext", () => `${shown(input.value)}`);
    };
    input.addEventListener("input", tell);
    tell();
    box.append(put(make("div", { class: "setting" }), create("label", { for: id }, title), output, input));
    inputs[name] = input;
  }
  const value = (name) => ["text", "select-one"].includes(inputs[name].type) ? inputs[name].value : inputs[name].value === "" ? null : Number(inputs[name].value);
  return { box, value, inputs };
}
const orWord = (number, word) => (v) => v === number ? word() : v;

/* A tool: its sheet, a main button that Ctrl+Enter presses too, a button that stops, a note, and a line for mistakes;
   `clear` removes the answer to an earlier text where a new one is refused. */
function tool(action, work, clear = () => {}) {
  const root = make("section"), sheet = make("div", { class: "sheet" }), actions = make("div", { class: "actions" });
  const go = put(make("button", { class: "button main", type: "button" }), create("span", {}, action));
  const stop = create("button", { class: "button stop", type: "button", hidden: "" }, () => t("Stop"));
  const note = make("span", { class: "note", role: "status" }), mistake = make("p", { class: "mistake", role: "alert" });
  let control = null;
  go.append(make("kbd", { "aria-hidden": "true" }, navigator.platform.startsWith("Mac") ? "⌘⏎" : "Ctrl ⏎"));
  async function run(does = work) {
    if (control) return;
    control = new AbortController();
    const focused = root.contains(document.activeElement) && document.activeElement.matches("button"); // keyboard users stay where something can be pressed
    go.disabled = true; stop.hidden = false; if (focused) stop.focus();
    setText(mistake, ""); setText(note, "");
    try { await does({ signal: control.signal, note: (text) => setText(note, text) }); } catch (error) {
      if (error.name === "AbortError") setText(note, () => t("stopped"));
      else {
        setText(mistake, () => tellRefusal(error));
        mistake.title = error.message;
        clear();
      }
    }
    control = null;
    const back = document.activeElement === stop;
    go.disabled = false; if (back) go.focus();
    stop.hidden = true;
  }
  go.addEventListener("click", () => run());
  stop.addEventListener("click", () => control?.abort());
  root.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); run(); }
    if (event.key === "Escape") control?.abort();
  });
  put(root, sheet, mistake);
  put(actions, go, stop, note);
  const addButton = (button) => actions.insertBefore(button, note);
  return { root, sheet, actions, run, addButton };
}

const more = (summary, ...children) => put(make("details"), create("summary", {}, summary), ...children);

/* Buttons that put an example in its place and press the main button. */
function exampleRow(examples, choose, here, name = (one) => one) {
  const row = create("div", { class: "tries", role: "group", "aria-label": () => t("Examples") });
  if (examples.length) row.append(create("span", { "aria-hidden": "true" }, () => t("Examples")));
  for (const one of examples) {
    const button = create("button", { class: "chip example", type: "button" }, () => clipped(valueOf(() => name(one)), 48));
    button.addEventListener("click", () => { choose(one); here.run(); });
    row.append(button);
  }
  row.hidden = !examples.length;
  return row;
}

/* How a text begins, and a text with the word in its middle hidden; of scripts without blanks between words, characters. */
const isUnspaced = (text) => 2 * (text.match(/[\p{sc=Han}\p{sc=Hiragana}\p{sc=Katakana}\p{sc=Thai}\p{sc=Lao}\p{sc=Khmer}\p{sc=Myanmar}\p{sc=Tibetan}\p{sc=Yi}\p{sc=Tai_Le}\p{sc=New_Tai_Lue}\p{sc=Tai_Tham}\p{sc=Tai_Viet}\p{sc=Javanese}\p{sc=Balinese}]/gu) ?? []).length > text.length;
const beginning = (text) => isUnspaced(text) ? [...text].slice(0, 8).join("") : text.split(" ").slice(0, 5).join(" ");
function hideWord(text) {
  const [units, glue] = isUnspaced(text) ? [[...text], ""] : [text.split(" "), " "], middle = units.length >> 1;
  units[middle] = units[middle].replace(/^.*?(?=[.,;:!?]*$)/u, "<mask>");
  return units.join(glue);
}

function copyButton(what, text) {
  const word = create("span", {}, () => t("Copy")), button = make("button", { class: "quiet copy", type: "button" });
  put(button, word, create("span", { class: "unseen" }, () => ` ${what()}`));
  button.addEventListener("click", async () => {
    const result = await copyText(text()).then(() => () => t("Copied"), () => () => t("Not allowed"));
    setText(word, result);
    setText(document.querySelector("#announcement"), result);
    setTimeout(() => setText(word, () => t("Copy")), 1500);
  });
  return button;
}

/* Links that open the walk of each text through the model. */
function whyLinks(texts) {
  const url = (text) => `explain?${new URLSearchParams({ text })}`, shown = model.explain ? texts.slice(0, 8) : [];
  return put(make("span", { class: "why" }), ...shown.map((text, i) => create("a", { href: url(text), title: () => t("Walk a text through the model, number by number") }, () => shown.length > 1 ? t("Why {n}?", { n: i + 1 }) : t("Why?"))));
}

function bars(title, rows) {
  const box = make("div", { class: "bars" });
  if (title) box.append(make("h3", {}, title));
  for (const [name, p, about] of rows) {
    const bar = make("div", { class: "bar", title: about ?? name }), full = make("b");
    full.style.width = `${100 * p}%`;
    box.append(put(bar, make("span", {}, name), put(make("i", { "aria-hidden": "true" }), full), make("output", {}, percent(p))));
  }
  return box;
}

function row(text, figure, title) {
  return put(make("div", { class: "row" }), make("span", {}, text), create("span", { class: "figure", title }, figure));
}

/* The request as a program would send it. */
function program(path, body) {
  const quoted = JSON.stringify(body, null, 1).replaceAll("'", "'\\''");
  const secret = key ? " -H 'Authorization: Bearer $KEY'" : "";
  document.querySelector(".program pre").textContent = `curl ${location.origin}${path} -H 'Content-Type: application/json'${secret} -d '${quoted}'`;
  document.querySelector(".program").hidden = false;
}
