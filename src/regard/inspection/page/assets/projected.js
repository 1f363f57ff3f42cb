// Weights from projected queries and keys: exp(scale · q·k − normalizer) for what a row may see. It computes windows in
// slices short enough that the page keeps answering. Knows neither traces nor drawing.

import { halves, singles, singlesOfHalves } from "./bytes.js";

const SLICE = 8; // milliseconds
const SLICE_MOVING = 4; // while somebody moves a map: one such slice for every frame
const STILL_AFTER = 200; // milliseconds

let [sliceBegan, lastMoved] = [0, -Infinity];

/** Somebody moves a map: what is computed has to wait for what is drawn. */
export function moving() {
  lastMoved = performance.now();
}

/**
 * Wait for the browser where this slice has been long enough.
 * @returns {Promise<void> | null}
 */
export function breathe() {
  const now = performance.now();
  const hurried = now - lastMoved < STILL_AFTER;
  if (now - sliceBegan < (hurried ? SLICE_MOVING : SLICE)) return null;
  return new Promise((resolve) => {
    const go = () => {
      // Several computations may wait here at once: the first to go on begins the slice of all.
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
export function visible(mask, rows, columns, row) {
  if (!mask) return [0, columns];
  if (mask === "tensor") return null;
  const { left, right } = mask === "causal" ? { left: null, right: 0 } : mask;
  const here = row + columns - rows;
  const from = left === null ? 0 : Math.max(0, here - left);
  const to = right === null ? columns : Math.max(0, Math.min(columns, here + right + 1));
  return [Math.min(from, to), to];
}

export class Projected {
  /**
   * @param {Extract<Data, {kind: "projected"}>} data
   * @param {number} heads
   * @param {number} rows
   * @param {number} columns
   */
  constructor(data, heads, rows, columns) {
    this.rows = rows;
    this.columns = columns;
    this.width = data.width;
    this.scale = data.scale;
    this.mask = data.mask;
    this.shared = heads / data.key_heads;
    this.query = halves(data.query);
    this.key = halves(data.key);
    this.normalizer = singles(data.normalizer);
    if (this.query.length !== heads * rows * data.width || this.key.length !== data.key_heads * columns * data.width)
      throw new Error("the queries and keys of this page do not have the sizes that it says: write the page again");
    /** @type {Map<number, {query: Float32Array, key: Float32Array}>} two heads in full, because two are compared */
    this.open = new Map();
  }

  /** @param {number} head */
  numbers(head) {
    let found = this.open.get(head);
    if (!found) {
      const [high, wide] = [this.rows * this.width, this.columns * this.width];
      const own = Math.floor(head / this.shared);
      found = {
        query: singlesOfHalves(this.query.subarray(head * high, (head + 1) * high)),
        key: singlesOfHalves(this.key.subarray(own * wide, (own + 1) * wide))
      };
      for (const old of this.open.keys()) if (this.open.size > 1) this.open.delete(old);
      this.open.set(head, found);
    }
    return found;
  }

  /**
   * Means of blocks of `size` × `size` weights; `pane` lies inside and begins where a block begins.
   * @param {number} head
   * @param {Pane} pane
   * @param {number} size
   * @returns {Promise<Block>}
   */
  async map(head, pane, size) {
    const { query, key } = this.numbers(head);
    const [down, across] = [Math.ceil(pane.rows / size), Math.ceil(pane.columns / size)];
    const sums = new Float64Array(down * across);
    for (let i = 0; i < pane.rows; i++) {
      const row = pane.top + i;
      const [from, to] = visible(this.mask, this.rows, this.columns, row) ?? [0, this.columns];
      this.row(
        query,
        key,
        head,
        row,
        Math.max(from, pane.left),
        Math.min(to, pane.left + pane.columns),
        pane.left,
        size,
        sums,
        Math.floor(i / size) * across
      );
      const wait = breathe();
      if (wait) await wait;
    }
    const values = new Float32Array(sums.length);
    for (let b = 0; b < values.length; b++) {
      const [i, j] = [Math.floor(b / across), b % across];
      values[b] = sums[b] / (Math.min(size, pane.rows - i * size) * Math.min(size, pane.columns - j * size));
    }
    return { rows: down, columns: across, size, values };
  }

  /**
   * Add the weights of a row's columns from..to to the sums of their blocks.
   * @param {Float32Array} query
   * @param {Float32Array} key
   * @param {number} head
   * @param {number} row
   * @param {number} from
   * @param {number} to
   * @param {number} left
   * @param {number} size
   * @param {Float64Array} sums
   * @param {number} base
   */
  row(query, key, head, row, from, to, left, size, sums, base) {
    const { width, scale } = this;
    const normalizer = this.normalizer[head * this.rows + row];
    const q = query.subarray(row * width, (row + 1) * width);
    const even = width - (width % 4);
    for (let j = from; j < to; j++) {
      const k = j * width;
      let [a, b, c, d] = [0, 0, 0, 0];
      let w = 0;
      for (; w < even; w += 4) {
        a += q[w] * key[k + w];
        b += q[w + 1] * key[k + w + 1];
        c += q[w + 2] * key[k + w + 2];
        d += q[w + 3] * key[k + w + 3];
      }
      for (; w < width; w++) a += q[w] * key[k + w];
      sums[base + Math.floor((j - left) / size)] += Math.exp(scale * (a + b + (c + d)) - normalizer);
    }
  }
}
