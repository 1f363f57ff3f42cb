// The tree of a beam search as data: paths, the numbers that results are ranked by, the rivals of a word, where two
// results part, chains of nodes without a branch, and their layout. This file does not draw.

import { isSeparator, joinTokens, visibleText } from "./text.js";

/** @typedef {{text: string, probability: number, prefix: string[]}} Rival with the tokens that force it */
/** @typedef {{own: string, best: string, probability: number, against: number}} Parting */
/** @typedef {{nodes: number[], parent: number, children: number[]}} Chain whose numbers are those of chains */
/** @typedef {{chain: number, x: number, line: number}} Placed */

/**
 * Put the nodes of every search together: the page has them as one list for each key, which is shorter.
 * @param {Trace} trace
 */
export function unpackSearch({ search }) {
  const packed = /** @type {any} */ (search?.nodes);
  if (!search || !packed || Array.isArray(packed)) return;
  const [ended, kept] = [new Set(packed.ended), new Set(packed.kept)];
  /** @type {SearchNode[]} */
  const nodes = [];
  packed.token.forEach((/** @type {string} */ token, /** @type {number} */ i) => {
    const [parent, log_probability, score] = [packed.parent[i], packed.log_probability[i], packed.score?.[i]];
    const total = packed.total?.[i] ?? (nodes[parent]?.total ?? 0) + log_probability;
    nodes.push({ parent, token, log_probability, total, ended: ended.has(i), kept: kept.has(i), score });
  });
  search.nodes = nodes;
}

/**
 * The nodes from the beginning to this one.
 * @param {Search} search
 * @param {number} number
 */
export function pathTo(search, number) {
  const path = [];
  for (let at = number; at >= 0; at = search.nodes[at].parent) path.unshift(at);
  return path;
}

/**
 * The tokens of a path.
 * @param {Search} search
 * @param {number[]} path
 */
export function tokensOf(search, path) {
  return path.map((number) => search.nodes[number].token);
}

/** @type {Record<string, string>} what a trace says of its ranking, in words */
const RANKINGS = { mean: "mean log-probability", total: "log-probability" };

/** @param {number[]} numbers */
function falling(numbers) {
  return numbers.every((number, i) => i === 0 || number <= numbers[i - 1] + 1e-6);
}

/**
 * The number that results are ranked by, one for each, and its name. A trace without scores is ranked by the mean or by
 * the sum of log-probabilities: by the one that falls along the results.
 * @param {Search} search
 * @returns {{name: string, numbers: number[], ranks: boolean}} `ranks` is false where neither explains the order
 */
export function rankingOf(search) {
  const given = search.best.map((end) => search.nodes[end].score);
  if (given.length && given.every((score) => typeof score === "number")) {
    const by = search.ranked_by ?? "";
    return { name: RANKINGS[by] ?? (by || "score"), numbers: /** @type {number[]} */ (given), ranks: true };
  }
  const sums = search.best.map((end) => search.nodes[end].total);
  const means = search.best.map((end, i) => sums[i] / pathTo(search, end).length);
  if (search.ranked_by !== "total" && falling(means) && (search.beams > 1 || !falling(sums)))
    return { name: RANKINGS.mean, numbers: means, ranks: true };
  return { name: RANKINGS.total, numbers: sums, ranks: falling(sums) };
}

/**
 * The nodes that these tokens follow, as far as the search has them.
 * @param {Search} search
 * @param {string[]} tokens
 */
function followTokens(search, tokens) {
  const children = childLists(search, search.nodes.keys());
  const path = [];
  let at = -1;
  for (const token of tokens) {
    const next = (children.get(at) ?? []).find((number) => search.nodes[number].token === token);
    if (next === undefined) break;
    path.push(next);
    at = next;
  }
  return { path, children };
}

/**
 * @param {Search} search
 * @param {Iterable<number>} shown
 * @returns {Map<number, number[]>} the children of each node
 */
function childLists(search, shown) {
  /** @type {Map<number, number[]>} */
  const children = new Map();
  for (const number of shown) {
    const { parent } = search.nodes[number];
    const list = children.get(parent);
    if (list) list.push(number);
    else children.set(parent, [number]);
  }
  return children;
}

/** @param {string} token whether it continues the word before it */
function continuesWord(token) {
  return !token.startsWith("▁") && !isSeparator(token) && !/^[\p{P}\p{S}]+$/u.test(token);
}

/**
 * The two most likely other words in the place of each word of the output, as the search saw them.
 * @param {Search} search
 * @param {string[]} tokens of the output
 * @param {Unit[]} units its words
 * @returns {Rival[][]}
 */
export function rivalsOf(search, tokens, units) {
  const { path, children } = followTokens(search, tokens);
  const pieces = tokens.some((token) => token.includes("▁"));
  return units.map(({ first, last }) => {
    /** @type {Map<string, Rival>} */
    const found = new Map();
    const own = joinTokens(tokens.slice(first, last + 1));
    let before = 0; // log-probability of the word's tokens before the place of the rival
    for (let t = first; t <= last && t < path.length; t++) {
      const siblings = children.get(t ? path[t - 1] : -1) ?? [];
      for (const number of siblings) {
        if (number === path[t]) continue;
        const ids = [number];
        // The rest of a word that begins with this piece, by the best continuation that the search saw.
        for (let at = number; pieces; ) {
          const next = bestChild(search, children.get(at));
          if (next === undefined || !continuesWord(search.nodes[next].token)) break;
          ids.push(next);
          at = next;
        }
        const prefix = [...tokens.slice(first, t), ...tokensOf(search, ids)];
        const text = isSeparator(prefix[prefix.length - 1]) ? "(end)" : joinTokens(prefix) || visibleText(prefix[0]);
        const probability = Math.exp(before + search.nodes[number].log_probability);
        if (text !== own && !((found.get(text)?.probability ?? 0) >= probability))
          found.set(text, { text, probability, prefix: [...tokens.slice(0, t), ...tokensOf(search, ids)] });
      }
      before += search.nodes[path[t]].log_probability;
    }
    return [...found.values()].sort((a, b) => b.probability - a.probability).slice(0, 2);
  });
}

/**
 * @param {Search} search
 * @param {number[] | undefined} children
 */
function bestChild(search, children) {
  return children?.reduce((a, b) => (search.nodes[b].log_probability > search.nodes[a].log_probability ? b : a));
}

/**
 * The word that a token belongs to.
 * @param {string[]} tokens
 * @param {number} at
 */
function wordAround(tokens, at) {
  if (at >= tokens.length || isSeparator(tokens[at])) return "(end)";
  let [from, to] = [at, at + 1];
  const spaced = tokens.some((token) => token.includes("▁"));
  if (spaced) {
    while (from > 0 && continuesWord(tokens[from])) from--;
    while (to < tokens.length && continuesWord(tokens[to])) to++;
  }
  return joinTokens(tokens.slice(from, to), spaced) || visibleText(tokens[at]);
}

/**
 * Where a result parts from the best one: the word of each, and the probabilities of the tokens that differ.
 * @param {Search} search
 * @param {number} end the last node of a result
 * @returns {Parting | null} null for the best one
 */
export function partingOf(search, end) {
  const [own, best] = [pathTo(search, end), pathTo(search, search.best[0])];
  let at = 0;
  while (at < own.length && at < best.length && own[at] === best[at]) at++;
  if (at >= own.length || at >= best.length) return null;
  const [mine, theirs] = [own, best].map((path) => wordAround(tokensOf(search, path), at));
  const [probability, against] = [own[at], best[at]].map((number) => Math.exp(search.nodes[number].log_probability));
  return { own: mine, best: theirs, probability, against };
}

/**
 * The nodes that are shown: all, or only what was kept, what ended, and what led there; at most `most` of them.
 * @param {Search} search
 * @param {boolean} dropped
 * @param {number} most
 */
export function shownNodes(search, dropped, most) {
  const shown = new Set();
  for (const end of search.best) for (const number of pathTo(search, end)) shown.add(number);
  for (const [number, node] of search.nodes.entries()) {
    if (shown.size >= most) break;
    if (!dropped && !node.kept && !node.ended) continue;
    // A parent stands before its children, so that what was left out for want of room leaves its children out too.
    if (node.parent < 0 || shown.has(node.parent)) shown.add(number);
  }
  return shown;
}

/**
 * The shown nodes as chains: a chain ends where the search branched, or where it ended. The best child is the first.
 * @param {Search} search
 * @param {Set<number>} shown
 * @returns {{chains: Chain[], roots: number[]}}
 */
export function chainsOf(search, shown) {
  const winners = new Set(search.best.length ? pathTo(search, search.best[0]) : []);
  const children = childLists(search, shown);
  for (const list of children.values())
    list.sort(
      (a, b) =>
        Number(winners.has(b)) - Number(winners.has(a)) || search.nodes[b].total - search.nodes[a].total || a - b
    );
  /** @type {Chain[]} */
  const chains = [];
  const waiting = (children.get(-1) ?? []).map((number) => ({ number, parent: -1 }));
  const roots = waiting.map((_, i) => i);
  for (let next = waiting.shift(); next; next = waiting.shift()) {
    const nodes = [next.number];
    let below = children.get(next.number) ?? [];
    while (below.length === 1) {
      nodes.push(below[0]);
      below = children.get(below[0]) ?? [];
    }
    const number = chains.push({ nodes, parent: next.parent, children: [] }) - 1;
    if (next.parent >= 0) chains[next.parent].children.push(number);
    for (const child of below) waiting.push({ number: child, parent: number });
  }
  return { chains, roots };
}

/**
 * Place chains from left to right. A chain and its best child stand on one line; every other child begins a line of its
 * own below, the first that is free as far as it goes.
 * @param {Chain[]} chains
 * @param {number[]} roots
 * @param {(chain: number) => number} widthOf pixels
 * @param {number} gap pixels between a chain and the next
 * @returns {{placed: Placed[], lines: number, width: number}}
 */
export function placeChains(chains, roots, widthOf, gap) {
  /** @type {Placed[]} */
  const placed = [];
  /** @type {[number, number][][]} what is taken of every line, in pixels */
  const taken = [];
  let width = 0;
  const waiting = roots.map((chain) => ({ chain, x: 0, below: 0 }));
  for (let next = waiting.shift(); next; next = waiting.shift()) {
    /** @type {{chain: number, x: number}[]} */
    const run = [];
    let x = next.x;
    for (let at = /** @type {number | undefined} */ (next.chain); at !== undefined; at = chains[at].children[0]) {
      run.push({ chain: at, x });
      x += widthOf(at) + gap;
    }
    const [from, to] = [next.x - gap, x - gap]; // the gap before it stays free: it continues no other branch
    let line = next.below;
    while (taken[line]?.some(([a, b]) => a < to && from < b)) line++;
    while (taken.length <= line) taken.push([]);
    taken[line].push([from, to]);
    width = Math.max(width, to);
    for (const { chain, x: left } of run) {
      placed.push({ chain, x: left, line });
      for (const other of chains[chain].children.slice(1))
        waiting.push({ chain: other, x: left + widthOf(chain) + gap, below: line + 1 });
    }
  }
  return { placed, lines: taken.length, width };
}
