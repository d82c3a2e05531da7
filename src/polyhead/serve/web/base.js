
/* ---- the language of the page: texts given as functions are set again when it changes ---- */
const CHINESE = ALL_TEXTS;
let language = "en";
const valueOf = (given) => typeof given === "function" ? given() : given;

function setText(element, text) {
  (element.texts ??= {})[""] = text;
  element.textContent = valueOf(text);
  return element;
}
function setAttribute(element, name, text) {
  (element.texts ??= {})[name] = text;
  element.setAttribute(name, valueOf(text));
}
function create(name, attributes = {}, text = null) {
  const element = make(name);
  for (const [key, given] of Object.entries(attributes)) setAttribute(element, key, given);
  return text === null ? element : setText(element, text);
}

function setLanguage(code) {
  language = code;
  for (const text of Object.keys(CATALOG)) delete CATALOG[text];
  if (code === "zh") Object.assign(CATALOG, CHINESE);
  document.documentElement.lang = code;
  for (const element of document.querySelectorAll("*")) {
    for (const [name, text] of Object.entries(element.texts ?? {})) {
      if (typeof text === "function") name ? element.setAttribute(name, text()) : (element.textContent = text());
    }
    element.redraw?.();
  }
}

/* A message of the service, which is in English: the entry of the catalog that it is, with what varies in place of {names}. */
function translateMessage(message) {
  if (CATALOG[message]) return CATALOG[message];
  const literal = (text) => text.replace(/\{\w+\}/g, "").length;
  for (const text of Object.keys(CATALOG).filter((one) => literal(one) > 20).sort((a, b) => literal(b) - literal(a))) {
    const parts = text.split(/\{(\w+)\}/), pattern = parts.map((part, i) => i % 2 ? "(.+?)" : part.replace(/[^\w\s]/g, "\\$&")).join("");
    const found = new RegExp(`^${pattern}$`, "s").exec(message);
    if (found) return t(text, Object.fromEntries(parts.filter((_, i) => i % 2).map((name, i) => [name, found[i + 1]])));
  }
  return message;
}

const grouped = (number) => number.toLocaleString(language);
function languageName(code) {
  try { return new Intl.DisplayNames([language], { type: "language" }).of(code.replaceAll("_", "-").replace(/-XX$/, "")); } catch { return code; }
}

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
  const refusal = await answer.json().catch(() => null);
  const mistake = new Error(refusal?.error?.message ?? `The service answered ${answer.status}.`);
  Object.assign(mistake, { status: answer.status, code: refusal?.error?.code });
  throw mistake;
}
const askJson = async (path, body, signal) => (await ask(path, body, signal)).json();

/* What a visitor reads of a refusal, by its code: the service's own words speak of the request of a program. */
const isTooLong = ({ message }) => {
  const [, line] = /^text (\d+) /.exec(message) ?? [], values = { n: line, limit: describeLimit() };
  return line > 1 ? t("Line {n} is too long for this model, which reads {limit}.", values) : t("The text is too long for this model, which reads {limit}.", values);
};
const isBusy = () => t("The service is busy: please try again in a moment."), isClosed = () => t("The service is not ready: please try again in a moment.");
const REFUSALS = {
  context_length_exceeded: isTooLong, text_too_long: isTooLong, overloaded: isBusy, too_many_connections: isBusy, not_ready: isClosed, shutting_down: isClosed,
  too_many_texts: () => t("These are too many lines at once: open them as a text file, which is read in parts."), answer_too_long: () => t("The answer would be too long: send fewer texts at once."),
  deadline: () => t("This took too long: please try less text at once."), internal_error: () => t("Something went wrong in the service; its log has the reason."), not_a_number: () => t("The model put out no number: its weights are damaged."),
};
const tellRefusal = (error) => REFUSALS[error.code]?.(error) ?? translateMessage(error.message);

/* The events of a stream; one that carries an error is thrown. */
async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("The answer was interrupted.");
    rest += value;
    const parts = rest.split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      if (!part.startsWith("data: ")) continue;
      if (part === "data: [DONE]") return;
      const event = JSON.parse(part.slice(6));
      if (event.error) throw new Error(event.error.message);
      yield event;
    }
  }
}
