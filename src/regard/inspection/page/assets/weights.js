// Where weights come from: the numbers in the page itself, or its server. Numbers are decoded from base64. Long
// computations are divided into slices short enough that the page stays responsive. This file does not know who asks,
// or how weights are drawn.

import { blockMeans } from "./numbers.js";

/**
 * @param {string} text base64
 * @returns {Uint8Array}
 */
export function decodeBytes(text) {
  const quick = /** @type {{fromBase64?: (text: string) => Uint8Array}} */ (/** @type {unknown} */ (Uint8Array));
  if (quick.fromBase64) return quick.fromBase64(text); // newer browsers, ten times faster
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

/**
 * Little-endian float32. Every machine that runs a browser today is little-endian.
 * @param {string} text base64
 */
export function decodeFloat32(text) {
  const bytes = decodeBytes(text);
  if (bytes.length % 4) throw new Error("the data of this page is truncated: write the page again");
  return new Float32Array(bytes.buffer);
}

/**
 * Little-endian float32 without its lowest byte, which is 0.
 * @param {string} text base64
 */
export function decodeFloat24(text) {
  const bytes = decodeBytes(text);
  if (bytes.length % 3) throw new Error("the data of this page is truncated: write the page again");
  const bits = new Uint32Array(bytes.length / 3);
  for (let i = 0; i < bits.length; i++)
    bits[i] = (bytes[3 * i] << 8) | (bytes[3 * i + 1] << 16) | (bytes[3 * i + 2] << 24);
  return new Float32Array(bits.buffer);
}

/**
 * The bits of little-endian float16, for `single`.
 * @param {string} text base64
 */
export function decodeFloat16(text) {
  const bytes = decodeBytes(text);
  if (bytes.length % 2) throw new Error("the data of this page is truncated: write the page again");
  return new Uint16Array(bytes.buffer);
}

/**
 * A half as a number: sign, 5 bits of exponent, 10 of fraction.
 * @param {number} half its bits
 */
function halfToNumber(half) {
  const sign = half & 0x8000 ? -1 : 1;
  const exponent = (half >> 10) & 31;
  const fraction = half & 1023;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}

/** @type {Float32Array | null} */
let halfTable = null;

/**
 * Many halves as numbers, through a table of all 65,536 of them.
 * @param {Uint16Array} bits
 */
export function halvesToFloat32(bits) {
  if (!halfTable) {
    halfTable = new Float32Array(65536);
    for (let i = 0; i < 65536; i++) halfTable[i] = halfToNumber(i);
  }
  const out = new Float32Array(bits.length);
  for (let i = 0; i < bits.length; i++) out[i] = halfTable[bits[i]];
  return out;
}

const SLICE = 8; // milliseconds
const SLICE_MOVING = 4; // while a map is moved: one slice for every frame
const MOVEMENT_ENDS = 200; // milliseconds

let [sliceBegan, lastMoved] = [0, -Infinity];

/** A map is being moved: drawing has priority over computing. */
export function noteMovement() {
  lastMoved = performance.now();
}

/**
 * Wait for the browser where this slice has been long enough.
 * @returns {Promise<void> | null}
 */
export function yieldToBrowser() {
  const now = performance.now();
  const hurried = now - lastMoved < MOVEMENT_ENDS;
  if (now - sliceBegan < (hurried ? SLICE_MOVING : SLICE)) return null;
  return new Promise((resolve) => {
    const go = () => {
      // Several computations may wait here at once: the first to continue begins the slice of all.
      if (performance.now() - sliceBegan >= SLICE_MOVING) sliceBegan = performance.now();
      resolve();
    };
    if (hurried) requestAnimationFrame(() => setTimeout(go));
    else afterEvents(go);
  });
}

/**
 * Run this after the events that wait, without the pause that a timer makes.
 * @param {() => void} work
 */
function afterEvents(work) {
  const channel = new MessageChannel();
  channel.port1.onmessage = () => {
    channel.port1.close();
    work();
  };
  channel.port2.postMessage(0);
}

/**
 * The columns from..to that a row may see. A mask is aligned to the bottom right. Null where it is not known here.
 * @param {Mask | undefined} mask
 * @param {number} rows
 * @param {number} columns
 * @param {number} row
 * @returns {[number, number] | null}
 */
export function visibleColumns(mask, rows, columns, row) {
  if (!mask) return [0, columns];
  if (mask === "tensor") return null;
  const { left, right } = mask === "causal" ? { left: null, right: 0 } : mask;
  const here = row + columns - rows;
  const from = left === null ? 0 : Math.max(0, here - left);
  const to = right === null ? columns : Math.max(0, Math.min(columns, here + right + 1));
  return [Math.min(from, to), to];
}

/**
 * Rows and columns of an attention.
 * @param {Trace} trace
 * @param {Attention} attention
 */
export function attentionSize(trace, attention) {
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
 * The block sizes that can be requested of an attention, rising: by powers of two.
 * @param {Data} data
 * @param {number} longest of its sides
 */
export function blockSizes(data, longest) {
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

/**
 * How weights are computed from queries and keys: projected.js, in pages that have such data.
 * @type {((data: Extract<Data, {kind: "projected"}>, heads: number, rows: number, columns: number) =>
 *   {map(head: number, region: Region, size: number): Promise<Block>})[]}
 */
export const PROJECTED = [];

/** Weights that are in the page. @implements {Source} */
export class EmbeddedSource {
  /** @param {Trace[]} traces */
  constructor(traces) {
    this.traces = traces;
    /** @type {WeakMap<Attention, Float32Array>} */
    this.weights = new WeakMap();
    /** @type {WeakMap<Attention, Float32Array>} */
    this.overviews = new WeakMap();
    /** @type {WeakMap<Attention, {map(head: number, region: Region, size: number): Promise<Block>}>} */
    this.projected = new WeakMap();
  }

  /**
   * @param {number} trace
   * @param {number} attention
   * @param {number} head
   * @param {Region} region
   * @param {number} size
   * @returns {Promise<Block>}
   */
  async map(trace, attention, head, region, size) {
    const one = this.traces[trace].attentions[attention];
    const { rows, columns } = attentionSize(this.traces[trace], one);
    if (one.data.kind === "weights") {
      const all = this.read(this.weights, one, one.data, one.heads * rows * columns);
      return windowMeans(all, columns, { ...region, top: head * rows + region.top }, size);
    }
    const overview = overviewOf(one.data);
    if (overview && size >= overview.size && size % overview.size === 0) {
      const count = one.heads * overview.rows * overview.columns;
      const values = this.read(this.overviews, one, overview, count, overview.unit);
      return coarser(values, head, overview, region, size, rows, columns);
    }
    if (one.data.kind === "projected") {
      let found = this.projected.get(one);
      if (!found) {
        found = PROJECTED[0](one.data, one.heads, rows, columns);
        this.projected.set(one, found);
        one.data.query = one.data.key = one.data.normalizer = ""; // the text is no longer needed, and may be large
      }
      return found.map(head, region, size);
    }
    throw new Error("this page has only an overview; to zoom in: regard look FILE");
  }

  /**
   * @param {WeakMap<Attention, Float32Array>} kept
   * @param {Attention} attention
   * @param {{values: string}} holder
   * @param {number} count
   * @param {number} [unit] of numbers in half precision
   */
  read(kept, attention, holder, count, unit) {
    let found = kept.get(attention);
    if (!found) {
      found =
        unit === undefined
          ? decodeFloat24(holder.values)
          : halvesToFloat32(decodeFloat16(holder.values)).map((value) => value * unit);
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
 * @param {Region} region
 * @param {number} size
 * @returns {Block}
 */
export function windowMeans(values, columns, region, size) {
  const part = new Float32Array(region.rows * region.columns);
  for (let i = 0; i < region.rows; i++) {
    const from = (region.top + i) * columns + region.left;
    part.set(values.subarray(from, from + region.columns), i * region.columns);
  }
  return { size, ...blockMeans(part, region.rows, region.columns, size, size) };
}

/**
 * Blocks made of the blocks of an overview; each counts as many cells as it has.
 * @param {Float32Array} values of all heads
 * @param {number} head
 * @param {Overview} overview
 * @param {Region} region
 * @param {number} size
 * @param {number} rows
 * @param {number} columns
 * @returns {Block}
 */
function coarser(values, head, overview, region, size, rows, columns) {
  const step = overview.size;
  const [down, across] = [Math.ceil(region.rows / size), Math.ceil(region.columns / size)];
  const sums = new Float64Array(down * across);
  const cells = new Float64Array(down * across);
  for (let i = region.top / step; i * step < region.top + region.rows; i++)
    for (let j = region.left / step; j * step < region.left + region.columns; j++) {
      const to = Math.floor((i * step - region.top) / size) * across + Math.floor((j * step - region.left) / size);
      const count = Math.min(step, rows - i * step) * Math.min(step, columns - j * step);
      sums[to] += count * values[(head * overview.rows + i) * overview.columns + j];
      cells[to] += count;
    }
  return { rows: down, columns: across, size, values: Float32Array.from(sums, (sum, b) => sum / cells[b]) };
}

/** Weights that a server computes; what is in the page is taken from there. @implements {Source} */
export class ServedSource {
  /** @param {Trace[]} traces */
  constructor(traces) {
    this.traces = traces;
    this.inside = new EmbeddedSource(traces);
  }

  /**
   * @param {number} trace
   * @param {number} attention
   * @param {number} head
   * @param {Region} region
   * @param {number} size
   * @returns {Promise<Block>}
   */
  async map(trace, attention, head, region, size) {
    const { data } = this.traces[trace].attentions[attention];
    if (data.kind !== "served") return this.inside.map(trace, attention, head, region, size);
    const words = new URLSearchParams(
      Object.entries({ trace, attention, head, ...region, size }).map(([name, value]) => [name, String(value)])
    );
    const answer = await sendRequest("map.json?" + words.toString());
    return { rows: answer.rows, columns: answer.columns, size: answer.size, values: decodeFloat32(answer.values) };
  }
}

/**
 * Ask the server; its complaints become errors.
 * @param {string} address beside the page
 * @param {object} [body] what to post
 */
export async function sendRequest(address, body) {
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
