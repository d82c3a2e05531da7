
/* ---- a text file, one line a text; the results in a file of as many lines ---- */
const LARGEST_FILE = 32; // MB
const PREVIEW = 3, SHOWN_FAILURES = 5;
const countLines = (n) => n === 1 ? t("1 line") : t("{n} lines", { n: grouped(n) });
const oneLine = (text) => text.replace(/\s*[\r\n]\s*/g, " ");

async function readLines(file) {
  if (file.size > LARGEST_FILE * 2 ** 20) throw new Error(t("The file is larger than {n} MB.", { n: LARGEST_FILE }));
  let text;
  try { text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer()); } catch { throw new Error(t("The file is not UTF-8 text.")); }
  const found = text.replace(/\r\n?/g, "\n").replace(/\n$/, "").split("\n");
  if (found.every(isBlank)) throw new Error(t("The file has no text."));
  return found;
}

/* Waits and asks again while the service has too much to do. */
async function patiently(work, signal) {
  for (;;) {
    try { return await work(); } catch (error) { if (error.status !== 429) throw error; }
    await new Promise((resolve) => setTimeout(resolve, 1000));
    signal.throwIfAborted();
  }
}

/* The result of each line; blank lines stay blank, and so do those that the service refuses. */
async function convertLines(all, convert, { signal, note }, result) {
  const items = [...all.entries()].filter(([, line]) => !isBlank(line)), size = model.limits.texts;
  const store = (batch, outputs) => batch.forEach(([i], j) => { result.lines[i] = outputs[j]; });
  for (let at = 0; at < items.length; at += size) {
    note(() => t("{n} of {all} lines", { n: grouped(at), all: grouped(items.length) }));
    const batch = items.slice(at, at + size);
    try { store(batch, await patiently(() => convert(batch.map(([, line]) => line), signal), signal)); } catch (error) {
      if (error.status !== 400) throw error;
      for (const one of batch) {
        try { store([one], await patiently(() => convert([one[1]], signal), signal)); } catch (mistake) {
          if (mistake.status !== 400) throw mistake;
          result.failures.push([one[0] + 1, mistake.message]);
        }
      }
    }
    result.done = at + batch.length;
    result.end = batch.at(-1)[0] + 1;
  }
  result.end = all.length;
  note(() => countLines(result.done));
}

function showResult(box, { lines: found, failures, end, done }, name) {
  const url = URL.createObjectURL(new Blob([found.slice(0, end).join("\n"), "\n"], { type: "text/plain" }));
  const link = create("a", { class: "button", href: url, download: name }, () => t("Download {name}", { name }));
  put(empty(box), put(make("p", { class: "file" }), link, create("span", {}, () => countLines(done))));
  box.append(...found.filter(Boolean).slice(0, PREVIEW).map((line) => make("p", { class: "text preview" }, clipped(line, 200))));
  if (failures.length) {
    box.append(create("p", { class: "mistake" }, () => t("Rejected, and blank in the result: {lines}", { lines: countLines(failures.length) })));
    box.append(...failures.slice(0, SHOWN_FAILURES).map(([line, message]) => create("p", { class: "failure" }, () => `${t("line {n}", { n: grouped(line) })}: ${translateMessage(message).replace(/^text 1 /, "")}`)));
  }
}

/* A button of a tool that opens a file, and the place where its result is offered. */
function fileOpener(here, name, convert) {
  const input = make("input", { type: "file", accept: ".txt,.tsv,text/plain", class: "unseen", tabindex: "-1", "aria-hidden": "true" });
  const button = create("button", { class: "button", type: "button", title: () => t("UTF-8 text, one text per line") }, () => t("Open a text file"));
  const box = make("div", { class: "answer result" });
  button.addEventListener("click", () => input.click());
  input.addEventListener("change", () => {
    const [file] = input.files;
    if (!file) return;
    here.run(async (state) => {
      const all = await readLines(file), result = { lines: new Array(all.length).fill(""), failures: [], end: 0, done: 0 };
      try { await convertLines(all, convert, state, result); } finally { if (result.done) showResult(box, result, name); }
    });
    input.value = "";
  });
  here.addButton(button);
  here.actions.append(input);
  return box;
}
