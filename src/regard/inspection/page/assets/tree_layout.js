// Where the nodes of a beam search go: steps from left to right, branches below each other. Pure numbers.

/** @typedef {{number: number, depth: number, line: number}} Placed */

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
 * The nodes that are shown: all, or only what was kept, what ended, and what led there; at most so many.
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
 * Place the shown nodes. A node and its best child stand on one line; every other child begins a line of its own below,
 * the first that is free as far as it goes.
 * @param {Search} search
 * @param {Set<number>} shown
 * @returns {{placed: Placed[], lines: number, depths: number, children: Map<number, number[]>}}
 */
export function placeNodes(search, shown) {
  const winners = new Set(search.best.length ? pathTo(search, search.best[0]) : []);
  /** @type {Map<number, number[]>} */
  const children = new Map();
  for (const number of shown) {
    const { parent } = search.nodes[number];
    children.set(parent, [...(children.get(parent) ?? []), number]);
  }
  for (const list of children.values())
    list.sort(
      (a, b) =>
        Number(winners.has(b)) - Number(winners.has(a)) || search.nodes[b].total - search.nodes[a].total || a - b
    );
  /** @type {Placed[]} */
  const placed = [];
  /** @type {Set<number>[]} the steps that are taken, for every line */
  const taken = [];
  let depths = 0;
  const waiting = (children.get(-1) ?? []).map((number) => ({ number, depth: 0, below: 0 }));
  for (let next = waiting.shift(); next; next = waiting.shift()) {
    const run = [];
    for (let at = /** @type {number | undefined} */ (next.number); at !== undefined; at = children.get(at)?.[0])
      run.push(at);
    // One step is left free in front, so that nobody reads it as what follows another branch.
    const steps = Array.from({ length: run.length + 1 }, (_, i) => next.depth - 1 + i);
    let line = next.below;
    while (taken[line] && steps.some((step) => taken[line].has(step))) line++;
    while (taken.length <= line) taken.push(new Set());
    run.forEach((number, i) => {
      const depth = next.depth + i;
      taken[line].add(depth);
      placed.push({ number, depth, line });
      depths = Math.max(depths, depth + 1);
      for (const other of children.get(number)?.slice(1) ?? [])
        waiting.push({ number: other, depth: depth + 1, below: line + 1 });
    });
  }
  return { placed, lines: taken.length, depths, children };
}

/**
 * How many tokens of a path are the tokens that were written, from the first on.
 * @param {Search} search
 * @param {number[]} path
 * @param {string[]} tokens
 */
export function sharedPrefix(search, path, tokens) {
  let count = 0;
  while (count < path.length && count < tokens.length && search.nodes[path[count]].token === tokens[count]) count++;
  return count;
}
