/* The theme and the language that a reader chose on any page of the product, as viz/site.js keeps them. */
const stored = (key) => { try { return localStorage.getItem(`polyhead-${key}`); } catch { return null; } };
const store = (key, value) => { try { localStorage.setItem(`polyhead-${key}`, value); } catch { /* a file may not */ } };
const palettes = { light: "default", dark: "slate" };

for (const [theme, scheme] of Object.entries(palettes)) {
  const input = document.querySelector(`input[data-md-color-scheme="${scheme}"]`);
  if (stored("theme") === theme && document.body.dataset.mdColorScheme !== scheme) input.click();
  input.addEventListener("change", ({ isTrusted }) => { if (isTrusted) store("theme", theme); });
}
// a page that is opened from here begins in the language of this one
document.addEventListener("click", ({ target }) => {
  const link = target.closest("a[hreflang], a[href*='pages/']");
  if (link) store("language", (link.hreflang || document.documentElement.lang).startsWith("zh") ? "zh" : "en");
});
