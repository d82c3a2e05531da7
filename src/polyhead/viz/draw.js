
/* ---- matrix: readout of the cell under the pointer ---- */
function matrix(figure) {
  const m = embedded(figure), output = figure.querySelector("output");
  const bytes = Uint8Array.from(atob(m.values), (c) => c.charCodeAt(0));
  const state = { row: 0, column: 0 }, keep = (v, n) => Math.min(Math.max(v, 0), n - 1);
  for (const svg of figure.querySelectorAll("svg")) {
    const [left, top, across, down] = svg.dataset.frame.split(" ").map(Number);
    const mark = draw("rect", { class: "here", width: across / m.columns, height: down / m.rows, visibility: "hidden" });
    svg.append(mark);
    const show = (row, column) => {
      state.row = keep(row, m.rows); state.column = keep(column, m.columns);
      const shade = (bytes[state.row * m.columns + state.column] << 24) >> 24, value = shade / 127 * m.most;
      mark.setAttribute("x", left + state.column * across / m.columns);
      mark.setAttribute("y", top + state.row * down / m.rows);
      mark.setAttribute("visibility", "visible");
      const place = { row: m.row, i: state.row + m.first[0], column: m.column, j: state.column + m.first[1] };
      output.textContent = t("{row} {i}, {column} {j}: {value}", { ...place, value: value.toPrecision(2) });
    };
    const at = (event) => {
      const box = svg.getBoundingClientRect(), unit = svg.viewBox.baseVal.width / box.width;
      const x = (event.clientX - box.left) * unit - left, y = (event.clientY - box.top) * unit - top;
      if (x >= 0 && y >= 0 && x < across && y < down) show(Math.floor(y / down * m.rows), Math.floor(x / across * m.columns));
    };
    svg.addEventListener("pointermove", at);
    svg.addEventListener("pointerdown", at);
    svg.addEventListener("pointerleave", () => { mark.setAttribute("visibility", "hidden"); output.textContent = ""; });
    svg.addEventListener("keydown", (event) => {
      const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
      if (!move) return;
      event.preventDefault();
      show(state.row + move[0], state.column + move[1]);
    });
  }
}

/* ---- token scatter plots: highlight the hovered or searched token and its neighbours in all plots ---- */
function clouds(root) {
  const tokens = embedded(root), svgs = [...root.querySelectorAll("svg")], readout = root.querySelector(".readout");
  const input = root.querySelector("input"), empty = readout.textContent;
  const plain = (name) => name.replaceAll("␣", " ").trim() || name;
  const dots = svgs.map((svg) => [...svg.querySelectorAll(".point")]);
  const list = make("datalist", { id: "tokens" });
  list.append(...tokens.names.map((name) => make("option", { value: plain(name) })));
  root.append(list);
  const clear = () => svgs.forEach((svg, s) => {
    svg.classList.remove("reading");
    dots[s].forEach((dot) => dot.classList.remove("on", "near"));
    svg.querySelectorAll(".tag").forEach((tag) => tag.remove());
  });
  /* next to its dot if it covers no other name; else not drawn */
  function name(svg, dot, text, kind, taken) {
    if (svg.getClientRects().length === 0) return;
    const x = Number(dot.getAttribute("cx")), y = Number(dot.getAttribute("cy")), view = svg.viewBox.baseVal;
    const tag = draw("text", { class: kind }, text);
    svg.append(tag);
    for (const [dx, dy, anchor] of [[9, 4, "start"], [-9, 4, "end"], [0, -9, "middle"], [0, 19, "middle"]]) {
      for (const [key, value] of Object.entries({ x: x + dx, y: y + dy, "text-anchor": anchor })) tag.setAttribute(key, value);
      const a = tag.getBBox();
      const free = taken.every((b) => a.x > b.x + b.width + 5 || b.x > a.x + a.width + 5 || a.y > b.y + b.height || b.y > a.y + a.height);
      if (free && a.x >= 0 && a.x + a.width <= view.width) return taken.push(a);
    }
    return tag.remove();
  }
  function show(i) {
    clear();
    svgs.forEach((svg, s) => {
      svg.classList.add("reading");
      const taken = [];
      for (const j of [i, ...tokens.near[i]]) {
        dots[s][j].classList.add(j === i ? "on" : "near");
        name(svg, dots[s][j], plain(tokens.names[j]), j === i ? "tag on" : "tag", taken);
      }
    });
    const near = tokens.near[i].map((j) => plain(tokens.names[j])).join(", ");
    const about = tokens.counts
      ? t(", {n} times; nearest: {tokens}", { n: tokens.counts[i].toLocaleString("en"), tokens: near })
      : t("; nearest: {tokens}", { tokens: near });
    readout.replaceChildren(make("b", {}, tokens.names[i]), about);
  }
  const leave = () => { clear(); readout.textContent = empty; };
  for (const svg of svgs) {
    for (const kind of ["pointerover", "pointerdown"]) svg.addEventListener(kind, (event) => {
      if (event.target.dataset.i !== undefined) show(Number(event.target.dataset.i));
    });
    svg.addEventListener("pointerleave", leave);
  }
  input.addEventListener("input", () => {
    const wanted = input.value.trim().toLowerCase();
    const found = tokens.names.findIndex((name) => plain(name).toLowerCase() === wanted || name === input.value);
    if (wanted && found >= 0) show(found); else leave();
  });
}

document.querySelectorAll("figure.matrix").forEach(matrix);
document.querySelectorAll(".clouds").forEach(clouds);
