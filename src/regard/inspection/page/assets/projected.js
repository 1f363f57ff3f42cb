// Weights that the page computes from queries and keys, as exp(scale · q·k − normalizer). Queries and keys are whole
// multiples of a step, of 12 to 24 bits each, one after the other without gaps; each head begins with a new byte.

import { decodeBytes, decodeFloat32, PROJECTED, visibleColumns, yieldToBrowser } from "./weights.js";

/**
 * Whole numbers with a sign, of a few bits each, the lowest bit first, times a step.
 * @param {Uint8Array} bytes
 * @param {number} bits at most 24
 * @param {number} count
 * @param {number} step
 */
export function unpackBits(bytes, bits, count, step) {
  const out = new Float32Array(count);
  const unused = 32 - bits;
  let [held, ready, at] = [0, 0, 0]; // bits that were read and not used yet, and how many they are
  for (let i = 0; i < count; i++) {
    for (; ready < bits; ready += 8) held |= bytes[at++] << ready;
    out[i] = step * ((held << unused) >> unused); // the highest bit is the sign
    held >>>= bits;
    ready -= bits;
  }
  return out;
}

class ProjectedWeights {
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
    this.steps = data.steps;
    this.bits = data.bits;
    this.query = decodeBytes(data.query);
    this.key = decodeBytes(data.key);
    this.normalizer = decodeFloat32(data.normalizer);
    if (this.query.length !== heads * this.size(rows) || this.key.length !== data.key_heads * this.size(columns))
      throw new Error("the queries and keys of this page do not have the sizes in its header: write the page again");
    /** @type {Map<number, {query: Float32Array, key: Float32Array}>} two heads in full, because two are compared */
    this.open = new Map();
  }

  /** The bytes of one head. @param {number} count of tokens */
  size(count) {
    return Math.ceil((count * this.width * this.bits) / 8);
  }

  /** @param {number} head */
  numbers(head) {
    let found = this.open.get(head);
    if (!found) {
      const own = Math.floor(head / this.shared);
      found = { query: this.decode(this.query, head, this.rows, 0), key: this.decode(this.key, own, this.columns, 1) };
      for (const old of this.open.keys()) if (this.open.size > 1) this.open.delete(old);
      this.open.set(head, found);
    }
    return found;
  }

  /**
   * The queries or keys of one head.
   * @param {Uint8Array} all
   * @param {number} head
   * @param {number} count of tokens
   * @param {0 | 1} which
   */
  decode(all, head, count, which) {
    const part = all.subarray(head * this.size(count), (head + 1) * this.size(count));
    return unpackBits(part, this.bits, count * this.width, this.steps[which][head]);
  }

  /**
   * Means of blocks of `size` × `size` weights; `region` lies inside and begins where a block begins.
   * @param {number} head
   * @param {Region} region
   * @param {number} size
   * @returns {Promise<Block>}
   */
  async map(head, region, size) {
    const { query, key } = this.numbers(head);
    const [down, across] = [Math.ceil(region.rows / size), Math.ceil(region.columns / size)];
    const sums = new Float64Array(down * across);
    for (let i = 0; i < region.rows; i++) {
      const row = region.top + i;
      const [from, to] = visibleColumns(this.mask, this.rows, this.columns, row) ?? [0, this.columns];
      this.row(
        query,
        key,
        head,
        row,
        Math.max(from, region.left),
        Math.min(to, region.left + region.columns),
        region.left,
        size,
        sums,
        Math.floor(i / size) * across
      );
      const wait = yieldToBrowser();
      if (wait) await wait;
    }
    const values = new Float32Array(sums.length);
    for (let b = 0; b < values.length; b++) {
      const [i, j] = [Math.floor(b / across), b % across];
      values[b] = sums[b] / (Math.min(size, region.rows - i * size) * Math.min(size, region.columns - j * size));
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

PROJECTED.push((data, heads, rows, columns) => new ProjectedWeights(data, heads, rows, columns));
