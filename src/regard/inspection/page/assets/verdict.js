// What can be said of a trace in words: which input words had no effect, which ones no output word looked at, which
// output words the model doubted. Shares of influence and of attention, word by word. This file does not draw.

import { isSeparator } from "./text.js";

/** A row of influence is shown as shares if its sum is above this number of nats. */
const MIN_ROW = 0.3;
/** A word has no effect if no output word changes by this number of nats without it. */
export const MIN_EFFECT = 0.15;
/** The sum of attention below which a word counts as not looked at. */
const MIN_COVERAGE = 0.2;
/** A word that the model gives a lower probability is doubted. */
const MIN_SURE = 0.6;
/** What it is worth that a line ends with a sentence, as a sum of shares. */
const SENTENCE = 1.5;
/** Weights from which "it was looked at" is said. */
const MIN_LOOK = 0.2;

/** @typedef {{rows: number, columns: number, values: Float32Array}} Matrix */
/**
 * A fact: its kind, the words that it names with their side, and the word where its evidence is largest.
 * @typedef {{kind: "no effect" | "not needed" | "not read" | "doubted", side: "source" | "target", words: number[],
 *   at?: number, weight?: number}} Fact
 */

/** @param {string} name whether a name is punctuation, or a token of the model's own */
export function isMark(name) {
  return !/[\p{L}\p{N}]/u.test(name) || isSeparator(name);
}

/**
 * Influence from output words to input words, in nats, the input words without effect, and those without which some
 * output word is likelier and none is less likely. The values of a word are the sums over its tokens; a column that
 * stands for several words is divided among them.
 * @param {Trace} trace
 * @param {Unit[]} target units of the side of the rows
 * @param {Unit[]} source units of the side of the columns
 * @returns {{matrix: Matrix, idle: number[], unneeded: number[], groups: number[][]} | null} `groups` has the words of
 *   such columns
 */
export function readInfluence({ influence }, target, source) {
  if (!influence) return null;
  const [rows, columns] = [target.length, source.length];
  /** @type {Map<number, number[]>} the words of each column */
  const words = new Map();
  influence.tokens.forEach((tokens, c) => {
    const inside = source.map(({ first, last }) => tokens.some((token) => token >= first && token <= last));
    words.set(c, [...inside.keys()].filter((j) => inside[j]));
  });
  const values = new Float32Array(rows * columns);
  /** @type {Set<number>} the input words that change something */
  const active = new Set();
  /** @type {Set<number>} those that an output word needs */
  const needed = new Set();
  /** @type {Set<number>} those of which anything is known */
  const known = new Set();
  /** @param {number} first @param {number} last @param {number | null} to the row of the matrix */
  const add = (first, last, to) => {
    for (const [c, inside] of words) {
      let [sum, any] = [0, false];
      for (let t = first; t <= last; t++) {
        const value = influence.values[t]?.[c];
        if (typeof value !== "number") continue;
        sum += value;
        any = true;
      }
      for (const j of any ? inside : []) {
        known.add(j);
        if (Math.abs(sum) >= MIN_EFFECT) active.add(j);
        if (sum >= MIN_EFFECT) needed.add(j);
        if (to !== null) values[to * columns + j] += sum / inside.length;
      }
    }
  };
  const free = new Set(influence.values.keys());
  target.forEach(({ first, last }, i) => {
    for (let t = first; t <= last; t++) free.delete(t);
    add(first, last, i);
  });
  for (const t of free) add(t, t, null); // the end token can depend on a word too
  const idle = source.flatMap(({ name }, j) => (known.has(j) && !active.has(j) && !isMark(name) ? [j] : []));
  const unneeded = source.flatMap(({ name }, j) => (active.has(j) && !needed.has(j) && !isMark(name) ? [j] : []));
  const groups = [...words.values()].filter((inside) => inside.length > 1);
  return { matrix: { rows, columns, values }, idle, unneeded, groups };
}

/**
 * Influence in nats as shares: max(0, I), each row divided by its sum where that is large enough to mean something.
 * @param {Matrix} influence
 * @returns {Matrix}
 */
export function influenceShares({ rows, columns, values }) {
  const shares = new Float32Array(rows * columns);
  for (let i = 0; i < rows; i++) {
    let sum = 0;
    for (let j = 0; j < columns; j++) sum += Math.max(0, values[i * columns + j]);
    if (sum <= MIN_ROW) continue;
    for (let j = 0; j < columns; j++) shares[i * columns + j] = Math.max(0, values[i * columns + j]) / sum;
  }
  return { rows, columns, values: shares };
}

/**
 * The sum of each column, of what is above zero.
 * @param {Matrix} matrix
 */
export function columnSums({ rows, columns, values }) {
  const sums = new Float64Array(columns);
  for (let i = 0; i < rows; i++)
    for (let j = 0; j < columns; j++) sums[j] += Math.max(0, values[i * columns + j] || 0);
  return [...sums];
}

/**
 * The row where a column is largest, and its value.
 * @param {Matrix} matrix
 * @param {number} column
 */
function largestInColumn({ rows, columns, values }, column) {
  let [at, weight] = [0, -Infinity];
  for (let i = 0; i < rows; i++) {
    const value = values[i * columns + column];
    if (value > weight) [at, weight] = [i, value];
  }
  return { at, weight };
}

/**
 * The probability of each unit: the product of the probabilities of its tokens.
 * @param {Written} written
 * @param {Unit[]} units
 */
export function wordProbabilities(written, units) {
  return units.map(({ first, last }) =>
    Math.exp(written.log_probabilities.slice(first, last + 1).reduce((sum, one) => sum + one, 0))
  );
}

/**
 * What there is to say, the most important first.
 * @param {{source: Unit[], target: Unit[], attention: Matrix | null, idle: number[], unneeded?: number[],
 *   sure: number[] | null}} reading
 * @returns {Fact[]}
 */
export function findFacts({ source, target, attention, idle, unneeded = [], sure }) {
  /** @type {Fact[]} */
  const facts = [];
  if (idle.length) {
    const looked = attention ? largestInColumn(attention, idle[0]) : null;
    facts.push({
      kind: "no effect",
      side: "source",
      words: idle,
      ...(idle.length === 1 && looked && looked.weight >= MIN_LOOK ? looked : {})
    });
  }
  if (unneeded.length) facts.push({ kind: "not needed", side: "source", words: unneeded });
  const nonnegative = attention && !attention.values.some((value) => !(value >= 0));
  if (attention && nonnegative) {
    const unread = columnSums(attention)
      .map((sum, j) => ({ sum, j }))
      .filter(({ sum, j }) => sum < MIN_COVERAGE && !isMark(source[j].name) && ![...idle, ...unneeded].includes(j))
      .map(({ j }) => j);
    if (unread.length && unread.length < source.length)
      facts.push({ kind: "not read", side: "source", words: unread, ...largestInColumn(attention, unread[0]) });
  }
  const doubted = (sure ?? [])
    .map((probability, i) => ({ probability, i }))
    .filter(({ probability, i }) => probability < MIN_SURE && !isMark(target[i].name))
    .sort((a, b) => a.probability - b.probability)
    .map(({ i }) => i);
  if (doubted.length) facts.push({ kind: "doubted", side: "target", words: doubted });
  return facts;
}

/**
 * Where to cut two lines of words into pairs of lines that fit: so that the fewest links run from one pair to another,
 * with few pairs, and after the ends of sentences.
 * @param {{source: number[], target: number[]}} widths of the words, in pixels
 * @param {{source: boolean[], target: boolean[]}} ends whether a sentence ends with the word
 * @param {Matrix | null} links shares, target × source
 * @param {number} room pixels of a line
 * @returns {{source: [number, number], target: [number, number]}[]}
 */
export function cutLines(widths, ends, links, room) {
  const [n, m] = [widths.source.length, widths.target.length];
  const inside = linksBefore(links, n, m);
  const wide = n + 1;
  // At t * wide + s: the score of the best lines of the first s and t words, and where their last pair begins.
  const [best, from] = [new Float64Array(wide * (m + 1)).fill(-Infinity), new Int32Array(wide * (m + 1))];
  best[0] = 0;
  for (let t = 0; t <= m; t++)
    for (let s = 0; s <= n; s++) {
      if (!s && !t) continue;
      const at = t * wide + s;
      const bonus = (s && ends.source[s - 1] ? SENTENCE : 0) + (t && ends.target[t - 1] ? SENTENCE : 0);
      for (let [b, high] = [t, 0]; b >= 0 && fits(t, b, (high += b < t ? widths.target[b] : 0)); b--)
        for (let [a, long] = [s, 0]; a >= 0 && fits(s, a, (long += a < s ? widths.source[a] : 0)); a--) {
          if (a === s && b === t) continue;
          const own = inside[at] - inside[b * wide + s] - inside[t * wide + a] + inside[b * wide + a];
          const empty = 1 - Math.min(1, Math.max(high, long) / room); // lines are to be filled alike
          const score = best[b * wide + a] + own + bonus - (a === s || b === t ? 2 : 1) - 0.5 * empty ** 2;
          if (score > best[at]) [best[at], from[at]] = [score, b * wide + a];
        }
    }
  /** A single word fits in any case. @param {number} end @param {number} start @param {number} length */
  function fits(end, start, length) {
    return length <= room || end - start <= 1;
  }
  /** @type {{source: [number, number], target: [number, number]}[]} */
  const pairs = [];
  for (let at = m * wide + n; at > 0; at = from[at]) {
    const [t, s, b, a] = [Math.floor(at / wide), at % wide, Math.floor(from[at] / wide), from[at] % wide];
    pairs.unshift({ source: [a, s], target: [b, t] });
  }
  return pairs;
}

/**
 * The sum of all links of the first s source and t target words, at t * (n + 1) + s; if there are none, of a diagonal.
 * @param {Matrix | null} links
 * @param {number} n
 * @param {number} m
 */
function linksBefore(links, n, m) {
  const sums = new Float64Array((n + 1) * (m + 1));
  for (let t = 1; t <= m; t++)
    for (let s = 1; s <= n; s++) {
      const diagonal = Math.round(((t - 0.5) / m) * n - 0.5) === s - 1 ? 1 : 0;
      const own = links ? links.values[(t - 1) * links.columns + s - 1] || 0 : diagonal;
      const [above, at] = [(t - 1) * (n + 1) + s, t * (n + 1) + s];
      sums[at] = own + sums[above] + sums[at - 1] - sums[above - 1];
    }
  return sums;
}
