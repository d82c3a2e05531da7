/* ---- a drawing as a file: SVG with its styles, or PNG of twice the size ---- */
const DRAWN_STYLES = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray", "stroke-linecap", "visibility", "font-family", "font-size", "font-weight", "font-style", "text-anchor", "image-rendering", "opacity"];
/* A drawing that looks the same outside of the page: with the styles that differ from those of its parent, and its ground. */
function standaloneSvg(svg) {
  const copy = svg.cloneNode(true), box = svg.viewBox.baseVal, ground = document.createElementNS(svg.namespaceURI, "rect"), defs = document.createElementNS(svg.namespaceURI, "defs"), patterns = [...document.querySelectorAll(".patterns pattern")];
  const dress = (original, one, outer) => {
    const style = getComputedStyle(original), own = Object.fromEntries(DRAWN_STYLES.map((name) => [name, style.getPropertyValue(name)]));
    for (const [name, value] of Object.entries(own)) if (name === "opacity" ? value !== "1" : value !== outer[name]) one.style.setProperty(name, value);
    for (const name of ["class", "tabindex", "data-focus"]) one.removeAttribute(name);
    [...original.children].forEach((child, i) => dress(child, one.children[i], own));
  };
  dress(svg, copy, {});
  const hidden = patterns.map((pattern) => { const one = pattern.cloneNode(true); dress(pattern, one, {}); return one; });
  defs.append(...hidden);
  for (const [name, value] of Object.entries({ x: box.x, y: box.y, width: box.width, height: box.height, fill: getComputedStyle(svg.closest(".card")).backgroundColor })) ground.setAttribute(name, value);
  copy.prepend(defs, ground);
  return new XMLSerializer().serializeToString(copy);
}
function saveFile(blob, name) {
  const link = h("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
async function saveDrawing(svg, kind) {
  const text = standaloneSvg(svg), name = `${state.station}-${svg.dataset.focus ?? svg.getAttribute("class")}.${kind}`.replace(/[^\p{L}\p{N}._-]+/gu, "-");
  if (kind === "svg") { saveFile(new Blob([text], { type: "image/svg+xml" }), name); return; }
  const image = new Image(), { width, height } = svg.viewBox.baseVal, canvas = h("canvas", { width: 2 * width, height: 2 * height });
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await image.decode();
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  canvas.toBlob((blob) => saveFile(blob, name));
}
/* A menu on each card of its drawings. */
function addSaveMenus(cards) {
  for (const one of cards.filter((each) => each.matches(".card"))) {
    const drawings = [...one.querySelectorAll("svg[role=img], svg.glance")], rows = drawings.map((svg) => { const name = svg.getAttribute("aria-label").split(/[:;：；]/)[0]; return h("li", {}, h("span", {}, name), ["svg", "png"].map((kind) => h("button", { type: "button", class: "turn", "aria-label": `${kind.toUpperCase()}: ${name}`, onclick: () => saveDrawing(svg, kind) }, kind.toUpperCase()))); });
    if (rows.length) one.append(h("details", { class: "save" }, h("summary", {}, t("Save as a picture")), h("ul", {}, rows)));
  }
  return cards;
}
