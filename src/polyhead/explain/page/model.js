/* ---- the document: sides, steps and the stations of the path through them ---- */
const CORES = new Set(["attention", "linear_attention", "feed_forward", "moe", "recurrent", "conv", "unknown"]);
const INPUT = new Set(["embedding", "position"]);

const sideOf = (index) => page.data.sides[index];
const tokenText = (side, position) => showToken(sideOf(side).tokens[position]?.text ?? "");
const windowOf = (side) => sideOf(side).window;
const shownPositions = (side) => d3.range(...windowOf(side));
/* The row of an array for the chosen token of a side, which may lie outside of the window. */
const rowOf = (side) => keepIn(state.tokens[side] - windowOf(side)[0], windowOf(side)[1] - windowOf(side)[0]);
const hasValue = (name) => name !== undefined && name !== null && page.data.values[name] !== undefined;

/* A row of the last axis of an array: row(name, i) of [T, C], row(name, h, i) of [H, T, C]. */
function row(name, ...index) {
  const { shape, data } = page.arrays.get(name);
  const width = shape[shape.length - 1];
  const at = index.reduce((sum, i, axis) => sum * shape[axis] + i, 0);
  return data.subarray(at * width, (at + 1) * width);
}
const shapeOf = (name) => page.data.values[name].shape;
/* The shape that an array has in the model, also of tokens that are not shown: `side` is the text of its last axis but one,
   `keySide` that of its last where this is of keys. */
function wholeShape(name, side, keySide = null) {
  const shape = [...shapeOf(name)], n = shape.length;
  if (n > 1) shape[n - 2] = sideOf(side).tokens.length;
  if (keySide !== null) shape[n - 1] = sideOf(keySide).tokens.length;
  return shape;
}
const valueAt = (name, ...index) => page.arrays.at(name, ...index);

/* The stations in the order of the path. Each has an id, the layer that it is in, and its steps. */
function listStations(data) {
  const stations = [], inLayer = new Map(), done = new Set();
  data.layers.forEach((layer) => d3.range(...layer.steps).forEach((i) => { if (!INPUT.has(data.walk[i].kind)) inLayer.set(i, layer); }));
  const push = (station) => stations.push(station);
  const addInput = (step) => {
    if (done.has(step)) return;
    done.add(step);
    const same = stations.find((one) => one.id === `${step.kind}-${step.side}`);
    if (same) same.steps.push(step);
    else push({ id: `${step.kind}-${step.side}`, kind: step.kind, side: step.side, steps: [step] });
  };
  let side = null;
  data.walk.forEach((step, i) => {
    if (step.side !== side && !(done.has(`text-${step.side}`)) && step.side !== undefined && step.side !== null) {
      side = step.side;
      done.add(`text-${side}`);
      push({ id: `tokens-${side}`, kind: "tokens", side, steps: [] });
    }
    const layer = inLayer.get(i);
    if (layer) {
      if (done.has(layer)) return;
      done.add(layer);
      d3.range(...layer.steps).map((n) => data.walk[n]).filter((one) => INPUT.has(one.kind)).forEach(addInput); // turned or biased inside of attention
      for (const station of splitLayer(layer, d3.range(...layer.steps).map((n) => data.walk[n]).filter((one) => !INPUT.has(one.kind)))) push(station);
    } else if (INPUT.has(step.kind)) addInput(step);
    else if (step.kind !== "head") {
      push({ id: step.path || `step-${i}`, kind: step.kind, side: step.side, steps: [step], stack: step.stack });
    }
  });
  const last = data.output?.side ?? data.sides.length - 1;
  push({ id: "output", kind: "output", side: last, steps: data.walk.filter((step) => step.kind === "head") });
  if (data.lens) push({ id: "lens", kind: "lens", side: last, steps: [] });
  if (data.patching) push({ id: "patching", kind: "patching", side: last, steps: [] });
  if (data.learnt?.length) push({ id: "learnt", kind: "learnt", side: last, steps: [], heads: Math.max(0, ...data.learnt[0].attention.map(({ shape }) => shape[0])) });
  if (data.generation) push({ id: "generation", kind: "generation", side: last, steps: [] });
  if (data.levers) push({ id: "levers", kind: "levers", side: last, steps: [] });
  push({ id: "cost", kind: "cost", side: last, steps: [] });
  const heads = Math.max(0, ...data.walk.map(({ values }) => values.weights ? data.values[values.weights].shape[0] : 0));
  return [{ id: "glance", kind: "glance", side: last, steps: [], heads }, ...stations];
}

/* A layer as one station for each of its parts, with the norms and residuals around it. */
function splitLayer(layer, steps) {
  const before = steps[0]?.kind === "norm", parts = [];
  let open = null, pending = [];
  for (const step of steps) {
    if (CORES.has(step.kind) && !(open && !open.steps.some((one) => one.kind === "residual") && step.kind === "unknown")) {
      open = { id: step.path, kind: step.kind, side: step.side, core: step, steps: [...pending, step], layer, stack: layer.stack };
      pending = [];
      parts.push(open);
    } else if (open === null) pending.push(step);
    else if (step.kind === "norm" && before && open.steps[open.steps.length - 1].kind === "residual") pending.push(step);
    else open.steps.push(step);
  }
  if (pending.length) {
    if (open) open.steps.push(...pending);
    else parts.push({ id: layer.path, kind: "unknown", side: layer.side, core: pending[0], steps: pending, layer, stack: layer.stack });
  }
  return parts;
}

const layerCounts = () => [...new Set(page.data.layers.map(({ stack }) => stack))].map((stack) => page.data.layers.filter((layer) => layer.stack === stack).length);

/* Names that the reader sees. */
const stackName = (stack) => stack === "encoder" ? t("Encoder") : stack === "decoder" ? t("Decoder") : t("Layers");
const sideName = (side) => page.data.sides.length === 1 ? t("Text") : side === 0 ? t("Source text") : t("Target text");
const KIND_NAMES = {
  attention: () => t("Attention"), linear_attention: () => t("Linear attention"), feed_forward: () => t("Feed-forward"),
  moe: () => t("Mixture of experts"), recurrent: () => t("Recurrence"), conv: () => t("Convolution"), norm: () => t("Norm"),
  residual: () => t("Residual"), projection: () => t("Projection"), pooling: () => t("Pooling"), embedding: () => t("Embedding"),
  lens: () => t("On the way"), patching: () => t("Two texts"), learnt: () => t("How it learnt"), glance: () => t("The model at a glance"), position: () => t("Position"), tokens: () => t("Text to tokens"), output: () => t("Output"),
  generation: () => t("Step by step"), levers: () => t("What if"), cost: () => t("Cost"), unknown: () => t("Other part"), head: () => t("Output head"), activation: () => t("Activation"),
};
function stationName(station) {
  const core = station.core;
  if (core && (core.kind === "attention" || core.kind === "linear_attention")) {
    if (isCross(core)) return t("Cross-attention");
    return core.kind === "linear_attention" ? t("Linear attention") : t("Self-attention");
  }
  if (station.kind === "norm") return station.id.endsWith("final_norm") ? t("Final norm") : t("Norm");
  return KIND_NAMES[station.kind]?.() ?? station.kind;
}
/* The head of a column that names the rows of an output: a model that writes guesses what comes after each. */
function rowsHead() {
  const { kind } = page.data.output;
  return ["classes", "vector"].includes(kind) ? h("td") : h("th", { scope: "col" }, kind === "next token" ? t("after") : t("token"));
}
const isCross = (step) => step.facts?.cross || (step.memory_side !== null && step.memory_side !== undefined);
const keySide = (step) => isCross(step) ? step.memory_side ?? 0 : step.side;

const currentStation = () => page.stations.find((station) => station.id === state.station) ?? page.stations[0];

/* The station of another layer that does the same; else the first of that layer. */
function sameInLayer(station, stack, index) {
  const there = page.stations.filter((one) => one.layer?.stack === stack && one.layer.index === index);
  const here = page.stations.filter((one) => one.layer && one.layer === station.layer);
  return there.find((one) => one.kind === station.kind && stationName(one) === stationName(station)) ?? there[Math.max(here.indexOf(station), 0)] ?? there[0];
}
const headsOf = (station) => station.heads ?? station.core?.facts?.heads ?? (station.core?.values?.weights ? shapeOf(station.core.values.weights)[0] : 0);
