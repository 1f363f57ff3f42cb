// The edges of a chart: names of rows and columns where there is room, positions where there is not. Knows the chart's
// geometry and nothing of weights.

import { ink } from "./colour.js";
import { counted } from "./numbers.js";

export const NAMED_FROM = 11; // pixels of a cell that has its name beside it
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
function fitted(pen, text, room) {
  if (text.length > 60) text = [...text].slice(0, 60).join("") + "…";
  if (pen.measureText(text).width <= room) return text;
  const characters = [...text];
  while (characters.length > 1 && pen.measureText(characters.join("") + "…").width > room) characters.pop();
  return characters.join("") + "…";
}

/** @param {number} cell pixels */
function fontOf(cell) {
  return `${Math.round(Math.max(11, Math.min(14, cell * 0.62)))}px ${ink("sans")}`;
}

/**
 * The widest of the first names, in pixels.
 * @param {number} count
 * @param {(i: number) => string} name
 * @param {number} most pixels
 */
export function widest(count, name, most) {
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
function* inView(axis) {
  const from = Math.max(0, Math.floor(axis.first));
  for (let i = from; i < axis.count; i++) {
    const place = axis.start + (i - axis.first) * axis.zoom;
    if (place > axis.start + axis.length) return;
    if (place + axis.zoom / 2 >= axis.start && place + axis.zoom / 2 <= axis.start + axis.length) yield [i, place];
  }
}

/** @param {Axis} axis @returns {Generator<[number, number]>} round positions, far enough apart */
function* marksOf(axis) {
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
export function rowAxis(pen, axis, x) {
  pen.textAlign = "right";
  pen.textBaseline = "middle";
  if (axis.zoom < NAMED_FROM) {
    pen.font = fontOf(0);
    pen.fillStyle = ink("soft");
    for (const [i, y] of marksOf(axis)) {
      pen.fillText(counted(i), x - 9, Math.max(axis.start + 5, y));
      pen.fillRect(x - 6, Math.round(y), 5, 1);
    }
    return;
  }
  for (const [i, y] of inView(axis)) {
    pen.font = (axis.strong(i) ? "600 " : "") + fontOf(axis.zoom);
    pen.fillStyle = ink(axis.strong(i) ? "accent" : "ink");
    pen.fillText(fitted(pen, axis.name(i), x - 12), x - 7, y + axis.zoom / 2 + 1);
  }
}

/**
 * Names of the columns, above y: slanted where they are wider than their cells.
 * @param {CanvasRenderingContext2D} pen
 * @param {Axis} axis
 * @param {number} y
 * @param {number} broad the widest of them
 */
export function columnAxis(pen, axis, y, broad) {
  pen.textBaseline = "middle";
  if (axis.zoom < NAMED_FROM) {
    pen.font = fontOf(0);
    pen.fillStyle = ink("soft");
    for (const [i, x] of marksOf(axis)) {
      pen.textAlign = x < axis.start + 12 ? "left" : "center";
      pen.fillText(counted(i), x, y - 13);
      pen.fillRect(Math.round(x), y - 6, 1, 5);
    }
    return;
  }
  const flat = broad + 6 <= axis.zoom;
  pen.textAlign = flat ? "center" : "left";
  for (const [i, x] of inView(axis)) {
    pen.font = (axis.strong(i) ? "600 " : "") + fontOf(axis.zoom);
    pen.fillStyle = ink(axis.strong(i) ? "accent" : "ink");
    pen.save();
    pen.translate(x + axis.zoom / 2, y - (flat ? 11 : 7));
    if (!flat) pen.rotate(SLANT);
    pen.fillText(fitted(pen, axis.name(i), flat ? axis.zoom : (y - 12) / Math.sin(-SLANT)), 0, 0);
    pen.restore();
  }
}

/**
 * How much room slanted or flat names of columns take: above the cells, and beyond the last of them.
 * @param {number} broad the widest
 * @param {number} cell
 */
export function roomForColumns(broad, cell) {
  if (cell < NAMED_FROM) return { above: 26, beyond: 16 };
  if (broad + 6 <= cell) return { above: 26, beyond: 8 };
  return {
    above: Math.ceil(broad * Math.sin(-SLANT)) + 18,
    beyond: Math.max(8, Math.ceil(broad * Math.cos(SLANT) - cell / 2 + 10))
  };
}
