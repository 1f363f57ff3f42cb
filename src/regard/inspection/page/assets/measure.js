// What a head looks at, by measurement: the share of its weight that lies in each of a few patterns, and its entropy.
// Knows weights and tokens; draws nothing.

import { sizesOf } from "./source.js";
import { visible } from "./projected.js";
import { isSeparator } from "./text.js";

/** A head is named after a pattern that holds at least half of its weight ... */
const SHARE = 0.5;
/** ... and at least twice what looking everywhere alike would put there. */
const LIFT = 2;
/** A head looks everywhere alike where its entropy is this part of the largest possible. */
const EVEN = 0.95;

const DIAGONAL = "diagonal";
const ROWS = 64; // rows of a long map that are measured, evenly spaced

/** @typedef {{name: string, share: number, even: number}} Share of the weight, and the share of even looking */
/** @typedef {{entropy: number, shares: Share[], name: string, rows: number, of: number}} Measured */

/**
 * Patterns as columns of a row: [name, the columns].
 * @param {Trace} trace
 * @param {Attention} attention
 * @returns {[string, (row: number) => number[]][]}
 */
function patterns(trace, attention) {
  const { rows, columns } = sizesOf(trace, attention);
  const tokens = trace.sides[attention.keys].tokens;
  const separators = tokens.length <= 65536 ? [...tokens.keys()].filter((j) => isSeparator(tokens[j])) : [];
  /** @type {[string, (row: number) => number[]][]} */
  const places = [
    ["separators", () => separators],
    ["first token", () => [0]],
    ["last token", () => [columns - 1]]
  ];
  const shift = columns - rows;
  const near = [-2, -1, 0, 1, 2];
  if (attention.queries === attention.keys)
    return [
      ["itself", (i) => [i + shift]],
      ["previous token", (i) => [i + shift - 1]],
      ["next token", (i) => [i + shift + 1]],
      ...places,
      [`${DIAGONAL} ±2`, (i) => near.map((step) => i + shift + step)]
    ];
  const slope = rows > 1 ? (columns - 1) / (rows - 1) : 0;
  return [...places, [`${DIAGONAL} ±1`, (i) => [-1, 0, 1].map((step) => Math.round(i * slope) + step)]];
}

/**
 * Measure one head.
 * @param {Desk} desk
 * @param {number} number of the trace
 * @param {number} attention
 * @param {number} head
 * @returns {Promise<Measured | null>} null where the page has only an overview
 */
export async function measured(desk, number, attention, head) {
  const trace = desk.traces[number];
  const one = trace.attentions[attention];
  if (one.data.kind === "overview") return null;
  const { rows, columns } = sizesOf(trace, one);
  const all = rows * columns <= 1 << 18;
  const count = all ? rows : Math.min(rows, one.data.kind === "served" ? ROWS / 4 : ROWS);
  const chosen = Array.from({ length: count }, (_, i) => Math.floor(((i + 0.5) * rows) / count));
  const whole = all
    ? (await desk.source.map(number, attention, head, { top: 0, left: 0, rows, columns }, 1)).values
    : null;
  const sums = patterns(trace, one).map(([name, columnsOf]) => ({
    name,
    columnsOf,
    inside: 0,
    even: 0,
    total: 0,
    rows: 0
  }));
  let [entropy, possible] = [0, 0];
  for (const row of chosen) {
    const values = whole
      ? whole.subarray(row * columns, (row + 1) * columns)
      : (await desk.source.map(number, attention, head, { top: row, left: 0, rows: 1, columns }, 1)).values;
    const [from, to] = visible(one.mask, rows, columns, row) ?? [0, columns];
    let total = 0;
    for (let j = 0; j < columns; j++) {
      total += Math.abs(values[j]);
      entropy -= values[j] === 0 ? 0 : (values[j] * Math.log(values[j])) / count;
    }
    possible += Math.log(Math.max(1, to - from)) / count;
    for (const sum of sums) {
      const inside = sum.columnsOf(row).filter((j) => j >= from && j < to);
      if (!inside.length) continue;
      sum.rows++;
      sum.total += total;
      sum.even += (total * inside.length) / (to - from);
      for (const j of inside) sum.inside += Math.abs(values[j]);
    }
  }
  // A place that few rows may look at says little of the head: the end of a text under a causal mask.
  const shares = sums
    .filter((sum) => sum.total > 0 && sum.rows >= count / 2)
    .map(({ name, inside, even, total }) => ({ name, share: inside / total, even: even / total }))
    .sort((a, b) => b.share - a.share);
  const fit = shares.filter(({ share, even }) => share >= SHARE && share >= LIFT * even);
  // The diagonal is broad: it gives its name where no single place does.
  const best = fit.find(({ name }) => !name.startsWith(DIAGONAL)) ?? fit[0];
  const alike = possible > 0 && entropy >= EVEN * possible ? "everywhere alike" : "";
  return { entropy, shares, name: best?.name ?? alike, rows: count, of: rows };
}

export const HOW_NAMED =
  `A head is named after the place that holds at least ${SHARE * 100}% of its weight and at least ${LIFT} times what ` +
  `looking everywhere alike would put there; “everywhere alike” means an entropy of at least ${EVEN * 100}% of the ` +
  "largest possible. Separators are tokens that look like </s> or [SEP].";
