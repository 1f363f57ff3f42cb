// Drawing on the canvas of a chart: axes with names or positions, grid lines and outlines. This file reads the
// chart and changes nothing.

import { formatCount } from "./numbers.js";
import { themeValue } from "./scale.js";

export const MIN_LABELLED_CELL = 11; // pixels between two names
const MAX_STEP = 5; // cells of which one has its name; where it would be more, positions stand instead
const SLANT = -Math.PI / 3.6;

/**
 * What an axis needs to know: `at` pixels for a token, the first token in view, and the space.
 * @typedef {{count: number, first: number, zoom: number, start: number, length: number, name: (i: number) => string,
 *   strong: (i: number) => boolean}} Axis
 */

/**
 * A text cut to a width.
 * @param {CanvasRenderingContext2D} pen
 * @param {string} text
 * @param {number} room
 */
function truncated(pen, text, room) {
  if (text.length > 60) text = [...text].slice(0, 60).join("") + "…";
  if (pen.measureText(text).width <= room) return text;
  const characters = [...text];
  while (characters.length > 1 && pen.measureText(characters.join("") + "…").width > room) characters.pop();
  return characters.join("") + "…";
}

/** @param {number} cell pixels */
function fontOf(cell) {
  return `${Math.round(Math.max(11, Math.min(14, cell * 0.62)))}px ${themeValue("sans")}`;
}

/**
 * The widest of the first names, in pixels.
 * @param {number} count
 * @param {(i: number) => string} name
 * @param {number} most pixels
 */
export function widestName(count, name, most) {
  const pen = /** @type {CanvasRenderingContext2D} */ (document.createElement("canvas").getContext("2d"));
  pen.font = fontOf(24);
  let room = 0;
  for (let i = 0; i < Math.min(count, 160); i++) room = Math.max(room, pen.measureText(name(i).slice(0, 60)).width);
  return Math.min(most, Math.ceil(room));
}

/**
 * @param {Axis} axis
 * @returns {Generator<[number, number]>} tokens in view with the pixels where they begin
 */
function* visibleTokens(axis) {
  const from = Math.max(0, Math.floor(axis.first));
  for (let i = from; i < axis.count; i++) {
    const place = axis.start + (i - axis.first) * axis.zoom;
    if (place > axis.start + axis.length) return;
    if (place + axis.zoom / 2 >= axis.start && place + axis.zoom / 2 <= axis.start + axis.length) yield [i, place];
  }
}

/**
 * How many cells have one name between them: 1 for names of all, 0 for positions in their place.
 * @param {number} cell pixels
 */
function labelStep(cell) {
  const step = Math.ceil(MIN_LABELLED_CELL / cell);
  return step <= MAX_STEP ? step : 0;
}

/**
 * The tokens in view that have room for their names. What is pointed at or pinned takes the room of its neighbours.
 * @param {Axis} axis
 * @returns {Generator<[number, number]>}
 */
function* namedTokens(axis) {
  const step = labelStep(axis.zoom);
  const beside = Array.from({ length: step - 1 }, (_, k) => k + 1);
  for (const [i, place] of visibleTokens(axis)) {
    const free = i % step === 0 && !beside.some((k) => axis.strong(i + k) || axis.strong(i - k));
    if (free || axis.strong(i)) yield [i, place];
  }
}

/** @param {Axis} axis @returns {Generator<[number, number]>} round positions, far enough apart */
function* tickPositions(axis) {
  let step = 1;
  for (let k = 0; step * axis.zoom < 56; k++) step = [1, 2, 5][k % 3] * 10 ** Math.floor(k / 3);
  for (let i = Math.ceil(Math.max(0, axis.first) / step) * step; i < axis.count; i += step) {
    const place = axis.start + (i - axis.first) * axis.zoom;
    if (place > axis.start + axis.length) return;
    yield [i, place];
  }
}

/**
 * Names of the rows, to the left of x.
 * @param {CanvasRenderingContext2D} pen
 * @param {Axis} axis
 * @param {number} x
 */
function rowAxis(pen, axis, x) {
  pen.textAlign = "right";
  pen.textBaseline = "middle";
  if (!labelStep(axis.zoom)) {
    pen.font = fontOf(0);
    pen.fillStyle = themeValue("soft");
    for (const [i, y] of tickPositions(axis)) {
      pen.fillText(formatCount(i), x - 9, Math.max(axis.start + 5, y));
      pen.fillRect(x - 6, Math.round(y), 5, 1);
    }
    return;
  }
  for (const [i, y] of namedTokens(axis)) {
    pen.font = (axis.strong(i) ? "600 " : "") + fontOf(axis.zoom);
    pen.fillStyle = themeValue(axis.strong(i) ? "accent" : "ink");
    pen.fillText(truncated(pen, axis.name(i), x - 12), x - 7, y + axis.zoom / 2 + 1);
  }
}

/**
 * Names of the columns, above y: slanted where they are wider than their cells.
 * @param {CanvasRenderingContext2D} pen
 * @param {Axis} axis
 * @param {number} y
 * @param {number} broad the widest of them
 */
function columnAxis(pen, axis, y, broad) {
  pen.textBaseline = "middle";
  if (!labelStep(axis.zoom)) {
    pen.font = fontOf(0);
    pen.fillStyle = themeValue("soft");
    for (const [i, x] of tickPositions(axis)) {
      pen.textAlign = x < axis.start + 12 ? "left" : "center";
      pen.fillText(formatCount(i), x, y - 13);
      pen.fillRect(Math.round(x), y - 6, 1, 5);
    }
    return;
  }
  const flat = broad + 6 <= axis.zoom;
  pen.textAlign = flat ? "center" : "left";
  for (const [i, x] of namedTokens(axis)) {
    pen.font = (axis.strong(i) ? "600 " : "") + fontOf(axis.zoom);
    pen.fillStyle = themeValue(axis.strong(i) ? "accent" : "ink");
    pen.save();
    pen.translate(x + axis.zoom / 2, y - (flat ? 11 : 7));
    if (!flat) pen.rotate(SLANT);
    pen.fillText(truncated(pen, axis.name(i), flat ? axis.zoom : (y - 12) / Math.sin(-SLANT)), 0, 0);
    pen.restore();
  }
}

/**
 * How much room slanted or flat names of columns take: above the cells, and beyond the last of them.
 * @param {number} broad the widest
 * @param {number} cell
 */
export function columnLabelSpace(broad, cell) {
  if (!labelStep(cell)) return { above: 26, beyond: 16 };
  if (broad + 6 <= cell) return { above: 26, beyond: 8 };
  return {
    above: Math.ceil(broad * Math.sin(-SLANT)) + 18,
    beyond: Math.max(8, Math.ceil(broad * Math.cos(SLANT) - cell / 2 + 10))
  };
}

/** @typedef {import("./chart.js").Chart} Chart */

/**
 * Lines between cells, and a cross in what is not finite.
 * @param {CanvasRenderingContext2D} pen
 * @param {Chart} chart
 */
export function drawCells(pen, chart) {
  const { view, plot, plane } = chart;
  const [bottom, right] = [
    Math.min(plane.rows, view.y + plot.height / view.zy),
    Math.min(plane.columns, view.x + plot.width / view.zx)
  ];
  pen.fillStyle = themeValue("line");
  for (let i = Math.ceil(view.y); i < bottom; i++)
    pen.fillRect(plot.x, plot.y + (i - view.y) * view.zy - 0.5, plot.width, 1);
  for (let j = Math.ceil(view.x); j < right; j++)
    pen.fillRect(plot.x + (j - view.x) * view.zx - 0.5, plot.y, 1, plot.height);
  pen.strokeStyle = themeValue("paper");
  for (let i = Math.floor(view.y); i < bottom; i++)
    for (let j = Math.floor(view.x); j < right; j++) {
      const value = chart.valueAt(i, j);
      if (value === undefined || value - value === 0) continue;
      const [x, y] = [plot.x + (j - view.x + 0.3) * view.zx, plot.y + (i - view.y + 0.3) * view.zy];
      pen.beginPath();
      pen.moveTo(x, y);
      pen.lineTo(x + 0.4 * view.zx, y + 0.4 * view.zy);
      pen.moveTo(x + 0.4 * view.zx, y);
      pen.lineTo(x, y + 0.4 * view.zy);
      pen.stroke();
    }
}

/**
 * What is pinned and what is pointed at.
 * @param {CanvasRenderingContext2D} pen
 * @param {Chart} chart
 */
export function drawOutlines(pen, chart) {
  const { view, plot, plane } = chart;
  const { down, across } = chart.blocks();
  /** @param {number} row @param {number} column @param {number} rows @param {number} columns @param {number} line */
  const box = (row, column, rows, columns, line) => {
    const [x, y] = [plot.x + (column - view.x) * view.zx, plot.y + (row - view.y) * view.zy];
    for (const [colour, thick] of /** @type {[string, number][]} */ ([
      ["paper", line + 2],
      ["accent", line]
    ])) {
      pen.strokeStyle = themeValue(colour);
      pen.lineWidth = thick;
      pen.strokeRect(x, y, Math.max(2, columns * view.zx), Math.max(2, rows * view.zy));
    }
  };
  if (chart.pinned.row !== null) box(chart.pinned.row, 0, 1, plane.columns, 2);
  if (chart.pinned.column !== null) box(0, chart.pinned.column, plane.rows, 1, 2);
  if (chart.at)
    box(Math.floor(chart.at.row / down) * down, Math.floor(chart.at.column / across) * across, down, across, 2);
}

/**
 * Names or positions of rows and columns.
 * @param {CanvasRenderingContext2D} pen
 * @param {Chart} chart
 */
export function drawEdges(pen, chart) {
  const { plane, plot, view } = chart;
  rowAxis(
    pen,
    {
      count: plane.rows,
      first: view.y,
      zoom: view.zy,
      start: plot.y,
      length: plot.height,
      name: plane.rowName,
      strong: (i) => i === chart.at?.row || i === chart.pinned.row
    },
    plot.x
  );
  columnAxis(
    pen,
    {
      count: plane.columns,
      first: view.x,
      zoom: view.zx,
      start: plot.x,
      length: plot.width,
      name: plane.columnName,
      strong: (j) => j === chart.at?.column || j === chart.pinned.column
    },
    plot.y,
    chart.names.columns
  );
}
