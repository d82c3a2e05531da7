// What the page uses of d3; esbuild leaves the rest out of d3.min.js.
export { create } from "d3-selection";
export { scaleLinear } from "d3-scale";
export { line, curveMonotoneX, linkHorizontal } from "d3-shape";
export { extent, max, sum, range } from "d3-array";
