/* ---- live: a form for any text, and the service that answers with the document of it ---- */
let serviceKey = ""; // kept here alone, until the page is closed

async function askService(body) {
  const headers = { "Content-Type": "application/json", ...(serviceKey && { Authorization: `Bearer ${serviceKey}` }) };
  const answer = await fetch(page.live.endpoint, { method: "POST", headers, body: JSON.stringify(body) });
  const found = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(found.error?.message ?? `${answer.status} ${answer.statusText}`);
  return found;
}

/* What the service is asked for a text, and again for its levers. */
const askedText = ({ text, target }) => ({ text, ...(target && { target }) });

function drawForm() {
  const { live } = page, field = (name, label, value, type = "text") => h("label", {}, h("span", {}, label), h("input", { name, type, value: page.draft?.[name] ?? value, autocomplete: "off", required: name === "text", "data-focus": `form-${name}` }));
  const message = h("p", { class: "note", role: "status" }, page.formMessage?.() ?? "");
  const form = h("form", { class: "ask", onsubmit: submitText }, field("text", t("Text to explain"), page.asked.text ?? ""),
    live.has_target === false ? null : field("target", live.translates ? t("Translation (may stay empty)") : t("Second text (may stay empty)"), page.asked.target ?? ""), live.needs_key ? field("key", t("Key of the service"), serviceKey, "password") : null,
    h("button", { type: "submit", class: "action", "data-focus": "form-submit" }, t("Explain")), message);
  form.addEventListener("input", () => { page.draft = Object.fromEntries(new FormData(form)); });
  redraw(document.getElementById("ask"), form);
}

function submitText(event) {
  event.preventDefault();
  const fields = new FormData(event.target);
  serviceKey = fields.get("key") ?? "";
  page.asked = { text: fields.get("text"), target: fields.get("target") || null };
  explainText();
}

/* Ask for the document of the text and draw it; of two requests the later one counts. */
async function explainText() {
  const asked = page.asked, show = (text) => { page.formMessage = text; drawForm(); };
  show(() => t("Computing …"));
  try {
    const found = await askService(askedText(asked));
    if (asked !== page.asked) return;
    page.formMessage = null;
    await showDocument({ ...found, asked });
  } catch (error) { if (asked === page.asked) show(() => error.message); }
}

/* Explain the text in the address, else the first example of the service: the page itself has no text. */
async function startLive() {
  const asked = new URLSearchParams(location.search);
  if (asked.get("text")) page.asked = { text: asked.get("text"), target: asked.get("target") || null };
  if (page.live.needs_key) { drawForm(); return; }
  if (asked.get("text")) { await explainText(); return; }
  const models = await fetch(page.live.models).then((answer) => answer.json()).catch(() => null);
  const [text = "", target = null] = [models?.data?.[0].polyhead.examples[0] ?? []].flat();
  if (!text || page.asked.text || page.draft?.text) return;
  page.asked = { text, target };
  await explainText();
}

/* Any setting of a lever, computed by the service; it opens with the first of those that a file has. What the reader writes stays in the form when the page is drawn again. */
function leverForm(lever, setting) {
  const inputs = lever.fields.map((field) => [field, fieldInput(lever, field, setting[field.name]?.name ?? setting[field.name] ?? field.default)]), message = h("p", { class: "note", role: "status" }, lever.message?.() ?? "");
  for (const [field, input] of inputs) if (lever.draft) input.value = lever.draft[field.name];
  const form = h("form", { class: "live" }, inputs.map(([field, input]) => h("label", { class: "choice" }, SETTING_NAMES[field.name]?.() ?? field.name, input)), inputs.length ? h("button", { type: "submit", class: "action", "data-focus": "lever-submit" }, t("Compute")) : null, message);
  form.addEventListener("input", () => { lever.draft = Object.fromEntries(inputs.map(([field, input]) => [field.name, input.value])); });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    askLever(lever, readSetting());
  });
  const readSetting = () => Object.fromEntries(inputs.filter(([, input]) => input.value !== "").map(([field, input]) => [field.name, readField(field, input.value)]));
  if (!lever.cases.length && !lever.asked) queueMicrotask(() => { if (!lever.asked) askLever(lever, lever.settings[0] ?? readSetting()); });
  return form;
}

/* Compute a setting of a lever. Of two settings the later one is shown, whichever comes first. */
async function askLever(lever, setting) {
  const known = lever.cases.findIndex((one) => isSameSetting(one.setting, setting));
  if (known >= 0) { chooseCase(lever, known); return; }
  const { draft } = lever, { tokens } = page.data.levers, isShown = () => isLeverShown(lever);
  const show = (message) => { lever.message = message; if (isShown()) drawStage(); };
  lever.asked = setting;
  show(() => t("Computing …"));
  try {
    const answer = await askService({ ...askedText(page.data.asked), lever: lever.name, setting });
    Object.assign(tokens, answer.tokens);
    await addArrays(answer);
    lever.cases.push(answer.case);
    if (lever.asked !== setting) { show(lever.message); return; }
    if (lever.draft === draft) lever.draft = null;
    lever.message = null;
    if (isShown()) go({ leverCase: lever.cases.length - 1 });
    if (lever.name === "head" && currentStation().kind === "levers") await askFurther(lever, isShown);
  } catch (error) { if (lever.asked === setting) show(() => error.message); }
}

const isLeverShown = (lever) => currentStation().kind === "levers" ? chosenLever(page.data.levers.levers) === lever : changeAt(currentStation()) === lever;

/* The weights of one more attention for a case. */
async function askMap(lever, chosen, path) {
  chosen.others ??= [];
  if (chosen.others.some((one) => one.path === path)) return;
  const one = { path, heads: [], isOpen: true }, { data } = page;
  chosen.others.push(one);
  const answer = await askService({ ...askedText(data.asked), lever: lever.name, setting: chosen.setting, attention: path }).catch((error) => { lever.message = () => error.message; });
  if (page.data !== data) return;
  if (answer) await addArrays(answer);
  Object.assign(one, answer?.case.attention, { isOpen: false });
  if (isLeverShown(lever)) drawStage();
}

/* The arrays of an answer join those of the document. */
async function addArrays(answer) {
  const { data, arrays } = page, more = await openArrays(answer);
  for (const name of Object.keys(answer.values)) arrays.cache.set(name, more.get(name));
  Object.assign(data.values, answer.values);
}

/* The other heads, one after the other, while the reader looks at them. */
async function askFurther(lever, isShown) {
  if (lever.isFilling) return;
  lever.isFilling = true;
  const { data } = page, findOpen = () => lever.settings.find((setting) => !lever.cases.some((one) => isSameSetting(one.setting, setting)));
  try {
    for (let setting = findOpen(); setting && page.data === data && isShown(); setting = findOpen()) {
      const answer = await askService({ ...askedText(data.asked), lever: lever.name, setting });
      if (lever.cases.some((one) => isSameSetting(one.setting, setting))) continue;
      Object.assign(data.levers.tokens, answer.tokens);
      await addArrays(answer);
      lever.cases.push(answer.case);
      if (page.data === data && isShown()) drawStage();
    }
  } finally { lever.isFilling = false; }
}

/* Layers and heads count from 0 in settings, and from 1 on the page. */
const offsetOf = (field) => field.name === "layer" || field.name === "head" ? 1 : 0;
function readField(field, text) {
  if (field.type === "number" || field.type === "integer") return Number(text) - offsetOf(field);
  return field.type === "part" ? { name: text } : text;
}
function fieldInput(lever, field, current) {
  const values = field.values?.length ? field.values : null, focus = `field-${lever.name}-${field.name}`;
  if (values) return h("select", { "data-focus": focus }, values.map((value) => h("option", { value, selected: value === current }, WORDS[value]?.() ?? String(value))));
  const shift = (number) => typeof number === "number" ? number + offsetOf(field) : null;
  return h("input", { type: "number", min: shift(field.min), max: shift(field.max), step: field.type === "integer" ? 1 : "any", value: shift(current) ?? "", "data-focus": focus });
}
