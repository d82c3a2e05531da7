
/* ---- live page: poll the server for its version and replace the sections that changed ---- */
const POLL = 2000; // milliseconds
let shownSections = [];

async function follow({ version, training }) {
  const place = new URL(location.href), status = make("p", { class: "news", role: "status" });
  place.searchParams.set("version", "");
  document.querySelector(".lead").after(status);
  while (training !== "false") {
    status.textContent = t("This page updates itself.");
    await new Promise((done) => setTimeout(done, POLL));
    if (document.hidden) continue;
    try {
      const state = await (await fetch(place)).json();
      if (state.version !== version) {
        renewSections(await (await fetch(location.href)).text());
        ({ version, training } = { version: state.version, training: String(state.training) });
      }
    } catch {
      status.textContent = t("The service does not answer; this page retries.");
      await new Promise((done) => setTimeout(done, POLL));
    }
  }
  status.textContent = "";
}

/* Replace the sections by those of a newer document; open details and selections are kept. */
function renewSections(text) {
  const next = new DOMParser().parseFromString(text, "text/html");
  if (OTHER_TEXTS && pageLanguage !== next.documentElement.lang) translateDocument(next);
  const newer = [...next.querySelectorAll("main > section")], older = [...document.querySelectorAll("main > section")];
  const sources = newer.map((section) => section.outerHTML.replace(/<i hidden.*?<\/i>/, ""));
  document.querySelector(".lead").textContent = next.querySelector(".lead").textContent;
  const footer = document.querySelector("footer");
  newer.forEach((section, i) => {
    if (older[i] && shownSections[i] === sources[i]) return;
    const fresh = document.importNode(section, true);
    if (older[i]) {
      keepState(older[i], fresh);
      older[i].replaceWith(fresh);
    } else footer.before(fresh);
    fresh.querySelectorAll("figure.plot").forEach(plot);
    fresh.querySelectorAll(".attention").forEach(attention);
  });
  older.slice(newer.length).forEach((section) => section.remove());
  shownSections = sources;
}

function keepState(older, fresh) {
  const opened = [...older.querySelectorAll("details")].map((details) => details.open);
  fresh.querySelectorAll("details").forEach((details, i) => { details.open = opened[i] ?? false; });
  const chosen = new Set([...older.querySelectorAll("input:checked")].map((input) => input.value));
  fresh.querySelectorAll("input").forEach((input) => { input.checked = chosen.has(input.value); });
}

const live = document.querySelector("[data-version]");
if (live) follow({ ...live.dataset });
