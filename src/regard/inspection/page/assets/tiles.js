// Tiles of a plane: fetched when they are needed, painted in colours, and cached.

import { blockMeans, extent } from "./numbers.js";
import { specialColours } from "./scale.js";

export const TILE = 128; // blocks along each edge
const MAX_TILES = 384;
const RETRY_AFTER = 5000; // milliseconds after which something that failed may be requested again
const MAX_FETCHES = 2; // tiles that are fetched at once

/**
 * A tile has `down` × `across` as the tokens of a block; the row and the column of the tile count tiles.
 * @typedef {{down: number, across: number, row: number, column: number}} Spot
 * @typedef {{spot: Spot, rows: number, columns: number, values: Float32Array, canvas: HTMLCanvasElement | null,
 *   painted: unknown, low: number, high: number, odd: boolean}} Tile
 */

export class Tiles {
  /**
   * @param {Plane} plane
   * @param {() => void} arrived
   * @param {(error: Error) => void} failed
   */
  constructor(plane, arrived, failed) {
    this.plane = plane;
    this.arrived = arrived;
    this.failed = failed;
    /** @type {Map<string, Tile>} the longest unused first */
    this.kept = new Map();
    /** @type {Set<string>} */
    this.underWay = new Set();
    /** @type {Set<string>} what failed is not requested again at once */
    this.lost = new Set();
    /** @type {Spot[]} */
    this.wanted = [];
    this.closed = false;
  }

  /** @param {Spot} spot */
  get(spot) {
    const key = tileKey(spot);
    const tile = this.kept.get(key);
    if (tile) {
      this.kept.delete(key);
      this.kept.set(key, tile);
    }
    return tile;
  }

  /**
   * Fetch what is missing of these, in this order. Those wanted before and no longer are given up.
   * @param {Spot[]} spots
   */
  want(spots) {
    this.wanted = spots.filter((spot) => !this.kept.has(tileKey(spot)) && !this.lost.has(tileKey(spot)));
    this.next();
  }

  next() {
    while (!this.closed && this.underWay.size < MAX_FETCHES) {
      const spot = this.wanted.find((one) => !this.underWay.has(tileKey(one)));
      if (!spot) return;
      this.wanted = this.wanted.filter((one) => one !== spot);
      void this.fetch(spot, tileKey(spot));
    }
  }

  /**
   * @param {Spot} spot
   * @param {string} key
   */
  async fetch(spot, key) {
    this.underWay.add(key);
    try {
      const tile = await loadTile(this.plane, spot);
      this.kept.set(key, tile);
      for (const old of this.kept.keys()) {
        if (this.kept.size <= MAX_TILES) break;
        this.kept.delete(old);
      }
    } catch (error) {
      this.lost.add(key);
      setTimeout(() => this.lost.delete(key), RETRY_AFTER);
      if (!this.closed) this.failed(/** @type {Error} */ (error));
    }
    this.underWay.delete(key);
    if (this.closed) return;
    this.arrived();
    this.next();
  }

  close() {
    this.closed = true;
    this.kept.clear();
  }
}

/** @param {Spot} spot */
function tileKey(spot) {
  return `${spot.down} ${spot.across} ${spot.row} ${spot.column}`;
}

/**
 * @param {Plane} plane
 * @param {Spot} spot
 * @returns {Promise<Tile>}
 */
async function loadTile(plane, spot) {
  const { down, across } = spot;
  const [top, left] = [spot.row * TILE * down, spot.column * TILE * across];
  const region = {
    top,
    left,
    rows: Math.min(TILE * down, plane.rows - top),
    columns: Math.min(TILE * across, plane.columns - left)
  };
  const size = Math.min(down, across);
  const block = await plane.map(region, size);
  // Blocks that are not square are made here, from cells of size 1: only then are all cells of a block alike.
  const { rows, columns, values } = blockMeans(block.values, block.rows, block.columns, down / size, across / size);
  const odd = values.some((value) => !Number.isFinite(value));
  return { spot, rows, columns, values, canvas: null, painted: null, ...extent(values), odd };
}

/**
 * The picture of a tile, a pixel for each block, in the colours of this scale.
 * @param {Tile} tile
 * @param {import("./scale.js").Scale} scale
 * @param {Plane} plane
 */
export function tileCanvas(tile, scale, plane) {
  if (tile.canvas && tile.painted === scale) return tile.canvas;
  tile.canvas ??= document.createElement("canvas");
  tile.painted = scale;
  const { down, across, row, column } = tile.spot;
  const corner = { top: row * TILE * down, left: column * TILE * across, down, across };
  return paintBlocks(tile.canvas, tile, scale, plane, corner);
}

/**
 * Paint blocks of `down` × `across` cells that begin at a cell of a plane, a pixel for each.
 * @param {HTMLCanvasElement} canvas
 * @param {{rows: number, columns: number, values: Float32Array}} blocks
 * @param {import("./scale.js").Scale} scale
 * @param {Pick<Plane, "rows" | "columns" | "masked">} plane
 * @param {{top: number, left: number, down: number, across: number}} corner
 */
export function paintBlocks(canvas, { rows, columns, values }, scale, plane, { top, left, down, across }) {
  canvas.width = columns;
  canvas.height = rows;
  const pen = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  const image = pen.createImageData(columns, rows);
  const pixels = new Uint32Array(image.data.buffer);
  scale.paint(values, pixels);
  const { masked } = specialColours();
  for (let b = 0; b < pixels.length; b++) {
    if (values[b] !== 0) continue;
    // A block is masked if two of its corners are, because a mask is a band.
    const [i, j] = [top + Math.floor(b / columns) * down, left + (b % columns) * across];
    const [bottom, right] = [Math.min(plane.rows, i + down) - 1, Math.min(plane.columns, j + across) - 1];
    if (plane.masked(bottom, j) && plane.masked(i, right)) pixels[b] = masked;
  }
  pen.putImageData(image, 0, 0);
  return canvas;
}
