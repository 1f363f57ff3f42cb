// Where weights come from: the numbers in the page itself, or the server behind it. Both answer `map`. Neither knows
// who asks, or how it is drawn.

import { singles } from "./bytes.js";
import { blockMeans } from "./numbers.js";
import { Projected } from "./projected.js";

/**
 * Rows and columns of an attention.
 * @param {Trace} trace
 * @param {Attention} attention
 */
export function sizesOf(trace, attention) {
  return { rows: trace.sides[attention.queries].tokens.length, columns: trace.sides[attention.keys].tokens.length };
}

/**
 * The overview of an attention, where its data has one.
 * @param {Data} data
 * @returns {Overview | null}
 */
function overviewOf(data) {
  if (data.kind === "projected") return data.overview ?? null;
  if (data.kind === "overview") return "overview" in data ? data.overview : data;
  return null;
}

/**
 * The sizes of blocks an attention can be asked for, rising: by powers of two.
 * @param {Data} data
 * @param {number} longest of its sides
 */
export function levelsOf(data, longest) {
  const overview = overviewOf(data);
  let size = data.kind === "overview" && overview ? overview.size : 1;
  const levels = [size];
  while (size * 2 < longest) {
    const steps = overview && size < overview.size && size * 2 > overview.size;
    size = steps ? overview.size : size * 2;
    levels.push(size);
  }
  return levels;
}

/** Weights that are in the page. @implements {Source} */
export class Embedded {
  /** @param {Trace[]} traces */
  constructor(traces) {
    this.traces = traces;
    /** @type {WeakMap<Attention, Float32Array>} */
    this.weights = new WeakMap();
    /** @type {WeakMap<Attention, Float32Array>} */
    this.overviews = new WeakMap();
    /** @type {WeakMap<Attention, Projected>} */
    this.projected = new WeakMap();
  }

  /**
   * @param {number} trace
   * @param {number} attention
   * @param {number} head
   * @param {Pane} pane
   * @param {number} size
   * @returns {Promise<Block>}
   */
  async map(trace, attention, head, pane, size) {
    const one = this.traces[trace].attentions[attention];
    const { rows, columns } = sizesOf(this.traces[trace], one);
    if (one.data.kind === "weights") {
      const all = this.read(this.weights, one, one.data, one.heads * rows * columns);
      return partOf(all, columns, { ...pane, top: head * rows + pane.top }, size);
    }
    const overview = overviewOf(one.data);
    if (overview && size >= overview.size && size % overview.size === 0) {
      const values = this.read(this.overviews, one, overview, one.heads * overview.rows * overview.columns);
      return coarser(values, head, overview, pane, size, rows, columns);
    }
    if (one.data.kind === "projected") {
      let found = this.projected.get(one);
      if (!found) {
        found = new Projected(one.data, one.heads, rows, columns);
        this.projected.set(one, found);
        one.data.query = one.data.key = one.data.normalizer = ""; // the text is no longer needed, and may be large
      }
      return found.map(head, pane, size);
    }
    throw new Error("this page holds no finer numbers; show it with: regard look FILE");
  }

  /**
   * @param {WeakMap<Attention, Float32Array>} kept
   * @param {Attention} attention
   * @param {{values: string}} holder
   * @param {number} count
   */
  read(kept, attention, holder, count) {
    let found = kept.get(attention);
    if (!found) {
      found = singles(holder.values);
      if (found.length !== count)
        throw new Error(
          `${attention.name}: expected ${count} numbers, but the page has ${found.length}: write it again`
        );
      kept.set(attention, found);
      holder.values = "";
    }
    return found;
  }
}

/**
 * Means of blocks of a part of a matrix.
 * @param {Float32Array} values
 * @param {number} columns of all
 * @param {Pane} pane
 * @param {number} size
 * @returns {Block}
 */
export function partOf(values, columns, pane, size) {
  const part = new Float32Array(pane.rows * pane.columns);
  for (let i = 0; i < pane.rows; i++) {
    const from = (pane.top + i) * columns + pane.left;
    part.set(values.subarray(from, from + pane.columns), i * pane.columns);
  }
  return { size, ...blockMeans(part, pane.rows, pane.columns, size, size) };
}

/**
 * Blocks made of the blocks of an overview; each counts as many cells as it has.
 * @param {Float32Array} values of all heads
 * @param {number} head
 * @param {Overview} overview
 * @param {Pane} pane
 * @param {number} size
 * @param {number} rows
 * @param {number} columns
 * @returns {Block}
 */
function coarser(values, head, overview, pane, size, rows, columns) {
  const step = overview.size;
  const [down, across] = [Math.ceil(pane.rows / size), Math.ceil(pane.columns / size)];
  const sums = new Float64Array(down * across);
  const cells = new Float64Array(down * across);
  for (let i = pane.top / step; i * step < pane.top + pane.rows; i++)
    for (let j = pane.left / step; j * step < pane.left + pane.columns; j++) {
      const to = Math.floor((i * step - pane.top) / size) * across + Math.floor((j * step - pane.left) / size);
      const count = Math.min(step, rows - i * step) * Math.min(step, columns - j * step);
      sums[to] += count * values[(head * overview.rows + i) * overview.columns + j];
      cells[to] += count;
    }
  return { rows: down, columns: across, size, values: Float32Array.from(sums, (sum, b) => sum / cells[b]) };
}

/** Weights that a server computes; what is in the page is taken from there. @implements {Source} */
export class Served {
  /** @param {Trace[]} traces */
  constructor(traces) {
    this.traces = traces;
    this.inside = new Embedded(traces);
  }

  /**
   * @param {number} trace
   * @param {number} attention
   * @param {number} head
   * @param {Pane} pane
   * @param {number} size
   * @returns {Promise<Block>}
   */
  async map(trace, attention, head, pane, size) {
    const { data } = this.traces[trace].attentions[attention];
    if (data.kind !== "served") return this.inside.map(trace, attention, head, pane, size);
    const words = new URLSearchParams(
      Object.entries({ trace, attention, head, ...pane, size }).map(([name, value]) => [name, String(value)])
    );
    const answer = await ask("map.json?" + words.toString());
    return { rows: answer.rows, columns: answer.columns, size: answer.size, values: singles(answer.values) };
  }
}

/**
 * Ask the server; its complaints become errors.
 * @param {string} address beside the page
 * @param {object} [body] what to post
 */
export async function ask(address, body) {
  const how = body && { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
  let reply;
  try {
    reply = await fetch(address, { ...how, cache: "no-store", credentials: "omit", redirect: "error" });
  } catch {
    throw new Error("the server does not answer: is `regard look` still running?");
  }
  const answer = await reply.json().catch(() => ({}));
  if (!reply.ok) throw new Error(answer.error ?? `the server answers ${reply.status}`);
  return answer;
}
