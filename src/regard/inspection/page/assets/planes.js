// Planes: the matrix of one chart each: one head, the mean of all heads, a given matrix, the difference of two. They
// know the names of rows and columns; they do not draw.

import { formatWeight } from "./numbers.js";
import { visibleText } from "./text.js";
import { blockSizes, windowMeans, attentionSize, visibleColumns } from "./weights.js";

const MAX_WHOLE = 1 << 20; // cells of a matrix that the page holds at once

/**
 * Whether the rows of an attention are the tokens of its columns, as in self-attention. The decoder's rows are named
 * after the tokens that it writes, and its columns after those that it reads.
 * @param {Trace} trace
 * @param {Attention} attention
 */
export function isSelfAttention(trace, attention) {
  if (attention.queries === attention.keys) return true;
  const { rows, columns } = attentionSize(trace, attention);
  return attention.kind === "self" && rows === columns;
}

/**
 * An attention in words: "decoder.1.cross" is "source, layer 2", "decoder.cross" is "source". Other names stay.
 * @param {Trace} trace
 * @param {Attention} attention
 */
export function attentionTitle(trace, attention) {
  const found = /^(encoder|decoder)(?:\.(\d+))?\.(self|cross)(, .+)?$/.exec(attention.name);
  if (!found) return attention.name;
  const crossing = trace.attentions.some((one) => /\.cross$/.test(one.name));
  const image = trace.sides[attention.keys].grid !== undefined;
  const what =
    found[3] === "cross"
      ? "source"
      : !crossing
        ? image
          ? "image"
          : "text"
        : found[1] === "encoder"
          ? "reads"
          : "own words";
  const layer = found[2] === undefined ? "" : `, layer ${Number(found[2]) + 1}`;
  return `${what}${layer}${found[4] === ", bonus" ? ", bonus of a token for itself" : (found[4] ?? "")}`;
}

/**
 * One head of an attention.
 * @param {App} app
 * @param {number} trace
 * @param {number} attention
 * @param {number} head
 * @returns {Plane}
 */
export function headPlane(app, trace, attention, head) {
  const one = app.traces[trace].attentions[attention];
  const { rows, columns } = attentionSize(app.traces[trace], one);
  const [row, column] = [app.traces[trace].sides[one.queries].tokens, app.traces[trace].sides[one.keys].tokens];
  return {
    name: `${attentionTitle(app.traces[trace], one)}, head ${head}`,
    code: `${one.name}, head ${head}`,
    rows,
    columns,
    signed: false,
    levels: blockSizes(one.data, Math.max(rows, columns)),
    rowName: (i) => visibleText(row[i]),
    columnName: (j) => visibleText(column[j]),
    masked: maskFunction(one, rows, columns),
    map: (region, size) => app.source.map(trace, attention, head, region, size)
  };
}

/**
 * @param {Attention} attention
 * @param {number} rows
 * @param {number} columns
 * @returns {Plane["masked"]}
 */
export function maskFunction(attention, rows, columns) {
  return (row, column) => {
    const seen = visibleColumns(attention.mask, rows, columns, row);
    return seen && (column < seen[0] || column >= seen[1]);
  };
}

/**
 * The text of a cell: its weight, or that it is masked.
 * @param {Plane} plane
 * @param {number} row
 * @param {number} column
 * @param {number | undefined} value
 */
export function describeCell(plane, row, column, value) {
  if (value === undefined) return "…";
  const masked = value === 0 && plane.masked(row, column);
  return masked ? "masked" : masked === null ? "0 or masked" : formatWeight(value);
}

/**
 * Whether the page can hold an attention's matrix whole.
 * @param {Trace} trace
 * @param {Attention} attention
 */
export function isSmall(trace, attention) {
  const { rows, columns } = attentionSize(trace, attention);
  return rows * columns <= MAX_WHOLE && attention.data.kind !== "overview";
}

/**
 * A whole small matrix: of one head, or the mean of all where `head` is −1.
 * @param {App} app
 * @param {number} trace
 * @param {number} attention
 * @param {number} head
 * @returns {Promise<Float32Array>}
 */
export async function wholeMatrix(app, trace, attention, head) {
  const one = app.traces[trace].attentions[attention];
  const region = { top: 0, left: 0, ...attentionSize(app.traces[trace], one) };
  if (head >= 0) return (await app.source.map(trace, attention, head, region, 1)).values;
  const sums = new Float64Array(region.rows * region.columns);
  for (let h = 0; h < one.heads; h++) {
    const { values } = await app.source.map(trace, attention, h, region, 1);
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
    levels: blockSizes({ kind: "served" }, longest),
    rowName: (i) => rows[i].name,
    columnName: (j) => columns[j].name,
    map: async (region, size) => windowMeans(values, columns.length, region, size)
  };
}

/**
 * What the second has more than the first, for the rows and columns that both have.
 * @param {Plane} first
 * @param {Plane} second
 * @param {{rows: [number, number][], columns: [number, number][]}} [pairs] their places in both, if those differ
 * @returns {Plane}
 */
export function differencePlane(first, second, pairs) {
  const shared = { ...second, name: "second − first", code: undefined, signed: true };
  if (!pairs)
    return {
      ...shared,
      levels: second.levels.filter((size) => first.levels.includes(size)),
      masked: (row, column) => first.masked(row, column) && second.masked(row, column),
      async map(region, size) {
        const [a, b] = [await first.map(region, size), await second.map(region, size)];
        return { ...b, values: b.values.map((value, i) => value - a.values[i]) };
      }
    };
  const { rows, columns } = pairs;
  /** @type {Promise<Float32Array> | null} */
  let made = null;
  const values = async () => {
    const [a, b] = await Promise.all(
      [first, second].map((one) => one.map({ top: 0, left: 0, rows: one.rows, columns: one.columns }, 1))
    );
    const out = new Float32Array(rows.length * columns.length);
    rows.forEach(([i, k], y) =>
      columns.forEach(([j, l], x) => {
        out[y * columns.length + x] = b.values[k * second.columns + l] - a.values[i * first.columns + j];
      })
    );
    return out;
  };
  return {
    ...shared,
    rows: rows.length,
    columns: columns.length,
    levels: blockSizes({ kind: "served" }, Math.max(rows.length, columns.length)),
    rowName: (i) => second.rowName(rows[i][1]),
    columnName: (j) => second.columnName(columns[j][1]),
    masked: (i, j) => first.masked(rows[i][0], columns[j][0]) && second.masked(rows[i][1], columns[j][1]),
    async map(region, size) {
      made ??= values();
      return windowMeans(await made, columns.length, region, size);
    }
  };
}

/**
 * The names of the rows or columns of a plane.
 * @param {number} count
 * @param {(i: number) => string} name
 */
export function namesOf(count, name) {
  return Array.from({ length: count }, (_, i) => name(i));
}

/**
 * From tokens to units, such as words: a row is the mean over its tokens, a column the sum over its tokens.
 * @param {Float32Array} values
 * @param {number} columns of `values`
 * @param {Unit[]} down
 * @param {Unit[]} across
 */
export function groupTokens(values, columns, down, across) {
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
export function shiftRows(units, rows, offset) {
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
