/* ---- what all pages share: the language and the theme of the reader, kept in this browser, and the pills that choose them ---- */
const siteStored = (key) => { try { return localStorage.getItem(`polyhead-${key}`); } catch { return null; } };
const siteStore = (key, value) => { try { localStorage.setItem(`polyhead-${key}`, value); } catch { /* a file may not */ } };
const siteRoot = document.documentElement;
/* The language that the reader chose on any page, else that of this one. */
const siteLanguage = () => siteStored("language") ?? (siteRoot.lang.startsWith("zh") ? "zh" : "en");
const isDark = () => siteRoot.dataset.theme ? siteRoot.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
if (siteStored("theme")) siteRoot.dataset.theme = siteStored("theme");

/* "themechange": the colours are others now, by a pill or by the system. */
function setTheme(theme) {
  siteRoot.dataset.theme = theme;
  siteStore("theme", theme);
  dispatchEvent(new Event("themechange"));
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => dispatchEvent(new Event("themechange")));

/* Two pills, drawn again when one is pressed; `chooseLanguage` is null on a page of one language. */
function drawSwitches(box, language, chooseLanguage) {
  const pill = (name, text, lang, act) => {
    const button = document.createElement("button");
    Object.assign(button, { type: "button", className: "site-switch", textContent: text, lang });
    button.dataset.focus = name;
    button.addEventListener("click", () => {
      act();
      document.querySelector(`.site-switches [data-focus="${name}"]`)?.focus();
    });
    return button;
  };
  const other = language === "zh" ? "en" : "zh", theme = isDark() ? "light" : "dark", tag = language === "zh" ? "zh-CN" : "en";
  box.className = "site-switches";
  box.replaceChildren(...(chooseLanguage ? [pill("language", other === "zh" ? "中文" : "English", other === "zh" ? "zh-CN" : "en", () => { siteStore("language", other); chooseLanguage(other); })] : []),
    pill("theme", isDark() ? t("Light") : t("Dark"), tag, () => { setTheme(theme); }));
  return box;
}

/* Links to the pages of a run that exist; for a missing explanation, the command that writes it. */
const SITE_PAGES = { "report.html": () => t("Report of the run"), "explain.html": () => t("See it read a sentence"), "attention.html": () => t("Attention"), "heads.html": () => t("The heads"), "draw.html": () => t("Positions and embeddings") };
const SITE_LINKS = JSON.parse(document.getElementById("links")?.textContent ?? '{"pages":{}}'), SITE_HERE = location.pathname.split("/").pop();
/* Where the mark of the page leads: to the page above it. */
const siteHome = () => SITE_LINKS.home ?? (SITE_HERE === "report.html" ? null : SITE_LINKS.pages["report.html"]);
function drawSiteLinks(box) {
  const { pages, command } = SITE_LINKS;
  const link = ([name, address]) => Object.assign(document.createElement("a"), { href: address, textContent: SITE_PAGES[name]() });
  box.className = "site-links";
  box.setAttribute("aria-label", t("Pages of the run"));
  box.replaceChildren(...Object.entries(pages).filter(([name, address]) => address !== SITE_HERE && name in SITE_PAGES).map(link));
  if (command && !pages["explain.html"]) {
    const text = Object.assign(document.createElement("span"), { textContent: `${t("See it read a sentence")}: ` });
    text.append(Object.assign(document.createElement("code"), { textContent: command }));
    box.append(text);
  }
  box.hidden = !box.childElementCount;
  return box;
}

/* Copy a text, also where the page has no clipboard of its own, as over plain HTTP from elsewhere. */
async function copyText(text) {
  if (navigator.clipboard) { await navigator.clipboard.writeText(text); return; }
  const area = Object.assign(document.createElement("textarea"), { className: "unseen", value: text });
  area.setAttribute("aria-hidden", "true");
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  if (!done) throw new Error("not allowed");
}
