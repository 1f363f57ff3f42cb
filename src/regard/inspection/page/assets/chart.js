// A chart: the map of a plane with axes, a scale, and a line that describes the cell under the pointer. It pans and
// zooms by pointer and keys, and fetches the tiles it shows. It does not know attentions, only planes.

import { drawCells, drawEdges, drawOutlines, MIN_LABELLED_CELL, columnLabelSpace, widestName } from "./chart_drawing.js";
import { fill, isolatedText, isTouched, make, sizeCanvas } from "./dom.js";
import { clamp, extent, formatCount, formatWeight } from "./numbers.js";
import { describeCell } from "./planes.js";
import { css, hatching, legend, specialColours, Scale, themeValue } from "./scale.js";
import { tileCanvas, TILE, Tiles } from "./tiles.js";
import { noteMovement } from "./weights.js";

const MAX_CELL = 44; // pixels of a cell, at most
const PAINT_TIME = 6; // milliseconds of a frame that may go into new colours
const MAX_BLOCK = 1 << 14; // cells of a block whose largest weight is looked for
const MIN_LENGTH = 72; // pixels that a map of few rows or columns gets at least

/**
 * `still` fits its map into the page; `roaming` is a window of its own into a large map.
 * `ranges` may be shared by charts that are to have one scale.
 * @typedef {{manner?: "still" | "roaming", shape?: Shape, whole?: boolean, what?: string, tall?: number,
 *   ranges?: Map<string, {low: number, high: number}>,
 *   onPoint?: (row: number, column: number) => void, onPick?: (row: number, column: number) => void,
 *   onMove?: () => void}} ChartOptions
 */

export class Chart {
  /**
   * @param {App} app
   * @param {Plane} plane
   * @param {ChartOptions} options
   */
  constructor(app, plane, options) {
    this.app = app;
    this.plane = plane;
    this.options = options;
    this.ranges = options.ranges ?? new Map();
    /** @type {Chart[]} those with the same scale */
    this.group = [this];
    this.canvas = make("canvas", { role: "img", "aria-label": chartLabel(plane) });
    this.frame = make(
      "div",
      { class: "chart-frame", tabindex: "0", role: "application", "aria-label": chartHelp(plane, options) },
      this.canvas
    );
    this.readout = make("p", { class: "readout" });
    this.keyline = make("div", { class: "keyline" });
    // What is said of the map stays in sight while any of the map is: a style sheet sees to that.
    const said = make("div", { class: "caption-line" }, this.readout, this.keyline);
    this.element = make("div", { class: "chart" }, this.frame, said);
    this.names = {
      rows: widestName(plane.rows, plane.rowName, 150),
      columns: widestName(plane.columns, plane.columnName, 112)
    };
    this.tiles = new Tiles(
      plane,
      () => this.tileArrived(),
      (error) => this.showError(error)
    );
    /** @type {Scale | null} */
    this.scale = null;
    this.plot = { x: 0, y: 0, width: 1, height: 1 };
    this.fit = { x: 1, y: 1 };
    this.view = { x: 0, y: 0, zx: 0, zy: 0 };
    /** @type {{row: number, column: number} | null} what is pointed at */
    this.at = null;
    /** @type {{row: number | null, column: number | null}} */
    this.pinned = { row: null, column: null };
    this.caption = "";
    this.unknown = false;
    this.odd = false; // whether a number that is not finite was met
    this.due = 0;
    this.requests = 0;
    attachInput(this);
    this.watcher = new ResizeObserver(() => this.layout());
    this.watcher.observe(this.element);
    app.onClose(() => this.close());
  }

  close() {
    this.watcher.disconnect();
    cancelAnimationFrame(this.due);
    this.tiles.close();
  }

  /** Where everything goes, for the width there is. A chart that was taken off the page closes itself. */
  layout() {
    const { plane, options } = this;
    if (!this.element.isConnected) {
      this.close();
      return;
    }
    const width = Math.max(200, this.element.clientWidth);
    const roaming = options.manner === "roaming";
    const tall = options.tall ?? (roaming ? clamp(300, innerHeight * 0.55, 720) : clamp(600, plane.rows * 14, 1400));
    const guess = Math.min(
      MAX_CELL,
      (width - Math.min(150, this.names.rows) - 24) / plane.columns,
      Math.max(tall, MIN_LENGTH) / plane.rows
    );
    const room = columnLabelSpace(this.names.columns, roaming ? MIN_LABELLED_CELL : guess);
    const x = Math.min(width / 3, Math.max(58, this.names.rows + 14));
    const y = room.above;
    const across = width - x - room.beyond;
    const zx = Math.min(MAX_CELL, across / plane.columns);
    const zy = Math.min(MAX_CELL, tall / plane.rows);
    const both = Math.min(zx, zy);
    const was = this.view.zx > this.fit.x * 1.001;
    this.fit = {
      x: Math.max(both, Math.min(zx, MIN_LENGTH / plane.columns)),
      y: Math.max(both, Math.min(zy, MIN_LENGTH / plane.rows))
    };
    this.plot = {
      x,
      y,
      width: roaming ? across : Math.min(across, plane.columns * this.fit.x),
      height:
        roaming && both < MAX_CELL
          ? Math.min(tall, Math.max(MIN_LENGTH, plane.rows * this.fit.y))
          : plane.rows * this.fit.y
    };
    if (roaming) this.plot.width = Math.min(across, Math.max(plane.columns * this.fit.x, this.plot.height * 1.6));
    if (!this.at) this.showHint();
    this.size = { width, height: Math.ceil(y + this.plot.height + 6) };
    this.element.classList.toggle("tall", this.size.height > innerHeight * 0.75);
    if (!was) this.view = { x: 0, y: 0, zx: this.fit.x, zy: this.fit.y };
    this.setView(this.view);
  }

  /**
   * Look at another part, as far as there is one.
   * @param {{x: number, y: number, zx: number, zy: number}} view
   */
  setView(view) {
    const most = MAX_CELL / this.plane.levels[0];
    const [lower, upper] = [
      Math.max(this.fit.x / view.zx, this.fit.y / view.zy),
      Math.max(most, this.fit.x, this.fit.y) / Math.max(view.zx, view.zy)
    ];
    const factor = clamp(lower, 1, Math.max(lower, upper));
    const [zx, zy] = [view.zx * factor, view.zy * factor];
    this.view = {
      zx,
      zy,
      x: clamp(0, view.x, Math.max(0, this.plane.columns - this.plot.width / zx)),
      y: clamp(0, view.y, Math.max(0, this.plane.rows - this.plot.height / zy))
    };
    this.redraw();
    this.options.onMove?.();
  }

  /**
   * @param {number} factor
   * @param {number} [px] the pixel that stays where it is
   * @param {number} [py]
   */
  zoom(factor, px = this.plot.x + this.plot.width / 2, py = this.plot.y + this.plot.height / 2) {
    const { x, y, zx, zy } = this.view;
    const most = Math.max(MAX_CELL / this.plane.levels[0], this.fit.x, this.fit.y);
    const f = clamp(Math.max(this.fit.x / zx, this.fit.y / zy), factor, Math.max(1, most / Math.max(zx, zy)));
    const [dx, dy] = [px - this.plot.x, py - this.plot.y];
    this.setView({ x: x + dx / zx - dx / (zx * f), y: y + dy / zy - dy / (zy * f), zx: zx * f, zy: zy * f });
  }

  /** Whether there is more than is in view. */
  get movable() {
    const { view, plot, plane } = this;
    return plane.columns * view.zx > plot.width + 1 || plane.rows * view.zy > plot.height + 1;
  }

  /** The tokens of a block, down and across, at this zoom. Blocks that are not square need cells of size 1. */
  blocks(zx = this.view.zx, zy = this.view.zy) {
    const levels = this.plane.levels;
    const [down, across] = [zy, zx].map(
      (zoom) => levels.find((size) => size * zoom > 0.98) ?? levels[levels.length - 1]
    );
    const square = Math.max(down, across);
    return down === across || Math.min(down, across) === 1 ? { down, across } : { down: square, across: square };
  }

  /**
   * The tiles in view, those in the middle first.
   * @param {{down: number, across: number}} blocks
   * @returns {import("./tiles.js").Spot[]}
   */
  spots({ down, across }) {
    const { view, plot, plane } = this;
    const [high, wide] = [TILE * down, TILE * across];
    const bottom = Math.min(plane.rows, view.y + plot.height / view.zy);
    const right = Math.min(plane.columns, view.x + plot.width / view.zx);
    const spots = [];
    for (let row = Math.floor(view.y / high); row * high < bottom; row++)
      for (let column = Math.floor(view.x / wide); column * wide < right; column++)
        spots.push({ down, across, row, column });
    /** @param {{row: number, column: number}} spot */
    const far = (spot) =>
      Math.hypot((spot.row + 0.5) * high - (view.y + bottom) / 2, (spot.column + 0.5) * wide - (view.x + right) / 2);
    return spots.sort((a, b) => far(a) - far(b));
  }

  redraw() {
    if (!this.due)
      this.due = requestAnimationFrame(() => {
        this.due = 0;
        if (this.size) this.draw();
      });
  }

  draw() {
    const { plane, plot, view } = this;
    const size = /** @type {{width: number, height: number}} */ (this.size);
    const blocks = this.blocks();
    const spots = this.spots(blocks);
    this.tiles.want([...this.spots(this.blocks(this.fit.x, this.fit.y)), ...spots]);
    this.updateScale(blocks, spots);
    const pen = sizeCanvas(this.canvas, size.width, size.height);
    pen.clearRect(0, 0, size.width, size.height);
    pen.save();
    pen.beginPath();
    pen.rect(
      plot.x,
      plot.y,
      Math.min(plot.width, plane.columns * view.zx),
      Math.min(plot.height, plane.rows * view.zy)
    );
    pen.clip();
    pen.fillStyle = css(specialColours().waiting);
    pen.fillRect(plot.x, plot.y, plot.width, plot.height);
    pen.imageSmoothingEnabled = false;
    const area = blocks.down * blocks.across;
    const coarse = [...this.tiles.kept.values()].filter(({ spot }) => spot.down * spot.across > area);
    coarse.sort((a, b) => b.spot.down * b.spot.across - a.spot.down * a.spot.across);
    const until = performance.now() + PAINT_TIME;
    for (const tile of [...coarse, ...spots.map((spot) => this.tiles.get(spot))])
      if (tile) this.drawTile(pen, tile, until);
    if (Math.min(view.zx, view.zy) >= 12 && area === 1) drawCells(pen, this);
    drawOutlines(pen, this);
    pen.restore();
    drawEdges(pen, this);
  }

  /**
   * @param {CanvasRenderingContext2D} pen
   * @param {import("./tiles.js").Tile} tile
   * @param {number} until when this frame has to be done: what is not painted by then comes with the next
   */
  drawTile(pen, tile, until) {
    const { view, plot, plane } = this;
    const { down, across, row, column } = tile.spot;
    const x = plot.x + (column * TILE * across - view.x) * view.zx;
    const y = plot.y + (row * TILE * down - view.y) * view.zy;
    // The last blocks may stand for fewer tokens than they are wide: what is beyond the end is cut off by the clip.
    const [wide, high] = [tile.columns * across * view.zx, tile.rows * down * view.zy];
    if (x > plot.x + plot.width || y > plot.y + plot.height || x + wide < plot.x || y + high < plot.y || !this.scale)
      return;
    const late = tile.painted !== this.scale && performance.now() > until;
    if (late) this.redraw();
    const picture = late ? tile.canvas : tileCanvas(tile, this.scale, plane);
    if (!picture) return;
    pen.fillStyle = themeValue("paper");
    pen.fillRect(x, y, wide, high);
    pen.fillStyle = hatching(pen);
    pen.fillRect(x, y, wide, high); // seen where a cell is masked: there the picture is transparent
    pen.drawImage(picture, x, y, wide, high);
  }

  /**
   * The range of the numbers met at this size of blocks, and the scale that follows from it.
   * @param {{down: number, across: number}} blocks
   * @param {import("./tiles.js").Spot[]} spots
   */
  updateScale(blocks, spots) {
    const key = `${blocks.down} ${blocks.across}`;
    const range = this.ranges.get(key) ?? { low: Infinity, high: -Infinity };
    const before = `${range.low} ${range.high}`;
    let any = false;
    for (const spot of spots) {
      const tile = this.tiles.get(spot);
      any ||= Boolean(tile);
      if (tile?.odd && !this.odd) [this.odd, this.scale] = [true, null];
      if (!tile || Number.isNaN(tile.low)) continue;
      range.low = Math.min(range.low, tile.low);
      range.high = Math.max(range.high, tile.high);
    }
    if (!any && this.scale) return;
    const [low, high] = range.low <= range.high ? [range.low, range.high] : [0, 1];
    if (range.low <= range.high) this.ranges.set(key, range);
    // Where new tiles come in all the time, the range grows in steps, so that not each of them changes all colours.
    const top = this.options.manner === "roaming" && high > 0 ? 2 ** (Math.ceil(Math.log2(high) * 2) / 2) : high;
    const scale = new Scale(
      this.options.shape ?? "linear",
      low < 0 || this.plane.signed ? Math.min(low, -Math.abs(high)) || -1 : 0,
      this.options.whole && low >= 0 ? Math.max(1, high) : top
    );
    const what =
      (this.options.what ?? "Weight") +
      (blocks.down * blocks.across > 1
        ? `, mean of blocks of ${formatCount(blocks.down)} × ${formatCount(blocks.across)}`
        : "");
    if (!this.scale || !this.scale.same(scale) || this.caption !== what) {
      this.scale = scale;
      this.caption = what;
      fill(this.keyline, legend(scale, what, hidesCells(this.plane), this.odd));
    }
    if (before !== `${range.low} ${range.high}`) for (const one of this.group) if (one !== this) one.redraw();
  }

  /** A tile has come: perhaps the one whose number is being waited for. */
  tileArrived() {
    this.redraw();
    if (this.at && this.unknown) this.describe(this.at.row, this.at.column);
  }

  /**
   * The number of the block that a token pair lies in; undefined where it has not come yet.
   * @param {number} row
   * @param {number} column
   */
  valueAt(row, column) {
    const { down, across } = this.blocks();
    const [i, j] = [Math.floor(row / down), Math.floor(column / across)];
    const tile = this.tiles.get({ down, across, row: Math.floor(i / TILE), column: Math.floor(j / TILE) });
    return tile?.values[(i % TILE) * tile.columns + (j % TILE)];
  }

  /**
   * Point at a cell, or at none.
   * @param {{row: number, column: number} | null} at
   */
  point(at) {
    if (at?.row === this.at?.row && at?.column === this.at?.column) return;
    this.at = at;
    this.redraw();
    if (at) this.describe(at.row, at.column);
    else this.showHint();
  }

  /**
   * @param {number} row
   * @param {number} column
   */
  describe(row, column) {
    const { plane } = this;
    const { down, across } = this.blocks();
    const value = this.valueAt(row, column);
    this.unknown = value === undefined;
    const names = [isolatedText(plane.rowName(row)), " → ", isolatedText(plane.columnName(column)), ": "];
    const place = plane.rows * plane.columns > 4096 ? ` (row ${formatCount(row)}, column ${formatCount(column)})` : "";
    const said = describeCell(plane, row, column, value);
    if (down * across === 1) {
      fill(this.readout, ...names, make("strong", {}, said), place);
      return;
    }
    const single = plane.levels[0] === 1 && down * across <= MAX_BLOCK;
    const exact = make("strong", {}, single ? "…" : "not in this page");
    const most = make("span", {});
    fill(this.readout, ...names, exact, place, ` · mean of its block ${said}`, most);
    const number = ++this.requests;
    const [top, left] = [Math.floor(row / down) * down, Math.floor(column / across) * across];
    const [rows, columns] = [Math.min(down, plane.rows - top), Math.min(across, plane.columns - left)];
    if (single)
      setTimeout(async () => {
        if (number !== this.requests) return;
        const cells = await plane.map({ top, left, rows, columns }, 1).catch(() => null);
        if (!cells || number !== this.requests) return;
        const own = cells.values[(row - top) * columns + column - left];
        exact.textContent = describeCell(plane, row, column, own);
        most.textContent = `, max ${formatWeight(extent(cells.values).high)}`;
      }, 40);
  }

  /** Nothing is pointed at: say what could be. */
  showHint() {
    this.requests++;
    const touched = isTouched();
    const hint = `${touched ? "Tap a cell" : "Point at a cell, or move with the arrow keys,"} to read its weight.`;
    const zoom = touched ? " Two fingers zoom." : " + and − zoom, or Ctrl and the wheel.";
    const small = Math.min(this.fit.x, this.fit.y) < MIN_LABELLED_CELL;
    fill(this.readout, make("span", { class: "quiet" }, hint, small ? zoom : ""));
  }

  /** @param {Error} error */
  showError(error) {
    fill(this.readout, make("span", { class: "wrong" }, error.message));
  }
}

/**
 * Whether some cell is masked: masks hide a corner, if they hide anything. Null where that is not known.
 * @param {Plane} plane
 */
function hidesCells({ rows, columns, masked }) {
  const corners = [masked(0, columns - 1), masked(rows - 1, 0)];
  return corners.includes(null) ? null : corners.includes(true);
}

/** @param {Plane} plane */
function chartLabel(plane) {
  return `Map of ${plane.name}: ${formatCount(plane.rows)} rows and ${formatCount(plane.columns)} columns of weights`;
}

/**
 * @param {Plane} plane
 * @param {ChartOptions} options
 */
function chartHelp(plane, options) {
  const keys =
    options.manner === "roaming"
      ? "Arrow keys move the map, with Shift the selected cell"
      : "Arrow keys move from cell to cell, Enter pins";
  return `${chartLabel(plane)}. ${keys}; plus and minus zoom, 0 shows all.`;
}

/** @param {import("./chart.js").Chart} chart */
function attachInput(chart) {
  const { frame } = chart;
  const roaming = chart.options.manner === "roaming";
  /** @type {{x: number, y: number, from: {x: number, y: number, zx: number, zy: number}, moved: boolean} | null} */
  let held = null;

  frame.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    held = { x: event.clientX, y: event.clientY, from: chart.view, moved: false };
    if (chart.movable && event.pointerType !== "touch") frame.setPointerCapture(event.pointerId);
  });
  frame.addEventListener("pointermove", (event) => {
    if (held && chart.movable && event.pointerType !== "touch") {
      const [dx, dy] = [event.clientX - held.x, event.clientY - held.y];
      held.moved ||= Math.hypot(dx, dy) > 4;
      if (held.moved) {
        noteMovement();
        chart.setView({ ...held.from, x: held.from.x - dx / held.from.zx, y: held.from.y - dy / held.from.zy });
        return;
      }
    }
    const at = cellAt(chart, event);
    chart.point(at);
    if (at) chart.options.onPoint?.(at.row, at.column);
  });
  frame.addEventListener("pointerup", (event) => {
    const at = cellAt(chart, event);
    if (held && !held.moved && at) chart.options.onPick?.(at.row, at.column);
    held = null;
  });
  frame.addEventListener("pointercancel", () => {
    held = null;
  });
  frame.addEventListener("pointerleave", () => {
    held = null;
    if (document.activeElement !== frame) chart.point(null);
  });
  frame.addEventListener("blur", () => chart.point(null));
  frame.addEventListener(
    "wheel",
    (event) => {
      if (!event.ctrlKey && !event.metaKey) return; // the wheel alone scrolls the page
      event.preventDefault();
      const box = frame.getBoundingClientRect();
      noteMovement();
      const step = clamp(-1, event.deltaY / (event.deltaMode ? 3 : 120), 1);
      chart.zoom(2 ** (-step / 2), event.clientX - box.left, event.clientY - box.top);
    },
    { passive: false }
  );
  if (roaming) attachFingers(chart);
  frame.addEventListener("keydown", (event) => handleKey(chart, event, roaming ? !event.shiftKey : event.shiftKey));
}

/**
 * Two fingers move and zoom the map; one scrolls the page.
 * @param {import("./chart.js").Chart} chart
 */
function attachFingers(chart) {
  /** @type {{x: number, y: number, apart: number} | null} */
  let last = null;
  /** @param {TouchEvent} event */
  const grip = ({ touches: [a, b] }) => ({
    x: (a.clientX + b.clientX) / 2,
    y: (a.clientY + b.clientY) / 2,
    apart: Math.max(1, Math.hypot(a.clientX - b.clientX, a.clientY - b.clientY))
  });
  chart.frame.addEventListener(
    "touchmove",
    (event) => {
      if (event.touches.length !== 2) return;
      event.preventDefault();
      const now = grip(event);
      if (last) {
        noteMovement();
        const { x, y, zx, zy } = chart.view;
        chart.setView({ ...chart.view, x: x - (now.x - last.x) / zx, y: y - (now.y - last.y) / zy });
        const box = chart.frame.getBoundingClientRect();
        chart.zoom(now.apart / last.apart, now.x - box.left, now.y - box.top);
      }
      last = now;
    },
    { passive: false }
  );
  for (const end of ["touchend", "touchcancel", "touchstart"])
    chart.frame.addEventListener(end, () => {
      last = null;
    });
}

/**
 * The cell under the pointer.
 * @param {import("./chart.js").Chart} chart
 * @param {PointerEvent} event
 */
function cellAt(chart, event) {
  const { plot, view, plane } = chart;
  const box = chart.canvas.getBoundingClientRect();
  const [x, y] = [event.clientX - box.left - plot.x, event.clientY - box.top - plot.y];
  const [row, column] = [Math.floor(view.y + y / view.zy), Math.floor(view.x + x / view.zx)];
  const inside = x >= 0 && y >= 0 && x < plot.width && y < plot.height && row < plane.rows && column < plane.columns;
  return inside ? { row, column } : null;
}

/** @type {Record<string, [number, number]>} */
const ARROWS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

/**
 * @param {import("./chart.js").Chart} chart
 * @param {KeyboardEvent} event
 * @param {boolean} panning what the arrow keys move: the map, or the cell
 */
function handleKey(chart, event, panning) {
  if (event.altKey || event.ctrlKey || event.metaKey) return;
  const { view, plot, plane } = chart;
  const arrow = ARROWS[event.key];
  if (arrow && panning) {
    chart.setView({
      ...view,
      x: view.x + (arrow[1] * plot.width) / 8 / view.zx,
      y: view.y + (arrow[0] * plot.height) / 8 / view.zy
    });
  } else if (arrow) {
    const { down, across } = chart.blocks();
    const at = chart.at ?? {
      row: Math.floor(view.y) - arrow[0] * down,
      column: Math.floor(view.x) - arrow[1] * across
    };
    focusCell(
      chart,
      clamp(0, at.row + arrow[0] * down, plane.rows - 1),
      clamp(0, at.column + arrow[1] * across, plane.columns - 1)
    );
  } else if (event.key === "+" || event.key === "=") {
    chart.zoom(1.5);
  } else if (event.key === "-") {
    chart.zoom(1 / 1.5);
  } else if (event.key === "0" || event.key === "Home") {
    chart.setView({ x: 0, y: 0, zx: chart.fit.x, zy: chart.fit.y });
  } else if ((event.key === "Enter" || event.key === " ") && chart.at) {
    chart.options.onPick?.(chart.at.row, chart.at.column);
  } else return;
  noteMovement();
  event.preventDefault();
}

/**
 * Point at a cell by key: bring it into view, and read it aloud.
 * @param {import("./chart.js").Chart} chart
 * @param {number} row
 * @param {number} column
 */
export function focusCell(chart, row, column) {
  const { view, plot, plane } = chart;
  const [wide, high] = [plot.width / view.zx, plot.height / view.zy];
  chart.setView({ ...view, x: clamp(column + 1 - wide, view.x, column), y: clamp(row + 1 - high, view.y, row) });
  chart.point({ row, column });
  chart.options.onPoint?.(row, column);
  const said = describeCell(plane, row, column, chart.valueAt(row, column));
  chart.app.announce(`${plane.rowName(row)} to ${plane.columnName(column)}: ${said}`);
}
