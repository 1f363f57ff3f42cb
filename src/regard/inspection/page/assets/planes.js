// Planes: one picture's worth of numbers each, whatever they are made from. One head, the mean of all, a matrix that is
// at hand, the difference of two. They know what a row is called; they do not draw.

import { visible } from "./projected.js";
import { weight } from "./numbers.js";
import { levelsOf, partOf, sizesOf } from "./source.js";
import { seen } from "./text.js";

const WHOLE = 1 << 20; // cells of a matrix that the page holds at once

/**
 * One head of an attention.
 * @param {Desk} desk
 * @param {number} trace
 * @param {number} attention
 * @param {number} head
 * @returns {Plane}
 */
export function headPlane(desk, trace, attention, head) {
  const one = desk.traces[trace].attentions[attention];
  const { rows, columns } = sizesOf(desk.traces[trace], one);
  const [row, column] = [desk.traces[trace].sides[one.queries].tokens, desk.traces[trace].sides[one.keys].tokens];
  return {
    name: `${one.name}, head ${head}`,
    rows,
    columns,
    signed: false,
    levels: levelsOf(one.data, Math.max(rows, columns)),
    rowName: (i) => seen(row[i]),
    columnName: (j) => seen(column[j]),
    masked: maskOf(one, rows, columns),
    map: (pane, size) => desk.source.map(trace, attention, head, pane, size)
  };
}

/**
 * @param {Attention} attention
 * @param {number} rows
 * @param {number} columns
 * @returns {Plane["masked"]}
 */
export function maskOf(attention, rows, columns) {
  return (row, column) => {
    const seen = visible(attention.mask, rows, columns, row);
    return seen && (column < seen[0] || column >= seen[1]);
  };
}

/**
 * What a cell of a plane holds, in words: its weight, or that nobody may look there.
 * @param {Plane} plane
 * @param {number} row
 * @param {number} column
 * @param {number | undefined} value
 */
export function told(plane, row, column, value) {
  if (value === undefined) return "…";
  const masked = value === 0 && plane.masked(row, column);
  return masked ? "masked" : masked === null ? "0 or masked" : weight(value);
}

/**
 * Whether the page can hold an attention's matrix whole.
 * @param {Trace} trace
 * @param {Attention} attention
 */
export function isSmall(trace, attention) {
  const { rows, columns } = sizesOf(trace, attention);
  return rows * columns <= WHOLE && attention.data.kind !== "overview";
}

/**
 * A whole small matrix: of one head, or the mean of all where `head` is −1.
 * @param {Desk} desk
 * @param {number} trace
 * @param {number} attention
 * @param {number} head
 * @returns {Promise<Float32Array>}
 */
export async function matrixOf(desk, trace, attention, head) {
  const one = desk.traces[trace].attentions[attention];
  const pane = { top: 0, left: 0, ...sizesOf(desk.traces[trace], one) };
  if (head >= 0) return (await desk.source.map(trace, attention, head, pane, 1)).values;
  const sums = new Float64Array(pane.rows * pane.columns);
  for (let h = 0; h < one.heads; h++) {
    const { values } = await desk.source.map(trace, attention, h, pane, 1);
    for (let i = 0; i < sums.length; i++) sums[i] += values[i];
  }
  return Float32Array.from(sums, (sum) => sum / one.heads);
}

/**
 * A matrix that is at hand.
 * @param {string} name
 * @param {Float32Array} values
 * @param {Unit[]} rows
 * @param {Unit[]} columns
 * @param {Plane["masked"]} masked
 * @returns {Plane}
 */
export function matrixPlane(name, values, rows, columns, masked) {
  const longest = Math.max(rows.length, columns.length);
  return {
    name,
    rows: rows.length,
    columns: columns.length,
    masked,
    signed: values.some((value) => value < 0),
    levels: levelsOf({ kind: "served" }, longest),
    rowName: (i) => rows[i].name,
    columnName: (j) => columns[j].name,
    map: async (pane, size) => partOf(values, columns.length, pane, size)
  };
}

/**
 * What the second has more than the first, cell by cell; they have the same sizes.
 * @param {Plane} first
 * @param {Plane} second
 * @returns {Plane}
 */
export function differencePlane(first, second) {
  return {
    ...second,
    name: "second − first",
    signed: true,
    levels: second.levels.filter((size) => first.levels.includes(size)),
    masked: (row, column) => first.masked(row, column) && second.masked(row, column),
    async map(pane, size) {
      const [a, b] = [await first.map(pane, size), await second.map(pane, size)];
      return { ...b, values: b.values.map((value, i) => value - a.values[i]) };
    }
  };
}

/**
 * From tokens to units, such as words: a row is the mean over its tokens, a column the sum over its tokens.
 * @param {Float32Array} values
 * @param {number} columns of `values`
 * @param {Unit[]} down
 * @param {Unit[]} across
 */
export function grouped(values, columns, down, across) {
  const out = new Float32Array(down.length * across.length);
  down.forEach((row, i) =>
    across.forEach((column, j) => {
      let sum = 0;
      for (let t = row.first; t <= row.last; t++)
        for (let u = column.first; u <= column.last; u++) sum += values[t * columns + u];
      out[i * across.length + j] = sum / (row.last - row.first + 1);
    })
  );
  return out;
}

/**
 * The rows of a map that belong to units of a side, where they lie `offset` rows later than the tokens.
 * @param {Unit[]} units
 * @param {number} rows
 * @param {number} offset
 * @returns {{kept: Unit[], moved: Unit[]}} the units, and the same with the rows of the map as their tokens
 */
export function moved(units, rows, offset) {
  const kept = units.filter((unit) => unit.last + offset >= 0 && unit.first + offset < rows);
  return {
    kept,
    moved: kept.map((unit) => ({
      ...unit,
      first: Math.max(0, unit.first + offset),
      last: Math.min(rows - 1, unit.last + offset)
    }))
  };
}
