
/* ---- all heads of all layers as small pictures of their weights, of the pages of attention and explain ---- */

/* Weights from 0 to 1 as a picture of one pixel each; the power keeps small ones visible. */
function paintWeights(matrix, color) {
  const canvas = document.createElement("canvas"), brush = canvas.getContext("2d");
  [canvas.width, canvas.height] = [matrix[0].length, matrix.length];
  brush.fillStyle = color;
  matrix.forEach((row, r) => row.forEach((weight, c) => { brush.globalAlpha = Math.min(Math.max(weight, 0), 1) ** 0.7; brush.fillRect(c, r, 1, 1); }));
  return canvas;
}

/* A grid of such pictures, with names of its rows and columns. `picture(r, c)` = {matrix, name, on, focus, choose}; null
   leaves the place empty. */
function fillWeightsGrid(grid, rows, columns, picture, color) {
  const label = (text) => Object.assign(document.createElement("span"), { textContent: text });
  grid.replaceChildren(label(""), ...columns.map(label));
  rows.forEach((row, r) => {
    grid.append(label(row));
    columns.forEach((_, c) => {
      const one = picture(r, c), button = document.createElement(one ? "button" : "span");
      grid.append(button);
      if (!one) return;
      Object.assign(button, { type: "button", className: "thumb", title: one.name, onclick: one.choose });
      button.setAttribute("aria-label", one.name);
      button.setAttribute("aria-pressed", one.on);
      if (one.focus) button.dataset.focus = one.focus;
      button.append(paintWeights(one.matrix, color));
    });
  });
  return grid;
}
